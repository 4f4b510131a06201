"""A study's page: lines, curves, points and a search, as far as there are results."""

from tests.study.tiny_studies import Line, Told, arm, study, use
from tff_agg.experiment.study.declare import validated
from tff_agg.experiment.study.report import (
    UNFINISHED,
    Report,
    candidate_table,
    search_table,
)
from tff_agg.experiment.study.search import perform, results


def value(config, series, method, split):
    better = {"last": 0.0, "uta:2": 0.1, "uta:4": 0.05}[method]
    return 0.1 * config.learning_rate + better * (series == "iterate")


def lines():
    base = arm("base", 1.0, 2.0)
    recycled = use("uta:2,4")
    return Line("row", "broadcast", base), Line("row", "UTA_inf", base, recycled)


def test_a_page_has_tables_values_and_pictures_and_is_written(tmp_path):
    own = study(*lines(), train=Told(value), drawn=lambda line, c: validated(c))
    found, page = perform(own, tmp_path), Report(text="said below")
    page.add_lines("lines", found, ("name",), lambda line: (line.name,))
    page.add_curves("curves", found, found.rows())
    page.add_points("points", found, {line.name: line for line in found.lines})
    rows = page.tables["lines"].rows
    assert rows == [
        ["broadcast", "20.00 ± 0.00", ""],
        ["UTA_inf", "30.00 ± 0.00", "+50.0 %"],
        ["always the same answer", "30.00", ""],
    ]
    assert page.data["lines"].rows[0][:3] == ["broadcast", 0, 0.2]
    page.write(tmp_path)
    assert (tmp_path / "lines.md").exists() and (tmp_path / "lines.csv").exists()
    for name in ("curves", "points"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    assert page.shown().endswith("said below")


def test_seeds_are_named_and_an_unfinished_study_says_so(tmp_path):
    whole = study(*lines(), train=Told(value), seeds=(3, 5))
    half, page = results(whole, tmp_path), Report()
    page.add_lines("lines", half, ("name",), lambda line: (line.name,))
    assert (page.tables, page.text) == ({}, UNFINISHED)
    page.add_lines("lines", perform(whole, tmp_path), ("name",), lambda x: (x.name,))
    assert [row[1] for row in page.data["lines"].rows] == [3, 5, 3, 5]


def test_a_search_has_a_row_for_each_candidate_and_marks_what_was_chosen(tmp_path):
    whole = study(*lines(), train=Told(value), search_seeds=(100, 101))
    found = perform(whole, tmp_path)
    table = search_table(found)
    assert table.header == ["arm", "candidate", "broadcast", "UTA_inf 2", "UTA_inf 4"]
    assert table.rows[1] == [
        "base", "learning_rate=2", "20.00 ± 0.00", "30.00 ± 0.00", "25.00 ± 0.00"
    ]  # fmt: skip
    assert table.marked == {(1, 2), (1, 3)}
    header, rows, *_ = candidate_table(found)
    assert header[:6] == ["runs", "line", "settings", "method", "chosen", "seed"]
    assert len(rows) == 2 * (2 + 4)
    chosen = [row[1:6] for row in rows if row[4] == "1"]
    assert chosen == [
        [name, "learning_rate=2", method, "1", seed]
        for name, method in (("broadcast", "last"), ("UTA_inf", "uta:2"))
        for seed in (100, 101)
    ]

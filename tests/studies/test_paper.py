"""The paper's tables: their runs, choices, cells, pictures and error bars."""

import csv
import dataclasses
import pathlib

import numpy as np
import pytest

from stackoverflow.studies import fair, paper, widths
from stackoverflow.studies.scales import (
    EPSILONS,
    HERE,
    SCALES,
    TABLES,
    TRAININGS,
    configuration,
    published,
    store_of,
)
from tests.golden.compare import differences, golden
from tests.studies import tiny
from tests.study.tiny_studies import Told
from tff_agg.experiment.study import show
from tff_agg.experiment.study import widths as shown
from tff_agg.experiment.study.search import perform, results
from tff_agg.recycling.series import ALWAYS_THE_SAME
from tff_agg.recycling.uncertainty import Comparison

LEVEL = "18.9"
ROW = f"pds {LEVEL}"


def options(**changes):
    values = {"scale": "small", "store": "x", "seeds": 2}
    return paper.Paper(**(values | changes))


def test_every_cell_has_a_published_figure():
    for table in TABLES:
        found = published(table)
        assert {row: set(cells) for row, cells in found.items()} == {
            epsilon: set(paper.COLUMNS) for epsilon in EPSILONS
        }
    assert found["8.2"]["UTA_tr"] == "20.81 ± 0.05"


def test_the_file_says_where_the_paper_gives_two_figures():
    """UTA_tr's absolute gains and its relative ones are of other baselines."""
    with open(HERE / "expected.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    unlike = {
        (row["table"], row["epsilon"]): (row["mean"], row["source"].split()[-1])
        for row in rows
        if "its stated relative gain gives" in row["source"]
    }
    assert {row["column"] for row in rows if "relative" in row["source"]} == {
        "EMA_baseline"
    }
    assert unlike == {
        ("stackoverflow", "18.9"): ("23.45", "23.55"),
        ("pds", "18.9"): ("21.90", "21.80"),
        ("pds", "inf"): ("23.84", "23.86"),
    }


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_small_twins_train_like_the_files_they_are_twins_of(shift, training, epsilon):
    """The same averages but for an EMA's β; noise, clip norm and rate of their own."""
    large, small, base = (
        configuration(scale, epsilon, name, shift=shift, store="x")
        for scale, name in (
            ("full", training), ("small", training), ("small", "baseline")
        )
    )  # fmt: skip
    for name in ("averager", "k", "pds", "delta"):
        assert getattr(small, name) == getattr(large, name), name
    way = fair.trainings(shift=shift)[training]
    noise = fair.noises(epsilon, way)[0]
    point = small.clip_norm, small.server_learning_rate / way.pace
    own = fair.arm(base, training, way, noise, [point])
    assert dataclasses.replace(own.config, **own.grid[0]) == small
    # What was chosen for it is of the fair comparison's grid.
    assert point in fair.GRIDS[epsilon]
    # It would make the first steps 18 times as long.
    assert training != "EMA_tr" or not small.ema_warm_up
    assert small.min_separation == 100
    if epsilon == "inf":
        assert small.noise_multiplier == 0
    else:
        assert small.epsilon == float(epsilon)


@pytest.mark.parametrize(("scale", "is_known"), [("tiny", True), ("small", False)])
def test_noise_is_secret_unless_the_data_are_made_up(scale, is_known):
    study = paper.declare(options(scale=scale))
    for line in study.lines:
        for trial in study.trials(line, {}, study.seeds):
            known = 1000 + trial.seed if is_known else None
            assert trial.config.insecure_noise_seed == known
            assert trial.config.seed == trial.seed


@pytest.mark.parametrize(("scale", "period"), [("small", 200), ("tiny", 20)])
def test_under_a_shift_a_whole_period_counts_and_as_many_rounds(scale, period):
    study = paper.declare(options(scale=scale))
    counted = {}
    for line in study.lines:
        counted.setdefault(line.row.split()[0], set()).add(
            study.rounds(line.arm.config)
        )
        assert line.arm.config.pds_period == period or not line.arm.config.pds
    (plain,), (shifted,) = counted["stackoverflow"], counted["pds"]
    assert len(plain) == len(shifted) == 5
    assert len(shifted) * (shifted[1] - shifted[0]) == period


def test_at_full_scale_the_last_round_counts_as_published_and_a_period_is_drawn():
    study = paper.declare(options(scale="full"))
    for line in study.lines:
        assert study.rounds(line.arm.config) == (2000,)
        rounds = study.drawn(line, line.arm.config)
        assert not rounds or rounds == tuple(range(1800, 2001, 20))
    assert study.drawn_on == "heldout"
    drawn = {line.name for line in study.lines if study.drawn(line, line.arm.config)}
    assert drawn == {f"baseline/{name}" for name in ("last", *paper.RECYCLED)}


def test_at_full_scale_all_of_the_validation_users_and_of_the_test_data_count():
    study = paper.declare(options(scale="full"))
    config = study.lines[0].arm.config
    assert config.validation_users == 10_000
    # As training validates, so that its scores are used again.
    assert study.examples["heldout"] == config.validation_examples == 100_000_000
    assert study.examples["test"] == config.test_examples == 100_000_000


def test_real_data_have_to_be_given():
    with pytest.raises(ValueError, match=r"--scale=small needs --store"):
        store_of("small", "", "y")


@pytest.mark.parametrize(
    "bad",
    [
        {"seeds": 0},
        {"epsilons": ("3",)},
        {"epsilons": ()},
        {"tables": ()},
        {"tables": ("cifar",)},
        {"trainings": ("SGD",)},
        {"trainings": ()},
        {"processes": 0},
        {"processes": 2, "address": "auto"},
    ],
)
def test_what_cannot_be_is_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        options(**bad)


def told(store, out, value, **changes):
    """Performs the study with told values."""
    asked = options(scale="tiny", store=store, out=str(out), **changes)
    train = Told(value)
    study = dataclasses.replace(paper.declare(asked), train=train)
    return asked, perform(study, out), train


def test_a_training_is_shown_with_its_best_inference_and_the_baseline_as_it_is(
    token_store, tmp_path, monkeypatch
):
    def value(config, series, method, split):
        assert series == "aggregate"
        best = {"last": "opa:10", "uta": "ema:0.9", "ema": "last"}[config.averager]
        found = 0.2 if method == best else 0.1
        return found + 0.01 * (split == "test")

    asked, found, _ = told(token_store, tmp_path, value, epsilons=(LEVEL,), seeds=1)
    cells = paper.cells_of(asked, found, "pds")[LEVEL]
    assert list(cells) == list(paper.COLUMNS)
    high = {column for column, (value,) in cells.items() if value > 0.2}
    assert high == {"EMA_tr", "UTA_tr", "OPA"}
    methods = {
        name: str(found.chosen[found.line(ROW, name)].method)
        for name in ("EMA_tr", "UTA_tr", "baseline/OPA", "baseline/UTA_inf")
    }
    assert methods == {
        "EMA_tr": "last", "UTA_tr": "ema:0.9",
        # Of equals the first.
        "baseline/OPA": "opa:10", "baseline/UTA_inf": "uta:3",
    }  # fmt: skip


def test_of_equals_the_order_is_that_of_the_columns(token_store, tmp_path):
    _, found, _ = told(token_store, tmp_path, lambda *_: 0.1, epsilons=(LEVEL,))
    every = paper.uses(SCALES["tiny"])
    assert [*every] == ["last", "UTA_inf", "EMA_inf", "EMA_baseline", "OPA", "OMV"]
    assert str(found.chosen[found.line(ROW, "UTA_tr")].method) == "last"


def test_what_was_chosen_alone_is_tested_and_drawn(token_store, tmp_path):
    asked, found, train = told(token_store, tmp_path, lambda *_: 0.1, epsilons=(LEVEL,))
    tested = {
        (config.averager, str(method))
        for config, question in train.asked
        if question.split == "test"
        for method in question.methods
    }
    one_each = {"last", "uta:3", "ema:0.9", "ema:0.9999", "opa:3", "omv:3"}
    assert tested == {(a, m) for a in ("last", "ema", "uta") for m in one_each}
    panels = paper.panels(asked, found, [LEVEL])
    assert list(panels) == [
        f"Without a shift, ε = {LEVEL}", f"With the periodic shift, ε = {LEVEL}"
    ]  # fmt: skip
    for panel in panels.values():
        assert list(panel) == [
            "last", "EMA_baseline", "EMA_inf 0.9", "UTA_inf 3", "OPA 3", "OMV 3"
        ]  # fmt: skip
        for curve in map(found.curve, panel.values()):
            assert len(curve.rounds) == 5 and len(curve.values) == 2


def test_at_full_scale_the_published_figures_stand_below_ours(token_store, tmp_path):
    asked, found, _ = told(
        token_store, tmp_path, lambda *_: 0.1, epsilons=(LEVEL,), tables=("pds",)
    )
    shown = paper.layout(dataclasses.replace(asked, scale="full"), found, "pds")
    *_, last, always = shown.rows
    assert always[0] == ALWAYS_THE_SAME
    assert last[0] == "published" and "22.17 ± 0.03" in last
    ours = paper.layout(asked, found, "pds")
    assert [row[0] for row in ours.rows] == [LEVEL, "gain", ALWAYS_THE_SAME]


def test_an_unfinished_study_says_so(token_store, tmp_path):
    asked = options(scale="tiny", store=token_store, out=str(tmp_path))
    found = results(paper.declare(asked), tmp_path)
    made = paper.report(asked, found)
    assert not made.tables and "No seed" in made.text


@pytest.fixture(scope="module")
def finished(token_store, tmp_path_factory):
    """A table of one row with two trainings, and what the command has printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "tiny", tiny.scale())
        asked = options(
            scale="tiny", store=token_store, out=str(tmp_path_factory.mktemp("paper")),
            tables=("pds",), epsilons=(LEVEL,), trainings=("baseline", "UTA_tr"),
            # In processes that set TensorFlow up: more threads give other last digits.
            processes=2,
        )  # fmt: skip
        assert paper.command(paper.StackOverflow).run(asked) == 0
        yield asked


@pytest.mark.slow
def test_figures(finished):
    found = results(paper.declare(finished), finished.out)
    metrics = [metric.name for metric in found.study.task.metrics]
    figures = {}

    def note(line, seed, split, number, metric, value):
        figures[line, str(seed), split, str(number), metric] = value

    for line in found.lines:
        if "/" not in line.name:
            continue
        note(line.name, 0, "", "", "chosen", str(found.chosen[line].method))
        for metric in metrics:
            for seed, value in enumerate(found.values(line, metric)):
                note(line.name, seed, "test", "mean", metric, repr(value))
    counted = found.study.rounds(found.config(found.lines[0]))
    validated = found.frame.filter(found.frame["split"] == "heldout")
    for row in validated.iter_rows(named=True):
        of = row["series"], row["group"], row["round"] in counted
        if of == ("aggregate", "all", True) and row["metric"] in metrics[:3]:
            line = f"{row['arm']}/{row['method']}"
            note(
                line, row["seed"], "heldout", row["round"], row["metric"],
                repr(row["value"]),
            )  # fmt: skip
    for column, values in paper.cells_of(finished, found, "pds")[LEVEL].items():
        for seed, value in enumerate(values):
            note(f"cell {column}", seed, "test", "mean", "accuracy", repr(value))
    bars = paper.error_bars(finished, found)
    rule = " ".join(
        "-" * max(map(len, column))
        for column in zip(bars.header, *bars.rows, strict=True)
    )
    for number, text in enumerate(
        [" ".join(bars.header), rule, *(" ".join(row) for row in bars.rows)]
    ):
        note("widths", 0, "", number, "text", text)
    assert differences(figures, golden("paper")) == {}


def times(out):
    """When each file was written that takes training or evaluation."""
    parts = [
        *(out / "scores").iterdir(),
        *out.glob("widths/*/*"),
        *out.glob("runs/*/ledger.jsonl"),
    ]
    return {path: path.stat().st_mtime_ns for path in parts}


@pytest.mark.slow
def test_tables_pictures_and_error_bars_are_written_and_nothing_is_done_twice(
    finished, monkeypatch, capsys
):
    out = pathlib.Path(finished.out)
    names = [f"{name}_pds" for name in ("table", "all_cells", "gains")]
    written = [f"{names[0]}.md", f"{names[0]}.csv", f"{names[1]}.csv", f"{names[2]}.md"]
    for name in (*written, "widths.md", "figure2.png"):
        assert (out / name).stat().st_size > 50
    assert not (out / "figure3.png").exists()
    header, *rows = (out / "all_cells_pds.csv").read_text().splitlines()
    assert header == (
        "ε,training,inference,method,seed,accuracy,accuracy_with_oov,loss,perplexity"
    )
    # Two trainings, six ways to use their checkpoints, two seeds.
    assert len(rows) == 24 and rows[0].startswith("18.9,baseline,last,last,0,0.1255605")
    header, *rows = (out / "table_pds.csv").read_text().splitlines()
    assert header == "ε,column,seed,accuracy" and len(rows) == 14
    gains = (out / "gains_pds.md").read_text().splitlines()
    assert "gain in loss" in gains[0] and len(gains) == 2 + 12 + 1
    assert "always the same answer" in gains[-1]
    shown = (out / "widths.md").read_text()
    assert "3 rounds apart" in shown and "| pds_baseline_eps18.9 | 2 |" in shown
    before = times(out)
    assert len(before) > 6
    run = paper.command(paper.StackOverflow).run
    for changes in ({}, {"report_only": True}, {"dry_run": True}, {"processes": 1}):
        assert run(dataclasses.replace(finished, **changes)) == 0
    assert "Nothing is left to train" in capsys.readouterr().out
    assert times(out) == before


@pytest.mark.slow
def test_a_column_can_be_had_by_itself_and_gains_need_the_baseline(finished):
    own = dataclasses.replace(finished, trainings=("UTA_tr",))
    alone, both = (
        paper.report(asked, results(paper.declare(asked), asked.out))
        for asked in (own, finished)
    )
    table, whole = alone.tables["table_pds"], both.tables["table_pds"]
    assert list(table.header) == ["ε", "UTA_tr"] and len(table.rows) == 1 + 1
    assert table.rows[0][1] == whole.rows[0][list(whole.header).index("UTA_tr")]
    assert not alone.details and "gains_pds" in both.details


def test_error_bars_as_found_have_a_column_of_their_own(tmp_path):
    class Runs:
        out = tmp_path

        def runs(self, line):
            return ["a", "b"]

        def folders(self, line):
            return [tmp_path / "a", tmp_path / "b"]

    options = paper.Paper(report_only=True)
    asked = {"separations": (1, 0), "examples": 10}
    for separation, width in ((1, 0.1), (0, 0.4)):
        own = widths._comparison(Runs(), "so", None, separation, 10).out
        own.mkdir(parents=True)
        (own / "widths.png").touch()
        of = Comparison((2,), np.array([[0.5]]), np.array([[width]]))
        compared = {"seeds": {shown.in_words(separation): of}}
        show.save(shown.data(compared), own / "widths.csv")
    found = widths.table(options, Runs(), {"so": None}, **asked)
    assert found.header[-2:] == ["as far apart as found, widened", "ratio"]
    assert found.rows == [["so", "2", "0.500", "0.100", "5.00", "0.400", "1.25"]]


@pytest.mark.slow
def test_error_bars_are_of_the_very_runs(finished, monkeypatch):
    """Runs that were trained again, or another sample, are compared again."""
    found = results(paper.declare(finished), finished.out)
    line = found.line(ROW, "baseline/last")
    own = widths._comparison(found, "a", line, 3, 10)
    assert own == widths._comparison(found, "a", line, 3, 10)
    assert own.out != widths._comparison(found, "a", line, 3, 11).out
    monkeypatch.setattr(type(found), "runs", lambda self, line: ["other", "runs"])
    assert own.out != widths._comparison(found, "a", line, 3, 10).out

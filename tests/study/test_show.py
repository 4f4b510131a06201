"""Tables: the best is marked, gains are signed by direction, four ways to show them."""

import csv
import html.parser
import io

import pytest

from tff_agg.experiment.study import show
from tff_agg.experiment.study.show import Table, cell_table, line_table, render
from tff_agg.recycling.metrics import ACCURACY, Metric

LOSS = Metric("loss", higher_is_better=False)
CELLS = {
    "18.9": {"baseline": [0.20, 0.22], "UTA_inf": [0.23, 0.25], "OMV": [0.21, 0.23]},
    "8.2": {"baseline": [0.20, 0.20]},
}
HOSTILE = "<script>alert('1')</script> | \x1b[31m [bold] & \x07\nnew"


def over_first(lines, alike=0):
    """Compares lines with the first whose first labels are the same."""
    first = {}
    for key in lines:
        first.setdefault(key[:alike], key)
    return {"": {k: first[k[:alike]] for k in lines if k != first[k[:alike]]}}


def test_the_best_is_bold_and_gains_are_of_the_baseline():
    lines = render(cell_table("ε", CELLS, ACCURACY), "markdown").splitlines()
    assert lines[0] == "| ε | baseline | UTA_inf | OMV |"
    assert lines[2] == "| 18.9 | 21.00 ± 1.41 | **24.00 ± 1.41** | 22.00 ± 1.41 |"
    assert lines[3] == "| gain |  | +14.3 % | +4.8 % |"
    assert lines[4] == "| 8.2 | **20.00 ± 0.00** |  |  |"
    assert len(lines) == 5, "what has nothing to be compared with has no gain"


def test_a_loss_is_best_where_it_is_lowest():
    assert show.best(CELLS["18.9"], LOSS) == "baseline"
    assert show.best({"a": [0.2], "b": [0.2]}, LOSS) == "a"


def test_a_worse_loss_is_no_gain():
    cells = {"18.9": {"baseline": [4.0, 4.0], "UTA_inf": [4.4, 4.4]}}
    text = render(cell_table("ε", cells, LOSS), "markdown")
    assert "-10.0 %" in text and "+10.0 %" not in text
    lines = {("18.9", name): {"loss": v} for name, v in cells["18.9"].items()}
    table = line_table(["ε", "method"], lines, [LOSS], over_first(lines))
    assert [row[-1] for row in table.rows] == ["", "-10.0 %"]


def test_what_others_have_found_stands_below():
    expected = {"18.9": {"baseline": "23.41", "UTA_inf": "23.84 ± 0.01"}}
    text = render(cell_table("ε", CELLS, ACCURACY, expected=expected))
    rows = [line.split() for line in text.splitlines()]
    assert rows[4] == ["published", "23.41", "23.84", "±", "0.01"]
    assert "published" not in [row[0] for row in rows[5:]]


def test_a_gain_has_its_verdict_and_none_from_fewer_than_three_seeds():
    lines = {
        ("8.2", "last"): {"accuracy": [0.2] * 3, "loss": [4.0] * 3},
        ("8.2", "UTA_inf"): {"accuracy": [0.21] * 3, "loss": [3.9] * 3},
        # A majority vote has no loss; what seeds scatter over is not clear.
        ("8.2", "OMV"): {"accuracy": [0.15, 0.2, 0.28]},
        ("18.9", "last"): {"accuracy": [0.2] * 2, "loss": [4.0] * 2},
        ("18.9", "UTA_inf"): {"accuracy": [0.3] * 2, "loss": [3.0] * 2},
    }
    table = line_table(
        ["ε", "method"], lines, [ACCURACY, LOSS], over_first(lines, 1),
        gains_in=[ACCURACY, LOSS],
    )  # fmt: skip
    head = ["ε", "method", "accuracy %", "loss", "gain in accuracy %", "gain in loss"]
    assert table.header == head
    assert [row[4:] for row in table.rows] == [
        ["", ""],
        ["+5.0 %, clear", "+2.5 %, clear"],
        ["+5.0 %, within the spread", ""],
        ["", ""],
        ["+50.0 %", "+25.0 %"],
    ]
    assert table.rows[2][:4] == ["8.2", "OMV", "21.00 ± 6.56", ""]


def test_lines_are_compared_with_those_that_are_named():
    lines = {
        (name,): {"accuracy": [v] * 3}
        for name, v in zip("abc", (0.1, 0.2, 0.4), strict=True)
    }
    over = {"over a": {("b",): ("a",), ("c",): ("a",)}, "over b": {("c",): ("b",)}}
    table = line_table(["step"], lines, [ACCURACY], over)
    assert table.header[2:] == ["gain over a", "gain over b"]
    assert [row[2:] for row in table.rows] == [
        ["", ""],
        ["+100.0 %, clear", ""],
        ["+300.0 %, clear", "+100.0 %, clear"],
    ]


def test_a_title_may_be_wider_than_its_table():
    title = "the widths of what is told of the few that there are"
    table = Table(["N"], [["2"]], title)
    assert render(table, width=80).splitlines()[0] == title
    narrow = render(table, width=30).splitlines()
    assert [len(line) <= 30 for line in narrow] == [True] * 5
    assert " ".join(narrow[:2]) == title


def test_what_stands_out_is_bold_on_a_terminal_and_plain_elsewhere(monkeypatch):
    table = Table(["name", "value"], [["a", "1"], ["b", "2"]], marked=[(1, 1)])
    assert "\x1b" not in show.render(table)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    *_, last = show.render(table).splitlines()
    assert last.startswith("b") and "\x1b[1m" in last
    assert last.endswith("* 2\x1b[0m")


def test_columns_of_gains_are_what_is_asked_for():
    lines = {("a",): {"loss": [0.5, 0.6, 0.7]}, ("b",): {"loss": [0.4, 0.5, 0.61]}}
    gains = {
        "mean": show.in_points,
        "std": lambda gain, _: f"{100 * (1 - gain.spread_ratio):+.1f} %",
        "t": lambda gain, _: f"{gain.t:.1f}",
    }
    table = line_table(["arm"], lines, [LOSS], over_first(lines), gains=gains)
    assert table.header == ["arm", "loss", "mean", "std", "t"]
    assert table.rows[1][2:] == ["+0.0967 ± 0.0033", "-5.0 %", "29.0"]
    assert set(table.marked) == {(1, 2)}


def test_every_seed_is_written_in_full_and_what_is_lacking_stays_empty(tmp_path):
    lines = {("18.9", "OMV"): {"accuracy": [0.25, 1 / 3]}}
    table = show.seed_table(["epsilon", "method"], lines, [ACCURACY, LOSS])
    show.save(table, tmp_path / "long.csv")
    assert (tmp_path / "long.csv").read_text() == (
        "epsilon,method,seed,accuracy,loss\n"
        "18.9,OMV,0,0.25,\n"
        "18.9,OMV,1,0.3333333333333333,\n"
    )


@pytest.mark.parametrize(
    ("column", "right"),
    [
        (["1", "2.5 ± 0.1", ""], True),
        (["1,000", "+9.5 %", "–"], True),
        (["6 of 6", "nan"], True),
        (["1", "none"], False),
        (["+9.5 %, clear", "1"], False),
        (["", ""], False),
    ],
)
def test_columns_of_numbers_stand_to_the_right(column, right):
    table = Table(["a long name"], [[cell] for cell in column])
    assert ("--:" in render(table, "markdown")) == right
    assert ('class="number"' in render(table, "html")) == right
    longest = max(column, key=len)
    if longest:
        line = next(x for x in render(table).splitlines() if longest in x)
        assert line.startswith(" ") == right


def test_no_word_and_no_number_is_cut_where_there_is_little_room():
    words = "one or two of many words"
    table = Table(["plan", "value", ""], [["who", "12.34 ± 0.56", words]])
    for width in (10, 30, 100):
        shown = render(table, width=width)
        assert "12.34 ± 0.56" in shown
        assert set(words.split()) < set(shown.split())
    assert max(map(len, render(table, width=30).splitlines())) <= 30
    assert len(render(table, width=30).splitlines()) > 3


def test_without_a_terminal_tables_are_plain_text_of_one_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = render(Table(["a", "b"], [["x", "word " * 50]]))
    assert "\x1b" not in text
    assert 90 < max(map(len, text.splitlines())) <= show.WIDTH


def test_text_commands_no_terminal_and_becomes_no_markup():
    table = Table([HOSTILE], [[HOSTILE]], HOSTILE, {(0, 0)})
    shown = render(table)
    assert "\x1b" not in shown and "\x07" not in shown and "[bold]" in shown
    text = render(table, "markdown")
    assert "<script" not in text and len(text.splitlines()) == 5
    tags = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)
    parser.feed(render(table, "html"))
    assert set(tags) == {"table", "caption", "thead", "tbody", "tr", "th", "td", "b"}
    rows = list(csv.reader(io.StringIO(render(table, "csv"))))
    assert rows == [[HOSTILE], [HOSTILE]]


def test_a_way_or_a_suffix_that_there_is_not_is_refused(tmp_path):
    table = Table(["a"], [["b"]])
    with pytest.raises(ValueError, match="to='latex' must be terminal, markdown"):
        render(table, "latex")
    with pytest.raises(ValueError, match=r"must end in one of \.md, \.html, \.csv"):
        show.save(table, tmp_path / "a.txt")

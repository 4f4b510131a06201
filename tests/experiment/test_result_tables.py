"""Tables of results: the best is marked, gains are relative, spreads over seeds."""

import csv

from tff_agg.experiment import result_tables
from tff_agg.experiment.result_tables import ResultTable
from tff_agg.recycling.metrics import ACCURACY, Metric

CELLS = {
    "18.9": {"baseline": [0.20, 0.22], "UTA_inf": [0.23, 0.25], "OMV": [0.21, 0.23]},
    "8.2": {"baseline": [0.20, 0.20]},
}


def test_the_best_is_bold_and_gains_are_of_the_baseline():
    lines = ResultTable("ε", CELLS, ACCURACY).markdown().splitlines()
    assert lines[0] == "| ε | baseline | UTA_inf | OMV |"
    assert lines[2] == "| 18.9 | 21.00 ± 1.41 | **24.00 ± 1.41** | 22.00 ± 1.41 |"
    assert lines[3] == "| gain |  | +14.3 % | +4.8 % |"
    assert lines[4] == "| 8.2 | **20.00 ± 0.00** |  |  |"


def test_a_loss_is_best_where_it_is_lowest():
    table = ResultTable("ε", CELLS, Metric("loss", higher_is_better=False))
    assert table.best("18.9") == "baseline"


def test_a_gain_is_positive_where_it_is_better():
    cells = {"18.9": {"baseline": [4.0, 4.0], "UTA_inf": [4.4, 4.4]}}
    table = ResultTable("ε", cells, Metric("loss", higher_is_better=False))
    assert "-10.0 %" in table.markdown() and "+10.0 %" not in table.markdown()


def test_what_others_have_found_stands_below():
    expected = {"18.9": {"baseline": "23.41", "UTA_inf": "23.84 ± 0.01"}}
    table = ResultTable("ε", CELLS, ACCURACY, expected=expected)
    rows = [line.split() for line in table.terminal().splitlines()]
    assert rows[4] == ["published", "23.41", "23.84", "±", "0.01"]
    assert "published" not in [row[0] for row in rows[5:]]


def test_the_csv_has_every_seed(tmp_path):
    ResultTable("ε", CELLS, ACCURACY).write(tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert [r["accuracy"] for r in rows if r["column"] == "UTA_inf"] == ["0.23", "0.25"]
    assert {r["column"] for r in rows if r["best"] == "1"} == {"UTA_inf", "baseline"}


def test_a_metric_that_a_method_has_not_stays_empty(tmp_path):
    path = tmp_path / "long.csv"
    lines = {("18.9", "OMV"): [{"accuracy": 0.25}]}
    metrics = (ACCURACY, Metric("loss", higher_is_better=False))
    result_tables.write_long(path, ["epsilon", "method"], lines, metrics)
    assert path.read_text() == "epsilon,method,seed,accuracy,loss\n18.9,OMV,0,0.25,\n"


def test_improvements_are_over_the_line_that_is_named_whichever_way_is_better():
    loss = Metric("loss", higher_is_better=False)
    lines = {
        ("8.2", "last"): [{"accuracy": 0.2, "loss": 4.0}] * 3,
        ("8.2", "UTA_inf"): [{"accuracy": 0.21, "loss": 3.9}] * 3,
        # A majority vote has no loss; what seeds scatter over is not clear.
        ("8.2", "OMV"): [{"accuracy": a} for a in (0.15, 0.2, 0.28)],
    }
    first = dict.fromkeys(lines, ("8.2", "last"))
    found = result_tables.improvements(lines, first, [ACCURACY, loss])
    assert found == [
        ["8.2", "UTA_inf", "+5.0 %, clear", "+2.5 %, clear"],
        ["8.2", "OMV", "+5.0 %", ""],
    ]

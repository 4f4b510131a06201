"""Error bars side by side: one table, one file that is read back, one picture."""

import numpy as np

from tff_agg.experiment.study import show, widths
from tff_agg.recycling.uncertainty import Comparison

INDEPENDENT = np.array([[0.4, 0.3], [0.6, 0.5]])
NEAR = Comparison((2, 3), INDEPENDENT, np.array([[0.1, 0.1], [0.15, 0.1]]))
FAR = Comparison((2, 3), INDEPENDENT, np.array([[0.25, 0.2], [0.25, 0.2]]))
COMPARED = {
    "one": {widths.in_words(1): NEAR, widths.in_words(50): FAR},
    "other": {widths.in_words(50): FAR},
}


def test_widths_stand_beside_those_of_independent_runs():
    table = widths.table(COMPARED)
    header = ["runs", "N", "independent runs", "last checkpoints", "ratio"]
    assert table.header == [*header, "50 rounds apart", "ratio"]
    assert table.rows[0] == ["one", "2", "0.500", "0.125", "4.00", "0.250", "2.00"]
    assert table.rows[2] == ["other", "2", "0.500", "", "", "0.250", "2.00"]
    alone = widths.table(COMPARED, alone=True)
    assert alone.header == ["runs", "N", "last checkpoints", "50 rounds apart"]
    assert alone.rows[1] == ["one", "3", "4.00", "2.00"]
    errors = widths.table(COMPARED, errors=True)
    assert errors.rows[0][2:4] == ["0.500 ± 0.100", "0.125 ± 0.025"]


def test_of_a_single_run_there_is_nothing_to_compare():
    single = Comparison((2, 3), np.empty((0, 2)), np.array([[0.25, 0.2]]))
    table = widths.table({"a": {widths.in_words(0): single}})
    assert table.header == ["runs", "N", "as far apart as found, widened"]
    assert table.rows == [["a", "2", "0.250"], ["a", "3", "0.200"]]


def test_what_is_written_is_read_back_and_drawn(tmp_path):
    show.save(widths.data(COMPARED), tmp_path / "widths.csv")
    read = widths.read(tmp_path / "widths.csv")
    assert list(read) == list(COMPARED) and list(read["one"]) == list(COMPARED["one"])
    for name, own in COMPARED.items():
        for label, comparison in own.items():
            for values, again in zip(comparison, read[name][label], strict=True):
                np.testing.assert_array_equal(values, again)
    widths.draw(read, tmp_path / "widths.png")
    assert (tmp_path / "widths.png").stat().st_size > 5000

"""Always the same answer stands beside every table and curve of a study."""

import numpy as np
import pytest

from tests.study.tiny_studies import Line, Told, arm, study
from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.figures import Curve
from tff_agg.experiment.study.report import Report, search_table
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.metrics import ACCURACY
from tff_agg.recycling.series import ALWAYS_THE_SAME


@pytest.fixture
def found(tmp_path):
    line = Line("row", "last", arm("DP-SGD", 1.0, 2.0))
    told = Told(lambda config, *_: 0.1 * config.learning_rate)
    return perform(study(line, train=told, drawn=lambda line, c: (4, 8)), tmp_path)


def test_a_study_asks_the_task_of_the_data_that_it_is_judged_on(found):
    for split, own in (("test", None), ("heldout", "heldout")):
        task = found.study.task(found.lines[0].arm.config)
        labels = task.fixed_sample(split, 30)["all"][1]
        share = np.bincount(labels).max() / len(labels)
        assert found.trivial(own)["accuracy"] == pytest.approx(share)


def test_it_is_a_row_of_a_page_and_of_a_search_and_a_line_of_curves(found):
    page, shares = Report(), found.trivial()
    page.add_lines("table", found, ("row", "line"), lambda line: line.key)
    shown = ACCURACY.show(shares["accuracy"])
    *row, gain = page.tables["table"].rows[-1]
    assert (row, gain) == ([ALWAYS_THE_SAME, "", shown], "")
    # Programs get what was trained alone.
    assert ALWAYS_THE_SAME not in str(page.data["table"])
    searched = search_table(found).rows[-1]
    heldout = found.trivial("heldout")["accuracy"]
    assert searched == [ALWAYS_THE_SAME, "", ACCURACY.show(heldout)]
    page.add_curves("curves", found, {"": {"last": found.lines[0]}})
    assert page.figures["curves"].keywords["level"] == heldout


def test_lines_of_different_data_have_none(tmp_path):
    lines = Line("a", "last", arm("a")), Line("b", "last", arm("b", examples=100))
    told = Told(lambda *_: 0.1)
    assert perform(study(*lines, train=told), tmp_path).trivial() == {}


def test_a_table_of_cells_has_it_below(found):
    cells = {"8": {"baseline": [0.2], "UTA_inf": [0.3]}}
    table = show.cell_table("ε", cells, ACCURACY, trivial=0.05)
    assert table.rows[-1] == [ALWAYS_THE_SAME, "5.00", ""]


def test_in_a_picture_it_is_named_and_changes_no_view(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    panels = {
        name: {"last": Curve([1, 2], [values])}
        for name, values in {"one": [0.5, 0.6], "other": [0.3, 0.4]}.items()
    }
    for level in (None, 0.1):
        figures.curves(tmp_path / "a.png", panels, level=level)
    for without, having in zip(*(figure.axes for figure in drawn), strict=True):
        assert without.get_ylim() == having.get_ylim()
        assert having.lines[-1].get_label() == f"{ALWAYS_THE_SAME}: 10.00"

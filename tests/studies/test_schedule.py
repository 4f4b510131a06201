"""Figure 1: the schedule of the shift."""

import pytest

from stackoverflow.studies import schedule
from stackoverflow.task import StackOverflow
from tff_agg.experiment.study import figures


def test_the_shares_of_both_groups_are_drawn_round_by_round(monkeypatch, tmp_path):
    drawn = {}
    real = figures.curves

    def curves(path, panels, *rest, **more):
        drawn.update(panels)
        real(path, panels, *rest, **more)

    monkeypatch.setattr(figures, "curves", curves)
    options = schedule.ScheduleOptions(out=str(tmp_path), pds_period=4, rounds=6)
    assert schedule.command(StackOverflow).run(options) == 0
    ((title, groups),) = drawn.items()
    assert title == "linear shift with a period of 4 rounds"
    # p(D_1, t) = |2 (t mod T) / T - 1|, and what is left.
    assert groups["questions"].values == [[1.0, 0.5, 0.0, 0.5, 1.0, 0.5]]
    assert groups["answers"].values == [[0.0, 0.5, 1.0, 0.5, 0.0, 0.5]]
    assert (tmp_path / "figure1.png").stat().st_size > 1000


@pytest.mark.parametrize("bad", [{"pds_schedule": "zigzag"}, {"pds_period": 1}])
def test_what_is_no_schedule_is_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        schedule.ScheduleOptions(**bad)

"""What the bars of binaries show."""

import pytest

from tff_agg.experiment import progress, terminal
from tff_agg.recycling.metrics import ACCURACY

FACTS = {"client_work/train/loss": 5.0, "epsilon_so_far": 1.0, "clients": 7}


@pytest.mark.parametrize(("dropped", "is_shown"), [(0, False), (3, True)])
def test_clients_that_were_dropped_are_shown(capsys, dropped, is_shown):
    bar = terminal.TrainingBar([ACCURACY])
    bar.on_start(0, 2)
    bar.on_round(1, FACTS | {"aggregator/non_finite": dropped})
    bar.close()
    assert ("not finite=3 of 7" in capsys.readouterr().err) == is_shown


def test_each_stage_has_a_line_of_its_own(capsys):
    bar = progress.StageBar()
    for stage, done, total in (
        ("read", 0, 0),  # how much there is to read is not known
        ("read", 5, 0),
        ("write", 1, 2),
        ("write", 2, 2),
        ("write", 2, 2),
        ("write", 1, 2),  # once more
        ("write", 1, 4),  # and for more
        ("score", 12_000, 24_000),
    ):
        bar(stage, done, total)
    bar.close()
    bar.close()
    ends = [line.split("\r")[-1] for line in capsys.readouterr().err.split("\n")]
    ends = [line for line in ends if line]
    assert [line.split()[0] for line in ends] == ["read:", *3 * ["write:"], "score:"]
    shown = ("5.00it", " 2/2 ", " 1/2 ", " 1/4 ", " 12.0k/24.0k ")
    assert all(part in line for part, line in zip(shown, ends, strict=True))

"""What the bar of a training run shows."""

import pytest

from tff_agg.experiment import terminal
from tff_agg.recycling.metrics import ACCURACY

FACTS = {"client_work/train/loss": 5.0, "epsilon_so_far": 1.0, "clients": 7}


@pytest.mark.parametrize(("dropped", "is_shown"), [(0, False), (3, True)])
def test_clients_that_were_dropped_are_shown(capsys, dropped, is_shown):
    bar = terminal.ProgressBar([ACCURACY])
    bar.on_start(0, 2)
    bar.on_round(1, FACTS | {"aggregator/non_finite": dropped})
    bar.close()
    assert ("not finite=3 of 7" in capsys.readouterr().err) == is_shown

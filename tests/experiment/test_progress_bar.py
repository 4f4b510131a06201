"""What the bar of a training run shows."""

import pytest

from stackoverflow import terminal

FACTS = {"client_work/train/loss": 5.0, "epsilon": 1.0}


@pytest.mark.parametrize(("dropped", "is_told"), [(0, False), (3, True)])
def test_clients_that_were_dropped_are_told(capsys, dropped, is_told):
    bar = terminal.ProgressBar(rounds=2)
    bar.on_start(0, 2)
    bar.on_round(1, FACTS | {"aggregator/non_finite": dropped})
    bar.close()
    assert ("not finite=3 clients" in capsys.readouterr().err) == is_told

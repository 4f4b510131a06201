"""How far apart checkpoints are taken, and how much their bars are widened."""

import numpy as np
import pytest

from tff_agg.recycling import separation


def chain(left, rounds, predictions=2000, seed=0):
    """A memory of which `left` is left after a round; variance one from the start."""
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(predictions)]
    for _ in range(rounds):
        fresh = rng.standard_normal(predictions)
        values.append(left * values[-1] + np.sqrt(1 - left**2) * fresh)
    return np.array(values)


def memory(values, **how):
    rounds = separation.rounds_to_compare(range(len(values)), **how)
    period = how.get("period", 1)
    return separation.memory_of(
        values[rounds], rounds, total=len(values) - 1, period=period
    )


def test_correlations_are_those_of_the_chain():
    found = memory(chain(0.9, 128))
    assert found.variance == pytest.approx(1.0, rel=0.1)
    np.testing.assert_allclose(
        found.correlations, 0.9 ** np.array(found.lags), atol=0.05
    )
    assert found.separation == pytest.approx(np.log(0.2) / np.log(0.9), abs=2)


def test_checkpoints_without_memory_follow_each_other():
    values = chain(0.0, 128)
    found = memory(values)
    assert found.separation == 1
    assert found.checkpoints(3) == [126, 127, 128]
    assert found.widening(values[126:]) == pytest.approx(1.0, rel=0.1)


def test_a_longer_memory_takes_checkpoints_further_apart():
    apart = [memory(chain(left, 256)).separation for left in (0.3, 0.8, 0.95)]
    assert apart == sorted(apart) and apart[0] < apart[-1]


@pytest.mark.parametrize("left", [0.0, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_widened_bars_are_right_however_many_checkpoints_there_are(left, count):
    values = chain(left, 256)
    found = memory(values)
    used = values[found.checkpoints(count)]
    deviation = np.sqrt(used.var(axis=0, ddof=1).mean())
    assert found.widening(used) * deviation == pytest.approx(1.0, rel=0.25)


def test_a_random_walk_is_widened_to_its_whole_length():
    steps = np.random.default_rng(0).standard_normal((401, 2000))
    values = np.cumsum(steps, axis=0)
    found = memory(values)
    used = values[found.checkpoints(5)]
    spread = np.sqrt(used.var(axis=0, ddof=1).mean())
    assert spread < 0.45 * 20
    assert found.widening(used) * spread == pytest.approx(20, rel=0.3)


def test_a_steady_climb_is_no_noise():
    values = chain(0.9, 128)
    climbing = values + np.arange(129.0)[:, None]
    assert memory(climbing).variance == pytest.approx(memory(values).variance)
    assert memory(climbing).separation == memory(values).separation


def test_the_swing_of_a_shift_is_no_noise():
    t = np.arange(401.0)
    swing = 5 * np.abs(2 * (t % 40) / 40 - 1)
    values = chain(0.5, 400) + swing[:, None]
    found = memory(values, period=40)
    assert all(lag % 40 == 0 for lag in found.lags)
    assert found.variance == pytest.approx(1.0, rel=0.1)
    assert found.checkpoints(4) == [280, 320, 360, 400]
    # Without the period the swing would count as noise.
    assert memory(values).variance > 2


def test_compared_are_rounds_that_are_stored():
    kept = [*range(0, 1800, 10), *range(1800, 1993)]
    found = separation.rounds_to_compare(kept)
    assert found[0] == 1000 and found[-1] == 1980 and set(found) <= set(kept)
    assert len({*np.diff(found)}) == 1 and len(found) <= 65
    newest_only = separation.rounds_to_compare(range(1801, 2001))
    assert newest_only[0] >= 1801
    shifted = separation.rounds_to_compare(kept, period=200)
    assert shifted[0] <= 1992 - 800 and 200 % (shifted[1] - shifted[0]) == 0
    with pytest.raises(ValueError, match="one checkpoint from round 7"):
        separation.rounds_to_compare([7])


def test_too_few_rounds_tell_nothing():
    assert separation.memory_of(np.zeros((2, 5)), [8, 9], total=9) is None
    assert separation.memory_of(np.ones((9, 5)), range(9), total=9) is None


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match=r"spaces of \[1, 2\]"):
        separation.memory_of(np.zeros((3, 1)), [1, 2, 4], total=4)
    with pytest.raises(ValueError, match="period 5"):
        separation.memory_of(np.zeros((3, 1)), [0, 2, 4], total=4, period=5)
    found = memory(chain(0.9, 128))
    with pytest.raises(ValueError, match=r"count .* from 2 to"):
        found.checkpoints(1)
    with pytest.raises(ValueError, match=f"to {found.most}"):
        found.checkpoints(1000)

"""Poisson batches: pure functions of (secret, step), in the plan's chances."""

import dataclasses

import numpy as np
import pytest

from pds import groups, poisson_sampler, schedule
from pds.poisson_sampler import PoissonSampler
from tests.sampled_plans import sampled_plan
from tff_agg import backends
from tff_agg.noise import generators, seeds
from tff_agg.privacy import Loss, Plan, sampled

EXAMPLES, BATCH, STEPS = 1000, 200, 300


def plain(seed=(1, 2), steps=STEPS):
    return PoissonSampler(groups.everyone(np.arange(EXAMPLES)), BATCH, steps, seed)


def shifting(seed=(1, 2), steps=STEPS, period=20):
    labels = np.arange(EXAMPLES) % 10
    halves = groups.by_label_parity(labels)
    return PoissonSampler(halves, BATCH, steps, seed, schedule.linear(period))


def plan_of(sampler, **changes):
    values = {
        "clip_norm": 1.0,
        "noise_multiplier": 8.0,
        "batch_size": BATCH,
        "population_size": EXAMPLES,
        "steps": STEPS,
        "delta": 1e-5,
        "participation": sampler.participation,
    }
    return sampled_plan(**(values | changes))


def epsilon_of(chance):
    return Loss(kinds=(sampled.steps_of(8.0, chance, STEPS),)).epsilon(1e-5)


KEY = (1, -2, 3, 2**64 - 4)


@pytest.mark.parametrize("seed", [(1, 2), KEY], ids=["Philox", "AES"])
@pytest.mark.parametrize("make", [plain, shifting])
def test_batches_are_what_plan_and_statistics_want(make, seed):
    sampler = make(seed=seed)
    plan_of(sampler).check_sampler(sampler)
    sizes = np.array([len(sampler.users(t)) for t in range(STEPS)])
    assert abs(sizes.mean() - BATCH) < 6 * sizes.std() / np.sqrt(STEPS)
    assert sizes.std() > 5


@pytest.mark.parametrize("seed", [(1, 2), KEY], ids=["Philox", "AES"])
def test_batches_are_a_function_of_secret_and_step(seed):
    first, again, other = plain(seed), plain(seed), plain((*seed[:-1], 3))
    assert np.array_equal(first.users(7), again.users(7))
    assert not np.array_equal(first.users(7), first.users(8))
    assert not np.array_equal(first.users(7), other.users(7))
    # Steps and secrets are independent: two batches share what chance lets them.
    for one, two in (
        (first.users(7), first.users(8)),
        (first.users(7), other.users(7)),
    ):
        shared = len(np.intersect1d(one, two))
        assert abs(shared - EXAMPLES * 0.04) < 6 * np.sqrt(EXAMPLES * 0.04)


def test_four_words_draw_each_example_by_a_word_of_the_cipher(monkeypatch):
    monkeypatch.setattr(poisson_sampler, "_BLOCK", 300)
    key = seeds.seed_in(backends.NUMPY, KEY)

    def words(*counts):
        leaf = generators.SAMPLING_LEAF
        parts = [
            generators.cipher_words(key, 7, leaf, 0, block, count).tolist()
            for block, count in enumerate(counts)
        ]
        return [word for part in parts for word in part]

    expected = [
        i for i, word in enumerate(words(300, 300, 300, 100)) if word < int(0.2 * 2**64)
    ]
    assert plain(KEY).users(7).tolist() == expected
    moved = shifting(KEY)
    even, odd = (group.users for group in moved.groups)
    below = np.repeat([int(p * 2**64) for p in moved.chances(7)], 500).tolist()
    drawn = words(300, 200, 300, 200)
    taken = [word < most for word, most in zip(drawn, below, strict=True)]
    expected = np.sort(np.concatenate([even, odd])[taken])
    assert moved.users(7).tolist() == expected.tolist()
    # No leaf of a model has the sampler's name.
    most = generators.MAX_LEAVES - generators.RESERVED_LEAVES
    assert most <= generators.SAMPLING_LEAF


def test_the_cipher_takes_all_where_the_chance_is_one():
    whole = PoissonSampler(groups.everyone(np.arange(50)), 50, 3, KEY)
    assert whole.users(1).tolist() == list(range(50))


def test_the_fingerprint_says_nothing_of_the_secret():
    assert plain().fingerprint == plain(seed=(3, 4)).fingerprint
    assert plain(KEY).fingerprint == plain((5, 6, 7, 8)).fingerprint
    assert plain(KEY).fingerprint != plain().fingerprint
    assert plain().fingerprint != plain(steps=STEPS - 1).fingerprint
    assert plain().fingerprint != shifting().fingerprint


def test_a_shift_moves_from_one_group_to_the_other():
    sampler = shifting()
    even = sampler.groups[0].users
    assert np.isin(sampler.users(0), even).all()
    assert not np.isin(sampler.users(10), even).any()
    assert sampler.chances(5) == (0.2, 0.2)
    assert sampler.chances(0) == (0.4, 0.0)


def test_the_accountant_counts_the_shift():
    # Few different chances: a quick accountant.
    plan = plan_of(shifting(period=4))
    same = plan_of(plain())
    # Sampled at up to twice the rate half of the time: dearer than always the same.
    assert plan.epsilon > 1.1 * same.epsilon
    at_most = epsilon_of(0.4)
    assert plan.epsilon < at_most
    assert plan.epsilon_after(5) < plan.epsilon_after(20) < plan.epsilon
    assert plan.epsilon_so_far(20) >= plan.epsilon_after(20)
    # Constant chances, given step by step, are Poisson sampling.
    constant = (0.2,) * STEPS
    assert epsilon_of(constant) == pytest.approx(same.epsilon)


def test_noise_is_found_for_a_shift():
    plan = plan_of(shifting(steps=60, period=4), steps=60)
    values = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
    for name in ("noise_multiplier", "claimed_epsilon", "noise_seed_is_known"):
        del values[name]
    found = Plan.for_epsilon(1.0, **values)
    assert 0.98 < found.epsilon <= 1.0


class FixedSize:
    """Always takes the same number of examples."""

    def __init__(self, like):
        self._like = like
        self.participation, self.groups = like.participation, like.groups
        self.population_size, self.rounds = like.population_size, like.rounds

    def users(self, t):
        chosen = []
        for group, chance in zip(self.groups, self._like.chances(t), strict=True):
            generator = np.random.default_rng([t, len(chosen)])
            count = round(chance * len(group.users))
            chosen.append(generator.permutation(group.users)[:count])
        return np.concatenate(chosen)


@pytest.mark.parametrize("make", [plain, shifting])
def test_a_fixed_size_is_refused(make):
    sampler = make()
    with pytest.raises(ValueError, match="vary too little for Poisson sampling"):
        plan_of(sampler).check_sampler(FixedSize(sampler))


def test_another_shift_is_refused():
    with pytest.raises(ValueError, match="counts on other probabilities"):
        plan_of(shifting()).check_sampler(shifting(period=40))
    with pytest.raises(ValueError, match="hold for"):
        plan_of(plain()).check_sampler(shifting())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 1001}, "batch_size=1001 must be from 1 to the 1,000"),
        ({"schedule": schedule.linear(5)}, "two groups need a schedule"),
        ({"groups": groups.everyone([1, 2])}, "numbered from 0"),
    ],
)
def test_it_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plain(), **changes)

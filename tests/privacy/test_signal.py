"""Noise against signal: what is said of a run before its first round."""

import math

import numpy as np
import pytest

from tff_agg import noise
from tff_agg.privacy import PrivacyRecipe, signal

STRANGER = {
    "rounds": 300, "epsilon": 8.0, "min_separation": 43, "server_momentum": 0.95,
    "clip_norm": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "mechanism",
    [
        noise.identity(),
        noise.tree("plain", 20),
        noise.tree("honaker", 20),
        noise.banded(20, 4),
        noise.blt(20, 2),
    ],
    ids=lambda m: m.name,
)
def test_norms_are_those_of_the_noise_that_is_drawn(mechanism):
    like = {"w": np.zeros(20_000, np.float32)}
    state = mechanism.init(like, seed=(1, 2))
    steps = []
    for _ in range(20):
        state, drawn = mechanism.next(state, like)
        steps.append(np.asarray(drawn["w"], np.float64))
    found = signal.norms(mechanism, 20)
    assert math.sqrt(np.mean(np.square(steps))) == pytest.approx(found.step, rel=0.01)
    model = np.cumsum(steps, axis=0)
    assert math.sqrt(np.mean(np.square(model))) == pytest.approx(found.model, rel=0.02)


def test_the_norm_in_a_round_is_that_of_the_mean():
    plan = PrivacyRecipe(
        rounds=10, clients_per_round=50, clip_norm=0.5, noise_multiplier=1.0,
        mechanism="identity",
    ).build_plan()  # fmt: skip
    found = signal.Signal.of(plan, 400)
    assert found.noise == pytest.approx(20 * plan.noise_stddev / 50)
    assert found.most == 0.5
    # Independent noise adds up as a root: the mean over rounds of √t, over 10 rounds.
    expected = found.noise * math.sqrt(np.mean(np.arange(1, 11))) / (0.5 * 10)
    assert found.ratio == pytest.approx(expected)


def test_a_strangers_first_run_is_called_hopeless_and_is_told_what_helps():
    """The runs of the issue: 157,000 parameters, 5,477 users, ε = 8, 300 rounds."""
    recipe = PrivacyRecipe(**STRANGER, mechanism="tree")
    found = signal.Signal.of(recipe.build_plan(), 157_000)
    assert found.is_hopeless and found.ratio == pytest.approx(0.158, rel=0.02)
    assert "noise 33.6 against at most 1 in a round" in found.describe()
    helps = list(signal.remedies(recipe, 157_000, 4381))
    flags, ratio = helps[0]
    assert flags == "--mechanism=blt --server_momentum=0"
    assert ratio == pytest.approx(0.0735, rel=0.02)
    assert "--clients_per_round=400 --min_separation=10" in helps[2][0]
    ratios = [ratio for _, ratio in helps]
    assert ratios == sorted(ratios, reverse=True)


def test_what_is_said_warns_where_it_is_hopeless_only():
    hopeless, fine = (
        PrivacyRecipe(**STRANGER, mechanism="tree"),
        PrivacyRecipe(**(STRANGER | {"server_momentum": 0.0})),
    )
    lines = signal.told(hopeless.build_plan(), 157_000, hopeless, 4381)
    assert "Warning: this run is not expected to learn" in lines[1]
    assert "--server_momentum=0 it is 7.35 %: may learn." in lines[2]
    assert len(signal.told(fine.build_plan(), 157_000, fine, 4381)) == 1
    silent = PrivacyRecipe(noise_multiplier=0.0)
    assert signal.told(silent.build_plan(), 157_000, silent, 4381) == []


def test_the_clip_norm_changes_nothing_in_the_ratio():
    ratios = [
        signal.Signal.of(
            PrivacyRecipe(**(STRANGER | {"clip_norm": c})).build_plan(), 1000
        ).ratio
        for c in (0.1, 1.0)
    ]
    assert ratios[0] == pytest.approx(ratios[1])


def test_a_long_run_is_not_looked_at_round_by_round():
    plan = PrivacyRecipe(rounds=50_000, noise_multiplier=1.0, mechanism="tree")
    assert 0 < signal.Signal.of(plan.build_plan(), 1000).ratio < 0.1

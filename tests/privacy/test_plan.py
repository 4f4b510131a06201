"""The plan: figures that agree, contradictions refused, reports."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from tff_agg import noise
from tff_agg.privacy import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Plan,
    write_report,
)

ROUNDS = 2000


def plan(**changes):
    fields = {
        "clip_norm": 0.3,
        "cohort_size": 100,
        "rounds": ROUNDS,
        "mechanism": noise.tree(),
        "noise_multiplier": 0.341,
    }
    return Plan(**(fields | changes))


@pytest.mark.parametrize(
    "mechanism",
    [
        noise.identity(),
        noise.tree(),
        noise.tree("honaker", ROUNDS, completion=True),
        noise.restart_every(noise.tree(), 500),
        noise.banded_square_root(64),
        noise.blt(ROUNDS, 3),
    ],
    ids=lambda mechanism: mechanism.name,
)
@pytest.mark.parametrize(("sigma", "rho"), [(0.341, 4.30), (0.682, 1.075)])
def test_rho_is_that_of_the_multiplier_whatever_the_mechanism(mechanism, sigma, rho):
    made = plan(mechanism=mechanism, noise_multiplier=sigma)
    assert made.rho == pytest.approx(rho, abs=0.005)
    # The noise really is that much larger than what one user can do.
    assert made.noise_stddev == pytest.approx(sigma * 0.3 * made.sensitivity.value)
    largest_column = np.linalg.norm(
        (mechanism.encoder or mechanism.matrix)(ROUNDS), axis=0
    ).max()
    assert made.sensitivity.value == pytest.approx(largest_column)
    assert made.rho_if_read_as_per_node == pytest.approx(11 * made.rho)


def test_per_node_multipliers_have_a_name_and_a_way_of_their_own():
    made = Plan.from_per_node_multiplier(
        0.341, mechanism=noise.tree(), clip_norm=0.3, cohort_size=100, rounds=ROUNDS
    )
    assert made.rho == pytest.approx(47.3, abs=0.05)
    assert made.noise_stddev == pytest.approx(0.341 * 0.3)
    assert made.per_node_multiplier == pytest.approx(0.341)
    assert made.noise_multiplier == pytest.approx(0.341 / math.sqrt(11))
    with pytest.raises(ValueError, match="tree"):
        Plan.from_per_node_multiplier(
            0.3, mechanism=noise.identity(), clip_norm=1.0, cohort_size=1, rounds=2
        )
    with pytest.raises(ValueError, match="per-node"):
        _ = plan(mechanism=noise.identity()).per_node_multiplier


@pytest.mark.parametrize("schema", [AtMostOnce(), MinSeparation(342, 6)])
def test_plan_for_epsilon_reaches_it(schema):
    made = Plan.for_epsilon(
        8.0,
        clip_norm=1.0,
        cohort_size=10,
        rounds=ROUNDS,
        mechanism=noise.blt(ROUNDS, 2),
        participation=schema,
    )
    assert 8.0 - 1e-6 <= made.epsilon <= 8.0
    with pytest.raises(ValueError, match="noise_multiplier"):
        Plan.for_epsilon(8.0, noise_multiplier=1.0)


def test_spending_grows_to_the_whole():
    for mechanism in (noise.tree(), noise.blt(ROUNDS, 2)):
        made = plan(mechanism=mechanism, participation=MinSeparation(342, 6))
        spent = [made.rho_after(t) for t in (1, 100, 343, 1000, 1711, ROUNDS)]
        assert spent == sorted(spent)
        assert spent[0] < spent[-1] == pytest.approx(made.rho)
        assert made.epsilon_after(ROUNDS) == pytest.approx(made.epsilon)
    with pytest.raises(ValueError, match="2000 rounds, asked after 2001"):
        made.rho_after(2001)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"cohort_size": 0}, "cohort_size"),
        ({"cohort_size": 2.5}, "cohort_size"),
        ({"rounds": -1}, "rounds"),
        ({"noise_multiplier": -0.1}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"participation": MinSeparation(500, 6)}, "do not fit into rounds=2000"),
        ({"participation": FixedEpochOrder(500, 6)}, "do not fit"),
        ({"mechanism": noise.tree("honaker", 100)}, "built for 100 rounds"),
        ({"mechanism": noise.dense(8)}, "built for 8 rounds"),
        ({"claimed_sensitivity": 3.0}, "above claimed_sensitivity=3"),
        ({"claimed_sensitivity": -3.0}, "claimed_sensitivity"),
        ({"claimed_epsilon": 10.0}, "above claimed_epsilon=10"),
        ({"claimed_epsilon": 5.0, "noise_multiplier": 0.0}, "needs noise"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(**changes)


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="mechanism"):
        plan(mechanism="tree")
    with pytest.raises(TypeError, match="participation"):
        plan(participation="once")


def test_claims_that_hold_are_accepted():
    made = plan(claimed_sensitivity=math.sqrt(11), claimed_epsilon=17.7)
    assert made.sensitivity.value <= math.sqrt(11) + 1e-9
    assert plan(noise_multiplier=0.0).epsilon == math.inf


@dataclasses.dataclass
class FakeSampler:
    participation: object
    cohorts: list
    cohort_size: int = 2

    @property
    def rounds(self):
        return len(self.cohorts)

    def users(self, t):
        return np.array(self.cohorts[t])


def small(participation=None):
    return plan(
        rounds=3, cohort_size=2, participation=participation or MinSeparation(2)
    )


def test_samplers_that_keep_the_schema_are_accepted():
    small().check_sampler(FakeSampler(MinSeparation(2), [[1, 2], [3, 4], [1, 4][:1]]))
    small().check_sampler(FakeSampler(AtMostOnce(), [[1, 2], [3, 4], [5, 6]]))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (FakeSampler(MinSeparation(1), [[1], [2], [3]]), "allows more than"),
        (FakeSampler(MinSeparation(2), [[1], [2]]), "serves 2 rounds"),
        (FakeSampler(MinSeparation(2), [[1], [2], [3]], 7), "cohorts of 7"),
        # Says one thing and does another.
        (FakeSampler(MinSeparation(2), [[1], [2, 1], [3]]), r"user 1 .*\[0, 1\]"),
        (FakeSampler(MinSeparation(2), [[1, 1], [2], [3]]), r"user 1 .*\[0, 0\]"),
    ],
)
def test_samplers_that_do_not_are_refused(sampler, message):
    with pytest.raises(ValueError, match=message):
        small().check_sampler(sampler)


def test_at_most_once_is_not_kept_by_twice():
    with pytest.raises(ValueError, match="allows more"):
        small(AtMostOnce()).check_sampler(
            FakeSampler(MinSeparation(2), [[1], [2], [3]])
        )


def test_report_says_what_must_be_said(tmp_path):
    made = plan(participation=MinSeparation(342, 6))
    write_report(
        tmp_path, made, rounds_done=500, sampler_checked=True, run={"name": "trial"}
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "privacy_report.md",
        "privacy_report.json",
    }
    content = json.loads((tmp_path / "privacy_report.json").read_text())
    assert content["guarantee"]["rho"] == pytest.approx(made.rho)
    assert content["guarantee"]["rho_so_far"] == pytest.approx(made.rho_after(500))
    assert content["plan"]["sensitivity"] == pytest.approx(made.sensitivity.value)
    page = (tmp_path / "privacy_report.md").read_text()
    for words in (
        "4.3",
        "one user",
        "zero-out",
        "at least 342 apart",
        "Hyperparameter tuning",
        "Floating-point noise",
        "Secret sampling",
        "trusted",
        "per tree node",
        "trial",
        "cohorts were checked",
    ):
        assert words in page, words


def test_report_tells_what_was_not_checked_and_no_noise(tmp_path):
    write_report(tmp_path, plan())
    page = pathlib.Path(tmp_path / "privacy_report.md").read_text()
    assert "No sampler was checked" in page
    write_report(tmp_path, plan(noise_multiplier=0.0))
    content = json.loads((tmp_path / "privacy_report.json").read_text())
    assert content["guarantee"]["epsilon"] is None
    assert content["guarantee"]["statement"].startswith("none")

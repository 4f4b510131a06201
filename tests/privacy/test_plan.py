"""The plan: figures that agree, contradictions refused, reports."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from pds import everyone
from pds.poisson_sampler import PoissonSampler
from tff_agg import noise
from tff_agg.privacy import (
    AtMostOnce,
    FixedEpochOrder,
    Loss,
    MinSeparation,
    Plan,
    Release,
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
    other = made.to_json()["rho_if_read_as_per_node_multiplier"]
    assert other == pytest.approx(11 * made.rho)


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
    "changes", [{"noise_multiplier": 0.0}, {"noise_seed_is_known": True}]
)
def test_what_was_spent_without_a_guarantee_is_infinite(changes):
    made = plan(**changes)
    assert made.epsilon_so_far(3) == made.epsilon_after(3) == math.inf


SLOW = noise.restart_every(noise.blt_from((0.9, 0.3), (0.4, 0.3)), 50)


def test_the_spending_of_a_long_run_needs_few_matrices():
    """A matrix takes a second at 2,000 rounds: one for each round would take hours."""
    asked = []

    def counting(n):
        asked.append(n)
        return SLOW.matrix(n)

    made = plan(
        rounds=400,
        mechanism=dataclasses.replace(SLOW, matrix=counting),
        participation=MinSeparation(40, 6),
    )
    spent = [made.epsilon_so_far(t) for t in range(1, 401)]
    assert len(asked) <= 102
    assert spent == sorted(spent) and spent[-1] == made.epsilon
    for t in (1, 57, 203, 400):
        assert made.epsilon_after(t) <= spent[t - 1]
    assert made.epsilon_after(48) == spent[47] < spent[48]


def test_the_spending_is_exact_where_it_is_quick():
    for mechanism in (noise.tree(), noise.blt(ROUNDS, 2)):
        made = plan(mechanism=mechanism, participation=MinSeparation(342, 6))
        for t in (1, 343, 1999):
            assert made.epsilon_so_far(t) == made.epsilon_after(t)


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
    exact = plan().epsilon
    assert plan(claimed_epsilon=exact).claimed_epsilon == exact
    with pytest.raises(ValueError, match="above claimed_epsilon"):
        plan(claimed_epsilon=exact * (1 - 1e-8))


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


def test_a_sampler_that_cannot_list_its_users_is_refused():
    """It may say what it likes of itself; nobody could look."""

    @dataclasses.dataclass
    class Secretive:
        participation: object = dataclasses.field(default_factory=AtMostOnce)
        rounds: int = 3
        cohort_size: int = 2

    with pytest.raises(ValueError, match=r"Secretive has no users: .*needs"):
        small().check_sampler(Secretive())
    with pytest.raises(ValueError, match="object has no participation, rounds"):
        small().check_sampler(object())


def test_a_sampler_of_examples_is_refused():
    one_by_one = PoissonSampler(everyone(np.arange(20)), 2, 3, seed=(1, 2))
    with pytest.raises(TypeError, match="participation must be AtMostOnce"):
        small().check_sampler(one_by_one)


def test_epochs_beyond_the_promise_are_refused():
    thrice = FakeSampler(FixedEpochOrder(1, 2), [[1], [1], [1]])
    with pytest.raises(ValueError, match="user 1 takes part 3 times, allowed are 2"):
        small(FixedEpochOrder(1, 2)).check_sampler(thrice)


def test_at_most_once_is_not_kept_by_twice():
    with pytest.raises(ValueError, match="allows more"):
        small(AtMostOnce()).check_sampler(
            FakeSampler(MinSeparation(2), [[1], [2], [3]])
        )


def report_of(folder, made, **details):
    write_report(folder, made, **details)
    content = json.loads((folder / "privacy_report.json").read_text())
    return content, (folder / "privacy_report.md").read_text()


def figures_of(content):
    """Yields all that a report says of ρ and ε, by name, wherever it stands."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            inside = {f"{key}.{k}": v for k, v in value.items()}
            yield from figures_of(inside)
        elif any(word in key for word in ("rho", "epsilon")):
            yield key, value


def test_a_known_seed_leaves_no_guarantee(tmp_path):
    """Whatever the noise: nobody can take a figure for a guarantee."""
    made = Plan.for_epsilon(
        8.0,
        clip_norm=1.0,
        cohort_size=10,
        rounds=16,
        mechanism=noise.tree(),
        noise_seed_is_known=True,
    )
    assert made.no_guarantee == "none: the noise seed is known"
    assert made.nominal_epsilon == pytest.approx(8.0, abs=1e-5)
    assert made.nominal_rho == pytest.approx(0.5 / made.noise_multiplier**2)
    for value in (made.rho, made.epsilon, made.training_rho, *made.epsilons.values()):
        assert value == math.inf
    assert made.rho_after(5) == made.epsilon_after(5) == math.inf
    content, page = report_of(tmp_path, made, rounds_done=5)
    assert content["guarantee"]["statement"] == "none: the noise seed is known"
    found = dict(figures_of(content))
    assert len(found) >= 11 and set(found.values()) == {None}, found
    assert "none: the noise seed is known" in page and "VOID" in page
    assert "-zCDP" not in page and "∞" not in page
    # The noise itself, and so the run, is the very same.
    secret = dataclasses.replace(made, noise_seed_is_known=False)
    assert secret.noise_stddev == made.noise_stddev
    assert secret.no_guarantee is None and secret.epsilon <= 8.0


VOCABULARY = Release(
    "vocabulary", rho=0.02, delta=1e-7, method="noisy votes", is_gaussian=True
)


def test_releases_before_training_are_counted(tmp_path):
    made = plan(releases=[VOCABULARY])
    assert made.training_rho == pytest.approx(4.29993, abs=1e-5)
    assert made.rho == pytest.approx(made.training_rho + 0.02)
    # The tight figure of one Gaussian mechanism with all the ρ, at what is left of δ.
    together = Loss(mu=math.sqrt(2 * made.rho))
    assert made.epsilon == pytest.approx(together.epsilon(9e-7))
    assert made.epsilon > plan().epsilon
    assert made.epsilons["tight"] == pytest.approx(made.epsilon)
    assert made.rho_after(ROUNDS) == pytest.approx(made.rho)
    assert made.rho_after(1) == pytest.approx(plan().rho_after(1) + 0.02)
    content, page = report_of(tmp_path, made)
    assert content["releases"] == [VOCABULARY.to_json()]
    assert content["guarantee"]["delta_of_releases"] == 1e-7
    for words in ("4.32 = 4.3 (training) + 0.02 (vocabulary)", "1e-07", "noisy votes"):
        assert words in page, words
    assert "None is counted" in report_of(tmp_path, plan())[1]


def test_a_plan_for_epsilon_leaves_room_for_the_releases():
    common = {
        "clip_norm": 1.0,
        "cohort_size": 10,
        "rounds": 16,
        "mechanism": noise.tree(),
    }
    alone = Plan.for_epsilon(8.0, **common)
    made = Plan.for_epsilon(8.0, releases=[VOCABULARY], **common)
    assert 8.0 - 1e-5 <= made.epsilon <= 8.0
    assert made.noise_multiplier > alone.noise_multiplier
    with pytest.raises(ValueError, match=r"vocabulary spent 0\.02: nothing is left"):
        Plan.for_epsilon(0.5, releases=[VOCABULARY], **common)
    with pytest.raises(ValueError, match=r"delta=1e-07 must be above .*vocabulary"):
        Plan.for_epsilon(8.0, releases=[VOCABULARY], delta=1e-7, **common)


def test_a_release_of_another_kind_is_not_taken_for_a_gaussian(tmp_path):
    """One ρ, two ε: what is merely ρ-zCDP may reveal more than a Gaussian mechanism."""
    other = dataclasses.replace(VOCABULARY, is_gaussian=False)
    gaussian, made = plan(releases=[VOCABULARY]), plan(releases=[other])
    assert made.rho == pytest.approx(gaussian.rho)
    # Rényi divergences at every order are at most ρα; ε follows from these alone.
    orders = 1 + np.geomspace(0.02, 50, 4000)
    found = made.rho * orders + np.log1p(-1 / orders)
    found -= (math.log(9e-7) + np.log(orders)) / (orders - 1)
    assert made.epsilon == pytest.approx(found.min(), rel=1e-3)
    assert made.epsilon > gaussian.epsilon + 0.5
    assert made.epsilon_so_far(1) >= made.epsilon_after(1) > gaussian.epsilon_after(1)
    reached = Plan.for_epsilon(
        8.0,
        clip_norm=1.0,
        cohort_size=10,
        rounds=16,
        mechanism=noise.tree(),
        releases=[other],
    )
    assert 8.0 - 1e-9 <= reached.epsilon <= 8.0
    content, _ = report_of(tmp_path, made)
    assert content["releases"][0]["is_gaussian"] is False


@pytest.mark.parametrize("bad", [{"rho": -1.0}, {"rho": math.inf}, {"delta": 1.0}])
def test_releases_are_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Release(**({"name": "x", "rho": 0.1} | bad))


def test_the_report_tells_who_is_scored_on(tmp_path):
    content, page = report_of(tmp_path, plan())
    assert content["evaluation"]["users_shared_with_training"] is None
    assert "was not counted" in page
    shared = {"heldout": 0, "test": 12}
    content, page = report_of(tmp_path, plan(), shared_users=shared)
    assert content["evaluation"]["users_shared_with_training"] == shared
    assert "0 are also in the heldout and 12 are also in the test data" in page
    assert "computed on training users' data" in page
    page = report_of(tmp_path, plan(), shared_users={"heldout": 0, "test": 0})[1]
    assert "No user of the training data is in the heldout or the test data" in page


def test_figures_so_far_are_for_a_round_fixed_in_advance(tmp_path):
    content, page = report_of(tmp_path, plan(), rounds_done=500)
    assert "fixed in advance" in content["guarantee"]["so_far"]
    assert content["guarantee"]["so_far"] in page


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


def test_the_report_assumes_that_the_first_weights_owe_the_users_nothing(tmp_path):
    """A run from trained weights keeps its figures, whatever these were trained on."""
    content, page = report_of(tmp_path, plan())
    assert any("not on record" in line for line in content["assumed"])
    assert "if they were trained on these data, that was a release" in page
    content, page = report_of(
        tmp_path, plan(), initial_weights="a checkpoint trained on public text"
    )
    assert "protected data: a checkpoint trained on public text." in page
    assert not any("not on record" in line for line in content["assumed"])


def test_report_tells_what_was_not_checked_and_no_noise(tmp_path):
    write_report(tmp_path, plan())
    page = pathlib.Path(tmp_path / "privacy_report.md").read_text()
    assert "No sampler was checked" in page
    write_report(tmp_path, plan(noise_multiplier=0.0))
    content = json.loads((tmp_path / "privacy_report.json").read_text())
    assert content["guarantee"]["epsilon"] is None
    assert content["guarantee"]["statement"].startswith("none")

"""What the sampler promises: purity, participation, shares, and no silent shortage."""

import logging
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pds import (
    ExhaustedError,
    Group,
    ParticipationError,
    Sampler,
    check_participation,
    constant,
    cosine,
    everyone,
    linear,
    step,
)
from tff_agg.privacy.cohorts import violation
from tff_agg.privacy.participation import AtMostOnce, FixedEpochOrder, MinSeparation

PINNED = [[472, 381, 843, 107, 817], [800, 81, 617, 309, 737], [743, 243, 845, 11, 755]]
SCHEMAS = [
    AtMostOnce(),
    MinSeparation(7, 3),
    MinSeparation(5),
    FixedEpochOrder(20),
    FixedEpochOrder(15, epochs=2),
]


def two_groups(users=4000, overlap=0.5, seed=0):
    """Returns two groups; a share of the users is in both."""
    kind = np.random.default_rng(seed).random(users)
    numbers = np.arange(users) + 1000
    first = numbers[kind < (1 + overlap) / 2]
    second = numbers[kind >= (1 - overlap) / 2]
    return Group("question", first), Group("answer", second)


def make(**changes):
    arguments = {
        "groups": two_groups(),
        "cohort_size": 20,
        "rounds": 60,
        "participation": AtMostOnce(),
        "seed": 3,
        "schedule": linear(20),
    }
    return Sampler(**(arguments | changes))


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("split", ["binomial", "fixed"])
def test_cohorts_keep_the_schema_across_both_groups(schema, split):
    sampler = make(participation=schema, split=split)
    report = check_participation(sampler)
    assert report.participations == 60 * 20
    groups = {group.name: set(group.users.tolist()) for group in sampler.groups}
    for t in range(60):
        cohort = sampler.sample(t)
        assert len({user for user, _ in cohort}) == 20
        assert all(user in groups[group] for user, group in cohort)


def test_users_come_back_as_soon_and_as_often_as_allowed():
    groups = everyone(np.arange(40))
    sampler = make(
        groups=groups,
        schedule=None,
        cohort_size=10,
        rounds=12,
        participation=MinSeparation(4, 3),
    )
    report = check_participation(sampler)
    assert (report.most, report.closest, report.users) == (3, 4, 40)


def test_epochs_repeat_the_same_order():
    sampler = make(
        participation=FixedEpochOrder(15),
        groups=everyone(np.arange(300)),
        schedule=None,
        rounds=45,
    )
    for t in range(15):
        assert sampler.users(t).tolist() == sampler.users(t + 15).tolist()
        assert sampler.users(t).tolist() == sampler.users(t + 30).tolist()
    first_epoch = np.concatenate([sampler.users(t) for t in range(15)])
    assert sorted(first_epoch.tolist()) == list(range(300))


def test_users_of_a_fixed_order_leave_after_their_epochs():
    """Old users give their place to new ones, and the end is a shortage."""
    order = FixedEpochOrder(5, epochs=2)
    arguments = {"groups": everyone(np.arange(100)), "schedule": None}
    sampler = make(participation=order, cohort_size=10, rounds=20, **arguments)
    assert check_participation(sampler).most == 2
    for t in range(5):
        first, second, third, fourth = (set(sampler.users(t + 5 * e)) for e in range(4))
        assert first == second and third == fourth and not first & third
    with pytest.raises(ExhaustedError, match="round 20"):
        make(participation=order, cohort_size=10, rounds=21, **arguments)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_asking_in_any_order_and_anew_gives_the_same_cohorts(schema):
    sampler = make(participation=schema)
    forwards = [sampler.sample(t) for t in range(60)]
    order = np.random.default_rng(1).permutation(60)
    fresh = make(participation=schema)
    asked = {t: fresh.sample(int(t)) for t in order}
    assert [asked[t] for t in range(60)] == forwards
    assert fresh.fingerprint == sampler.fingerprint
    assert make(participation=schema, seed=4).fingerprint != sampler.fingerprint


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_longer_run_begins_like_a_shorter_one(schema):
    short, long = make(participation=schema), make(participation=schema, rounds=100)
    for t in range(60):
        assert short.sample(t) == long.sample(t)


def test_another_process_draws_the_same_cohorts():
    code = (
        "import numpy as np\n"
        "from pds import Sampler, everyone\n"
        "from tff_agg.privacy.participation import AtMostOnce\n"
        "s = Sampler(everyone(np.arange(500)), 10, 30, AtMostOnce(), 7)\n"
        "print(s.fingerprint)"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=pathlib.Path(__file__).parents[2],
    ).stdout.strip()
    sampler = Sampler(everyone(np.arange(500)), 10, 30, AtMostOnce(), 7)
    assert seen == sampler.fingerprint


def test_cohorts_are_pinned():
    # A changed stream would break the resumption of runs of an earlier version.
    sampler = Sampler(everyone(np.arange(1000)), 5, 3, AtMostOnce(), seed=11)
    assert [sampler.users(t).tolist() for t in range(3)] == PINNED


def share_p_value(sampler, schedule, rounds):
    """Returns how likely the observed shares are if `schedule` is true."""
    observed = np.array([(sampler.group_indices(t) == 0).sum() for t in range(rounds)])
    expected = np.array([schedule.share(t) for t in range(rounds)])
    inside = (expected > 0) & (expected < 1)
    if (observed[~inside] != sampler.cohort_size * expected[~inside]).any():
        return 0.0
    n = sampler.cohort_size
    deviation = (observed[inside] - n * expected[inside]) / np.sqrt(
        n * expected[inside] * (1 - expected[inside])
    )
    return float(stats.chi2.sf((deviation**2).sum(), inside.sum()))


@pytest.mark.parametrize("true", [linear(40), cosine(40), constant(0.3), step(40)])
def test_binomial_shares_follow_the_schedule_and_no_other(true):
    sampler = make(groups=two_groups(40_000), cohort_size=50, rounds=160, schedule=true)
    if true.shape != "step":  # nothing is random there; the exact check is below
        assert share_p_value(sampler, true, 160) > 1e-4
    else:
        assert all(
            (sampler.group_indices(t) == 0).mean() == true.share(t) for t in range(160)
        )
    for wrong in (linear(38), cosine(42), constant(0.4), linear(80)):
        assert share_p_value(sampler, wrong, 160) < 1e-6


def test_binomial_split_has_binomial_spread_and_fixed_has_none():
    binomial = make(
        groups=two_groups(60_000), cohort_size=100, rounds=400, schedule=constant(0.4)
    )
    counts = np.array([(binomial.group_indices(t) == 0).sum() for t in range(400)])
    ratio = counts.var(ddof=1) / (100 * 0.4 * 0.6)
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], 399) / 399
    assert low < ratio < high
    fixed = make(
        groups=two_groups(60_000),
        cohort_size=100,
        rounds=40,
        schedule=linear(40),
        split="fixed",
    )
    for t in range(40):
        assert (fixed.group_indices(t) == 0).sum() == round(100 * linear(40).share(t))


def test_users_are_drawn_uniformly():
    counts = np.zeros(100)
    for seed in range(300):
        sampler = Sampler(everyone(np.arange(100)), 5, 4, AtMostOnce(), seed)
        for t in range(4):
            counts[sampler.users(t)] += 1
    # Draws of one run are without replacement, so the spread is below the χ² one.
    statistic = ((counts - 60) ** 2 / 60).sum() / (1 - 20 / 100)
    assert 1e-4 < stats.chi2.sf(statistic, 99) < 1 - 1e-4


def small_groups():
    """Ten users ask, ten others answer."""
    return Group("question", np.arange(10)), Group("answer", np.arange(10, 20))


def test_a_shortage_is_an_error_that_names_round_group_and_numbers():
    with pytest.raises(ExhaustedError, match=r"round 2: group 'question' has 2 .* 4"):
        make(
            groups=small_groups(),
            cohort_size=4,
            rounds=5,
            schedule=constant(1.0),
            when_exhausted="error",
        )


def test_the_other_group_fills_in_and_the_log_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        sampler = make(
            groups=small_groups(),
            cohort_size=4,
            rounds=5,
            schedule=constant(1.0),
            when_exhausted="fill_from_other",
        )
    assert "round 2: group 'question' has 2 users left of the 4" in caplog.text
    assert [len(sampler.sample(t)) for t in range(5)] == [4] * 5
    assert [(sampler.group_indices(t) == 1).sum() for t in range(5)] == [0, 0, 2, 4, 4]
    assert [tuple(s) for s in sampler.shortages] == [
        (2, "question", 4, 2),
        (3, "question", 4, 0),
        (4, "question", 4, 0),
    ]
    assert "3 rounds fall short" in sampler.describe()
    check_participation(sampler, schema=AtMostOnce())
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        sampler.sample(3)
    assert "round 3" in caplog.text and "fill_from_other" in caplog.text


def test_filling_ends_in_an_error_when_nobody_is_left():
    with pytest.raises(ExhaustedError, match="round 5"):
        make(
            groups=small_groups(),
            cohort_size=4,
            rounds=6,
            schedule=constant(1.0),
            when_exhausted="fill_from_other",
        )


def test_cohorts_can_shrink_to_nothing(caplog):
    with caplog.at_level(logging.WARNING):
        sampler = make(
            groups=small_groups(),
            cohort_size=4,
            rounds=5,
            schedule=constant(1.0),
            when_exhausted="smaller_cohort",
        )
    assert [len(sampler.sample(t)) for t in range(5)] == [4, 4, 2, 0, 0]
    assert "smaller_cohort" in caplog.text


def test_the_overlap_counts_once():
    both = np.arange(10)
    groups = Group("question", both), Group("answer", both)
    with pytest.raises(ExhaustedError):
        make(groups=groups, cohort_size=4, rounds=3, schedule=constant(0.5))
    sampler = make(groups=groups, cohort_size=5, rounds=2, schedule=constant(0.5))
    assert sorted(np.concatenate([sampler.users(0), sampler.users(1)])) == list(both)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_small_populations_never_break_a_schema(data):
    users = data.draw(st.integers(1, 25), label="users")
    membership = data.draw(
        st.lists(st.sampled_from("qab"), min_size=users, max_size=users)
    )
    asks = np.array([i for i, m in enumerate(membership) if m in "qb"], np.int64)
    answers = np.array([i for i, m in enumerate(membership) if m in "ab"], np.int64)
    if len(asks) == 0 or len(answers) == 0:
        groups, schedule = everyone(np.arange(users)), None
    else:
        groups = (Group("question", asks), Group("answer", answers))
        schedule = data.draw(
            st.sampled_from([linear(4), cosine(5), step(6), constant(0.7)])
        )
    schema = data.draw(
        st.one_of(
            st.just(AtMostOnce()),
            st.builds(MinSeparation, st.integers(1, 6), st.none() | st.integers(1, 4)),
            st.builds(
                FixedEpochOrder, st.integers(1, 6), st.none() | st.integers(1, 3)
            ),
        )
    )
    sampler = Sampler(
        groups,
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 15)),
        schema,
        data.draw(st.integers(-(2**70), 2**70)),
        schedule,
        split=data.draw(st.sampled_from(["binomial", "fixed"])),
        when_exhausted="smaller_cohort",
    )
    check_participation(sampler)
    rounds: dict[int, list[int]] = {}
    for t in range(sampler.rounds):
        for user, group in sampler.sample(t):
            members = next(g.users for g in groups if g.name == group)
            assert user in members
            rounds.setdefault(user, []).append(t)
    # The schema's own word for it, user by user.
    assert all(violation(schema, taken) is None for taken in rounds.values())
    assert sum(map(len, rounds.values())) > 0


class Scripted:
    """A sampler that does what it is told."""

    def __init__(self, *cohorts):
        self._cohorts = cohorts
        self.rounds = len(cohorts)

    def sample(self, t):
        return [(user, "all") for user in self._cohorts[t]]


@pytest.mark.parametrize(
    ("cohorts", "schema", "message"),
    [
        ([[1], [2], [1]], AtMostOnce(), "user 1 of round 0 takes part again"),
        ([[2**63 + 5, 3], [2**63 + 5]], AtMostOnce(), "of round 0 takes part again"),
        ([[1, 1]], MinSeparation(1), "user 1 .* twice"),
        ([[1], [2], [1]], MinSeparation(3), "user 1 .* before 3 rounds"),
        ([[1], [1], [1]], MinSeparation(1, 2), "user 1 takes part 3 times"),
        ([[1], [2], [1]], FixedEpochOrder(3), "user 1 .* changes its round"),
        ([[1], [1], [1]], FixedEpochOrder(1, 2), "user 1 takes part 3 times"),
        ([[1, 1]], FixedEpochOrder(3), "user 1 .* twice"),
        ([[1, 1]], AtMostOnce(), "user 1 .* twice"),
    ],
)
def test_the_check_finds_every_kind_of_violation(cohorts, schema, message):
    with pytest.raises(ParticipationError, match=message):
        check_participation(Scripted(*cohorts), schema=schema)


def test_an_unknown_schema_is_refused_by_the_check():
    with pytest.raises(TypeError, match="got 'once'"):
        check_participation(Scripted([1], [2]), schema="once")


def test_the_check_accepts_what_is_allowed():
    report = check_participation(Scripted([1, 2], [3], [1]), schema=MinSeparation(2, 2))
    assert (report.participations, report.users, report.most, report.closest) == (
        4,
        3,
        2,
        2,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ()}, "groups"),
        ({"groups": everyone([])}, "schedule|no users"),
        ({"groups": everyone([1, 1]), "schedule": None}, "twice"),
        ({"groups": everyone([1, 2])}, "schedule"),
        ({"schedule": None}, "schedule"),
        ({"cohort_size": 0}, r"cohort_size .* got 0"),
        ({"rounds": 1.5}, r"rounds .* got 1.5"),
        ({"split": "even"}, r"split .* got 'even'"),
        ({"when_exhausted": "ignore"}, r"when_exhausted .* got 'ignore'"),
        ({"seed": None}, r"seed .* got None"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_unknown_schemas_and_rounds_are_refused():
    with pytest.raises(TypeError, match="participation"):
        make(participation="once")
    with pytest.raises(ValueError, match=r"round .* 0 to 59, got 60"):
        make().sample(60)


@pytest.mark.parametrize(
    "schema",
    [
        AtMostOnce(),
        MinSeparation(342, 6),
        FixedEpochOrder(1000),
        FixedEpochOrder(500, epochs=2),
    ],
)
def test_a_full_size_run_never_breaks_its_schema(schema):
    rng = np.random.default_rng(0)
    numbers = np.arange(342_477)
    groups = (
        Group("question", numbers[rng.random(len(numbers)) < 0.8]),
        Group("answer", numbers[rng.random(len(numbers)) < 0.8]),
    )
    sampler = Sampler(groups, 100, 2000, schema, 1, linear(200))
    report = check_participation(sampler, 2000, schema)
    assert report.participations == 200_000
    assert not sampler.shortages
    # The very same run does not pass for a stricter schema, where there is one.
    if schema != AtMostOnce():
        with pytest.raises(ParticipationError):
            check_participation(sampler, 2000, AtMostOnce())

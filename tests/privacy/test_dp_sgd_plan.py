"""The plan of DP-SGD: its figures, the paper's rows, refusals and report."""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest

from tff_agg import noise
from tff_agg.privacy import (
    AtMostOnce,
    Loss,
    Plan,
    PoissonSampling,
    Release,
    sampled,
    write_report,
)

ORDERS = (1.5, 2, 64)
CIFAR10, CIFAR100 = 4096, 16384

# Each row that the paper prints: the batch size, its ε, σ and T, and then the ε of
# this accountant (PLD) and that of Rényi accounting.
ROWS = [
    (CIFAR10, 8, 3.0, 3068, 7.4249, 8.0019),
    (CIFAR10, 1, 8.0, 568, 0.9141, 1.0008),
    (CIFAR10, 8, 4.0, 4559, 6.5539, 7.0657),
    (CIFAR10, 1, 10.0, 875, 0.9028, 0.9877),
    (CIFAR10, 8, 3.0, 2480, 6.5479, 7.0655),
    (CIFAR10, 1, 8.0, 460, 0.8152, 0.8934),
    (CIFAR100, 8, 9.4, 2000, 7.4244, 7.9905),
    (CIFAR100, 1, 21.1, 250, 0.9121, 0.9976),
]


def settings_of(batch_size=50, population_size=1000, **changes):
    return {
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "mechanism": noise.identity(),
        "cohort_size": batch_size,
        "participation": PoissonSampling.of(batch_size, population_size),
        "rounds": 100,
        "delta": 1e-5,
    } | changes


def plan(**changes):
    return Plan(**settings_of(**changes))


@pytest.mark.parametrize(("batch", "printed", "sigma", "steps", "tight", "renyi"), ROWS)
def test_the_papers_rows(batch, printed, sigma, steps, tight, renyi):
    made = plan(
        noise_multiplier=sigma, batch_size=batch, population_size=50_000, rounds=steps
    )
    assert made.epsilon == pytest.approx(tight, abs=1e-4)
    by = made.to_json()["epsilon_by_conversion"]
    assert by == {"tight": made.epsilon, "rdp": pytest.approx(renyi, abs=1e-4)}
    # The tight figure keeps what is printed; Rényi accounting gives it to 0.1 %, or
    # less where the run stopped early.
    assert by["tight"] < printed
    assert by["rdp"] < printed * 1.001


def test_certain_sampling_is_plain_composition():
    made = plan(noise_multiplier=8.0, batch_size=1000, rounds=16)
    together = Loss(mu=math.sqrt(16) / 8.0).epsilon(1e-5)
    assert made.epsilon == pytest.approx(together, rel=1e-3)
    assert plan(noise_multiplier=8.0, batch_size=100, rounds=16).epsilon < together / 4
    for order, value in made.loss.renyi(ORDERS).items():
        assert value == pytest.approx(order * made.rho)


def test_rho_is_the_least_for_all_orders_and_says_so():
    made = plan(noise_multiplier=3.0, batch_size=82, rounds=3000)
    assert made.rho == pytest.approx(3000 * 0.5 / 3.0**2)
    # It bounds every order. Low ones are far below; high ones reach it.
    orders = (2, 16, 256, 4096)
    found = made.loss.renyi(orders)
    shares = [found[order] / (order * made.rho) for order in orders]
    assert shares == sorted(shares) and shares[-1] <= 1
    assert shares[0] < 0.01 and shares[-1] > 0.98
    assert "without amplification" in made.to_json()["rho_note"]
    assert made.epsilon < Loss(mu=math.sqrt(2 * made.rho)).epsilon(1e-5) / 10


def test_renyi_divergences_of_runs_add_up():
    one, two = plan(rounds=100), plan(rounds=200)
    for order, value in one.loss.renyi(ORDERS).items():
        assert two.loss.renyi(ORDERS)[order] == pytest.approx(2 * value)


@pytest.mark.parametrize(("epsilon", "steps"), [(0.1, 100), (1.0, 500)])
def test_noise_for_epsilon_is_the_least(epsilon, steps):
    settings = settings_of(rounds=steps)
    del settings["noise_multiplier"]
    made = Plan.for_epsilon(epsilon, **settings)
    assert made.epsilon <= epsilon == made.claimed_epsilon
    less = dataclasses.replace(
        made, noise_multiplier=made.noise_multiplier - 1e-5, claimed_epsilon=None
    )
    assert less.epsilon > epsilon
    with pytest.raises(ValueError, match="do not give it"):
        Plan.for_epsilon(1.0, noise_multiplier=1.0, **settings)


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.3, 8.0), (1.0, 4.0)])
def test_steps_for_epsilon_are_the_most(epsilon, sigma):
    settings = settings_of(noise_multiplier=sigma)
    del settings["rounds"]
    made = Plan.rounds_for_epsilon(epsilon, **settings)
    assert made.epsilon <= epsilon
    more = dataclasses.replace(made, rounds=made.rounds + 1, claimed_epsilon=None)
    assert more.epsilon > epsilon
    assert made.epsilon_after(made.rounds) == made.epsilon
    with pytest.raises(ValueError, match="do not give it"):
        Plan.rounds_for_epsilon(1.0, rounds=3, **settings)


def test_a_release_composes_with_sampled_steps():
    vocabulary = Release("vocabulary", rho=0.02, delta=1e-7, is_gaussian=True)
    made = plan(releases=[vocabulary])
    assert made.rho == pytest.approx(plan().rho + 0.02)
    assert made.epsilon > plan().epsilon
    assert made.epsilon_so_far(100) == made.epsilon
    settings = settings_of(releases=[vocabulary])
    del settings["noise_multiplier"]
    kept = Plan.for_epsilon(1.0, **settings)
    assert 1.0 - 1e-3 < kept.epsilon <= 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanism": noise.tree()}, "must be identity"),
        ({"cohort_size": 49}, "draws 50 on average"),
    ],
)
def test_what_the_accounting_does_not_cover_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(**changes)


def test_spending_grows_to_the_whole():
    made = plan()
    spent = [made.epsilon_after(steps) for steps in (1, 10, 50, 100)]
    assert spent == sorted(spent) and spent[-1] == made.epsilon
    assert made.rho_after(50) == pytest.approx(made.rho / 2)
    with pytest.raises(ValueError, match="100 rounds, asked after 101"):
        made.epsilon_after(101)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, "noise_multiplier"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": 1001}, "batch_size=1001 is above population_size=1000"),
        ({"population_size": True}, "population_size"),
        ({"rounds": 0}, "rounds"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"claimed_epsilon": 0.1}, "above claimed_epsilon=0.1"),
        ({"claimed_epsilon": -1.0}, "epsilon must be"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(**changes)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: sampled.steps_of(1.0, 0.0, 10), "chance of sampling"),
        (lambda: sampled.steps_of(1.0, 0.5, 0), "steps"),
        (lambda: plan().loss.epsilon(1e-5, "moments"), "method"),
        (lambda: sampled.noise_for(0.0, 0.5, 3, 1e-5), "epsilon"),
        (lambda: sampled.noise_for(1.0, 1.5, 3, 1e-5), "chance of sampling"),
        (lambda: sampled.steps_for(1e-3, 2.0, 0.5, 1e-5), "allows no step"),
        (lambda: sampled.steps_for(1.0, 0.0, 0.5, 1e-5), "allows no step"),
        (lambda: PoissonSampling(0.0, 1000), "probability"),
    ],
)
def test_bad_input_is_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_no_noise_and_a_known_seed_are_no_privacy():
    for made in (plan(noise_multiplier=0.0), plan(noise_seed_is_known=True)):
        assert made.epsilon == made.rho == made.epsilon_after(3) == math.inf
        told = json.loads(json.dumps(made.to_json(), allow_nan=False))
        assert told["epsilon"] is None and told["rho"] is None


# --- samplers -------------------------------------------------------------------------


@dataclasses.dataclass
class Sampler:
    """Draws batches as the function says, whatever it promises."""

    draw: object
    participation: object = PoissonSampling(0.05, 1000)
    population_size: int = 1000
    rounds: int = 200

    def users(self, step):
        return self.draw(step)


def poisson(step, seed=0, probability=0.05):
    generator = np.random.default_rng((seed, step))
    return np.flatnonzero(generator.random(1000) < probability)


def fixed_size(step):
    return np.random.default_rng(step).choice(1000, 50, replace=False)


def shuffled_epochs(step):
    epoch, place = divmod(step, 20)
    order = np.random.default_rng(epoch).permutation(1000)
    return order[place * 50 : (place + 1) * 50]


def epochs_in_uneven_parts(step):
    """Sizes vary as they should, but each epoch visits every example once."""
    epoch, place = divmod(step, 20)
    generator = np.random.default_rng(epoch)
    parts = generator.integers(0, 20, 1000)
    return np.flatnonzero(parts == place)


def test_poisson_samplers_are_accepted():
    for seed in range(20):
        plan(rounds=200).check_sampler(Sampler(functools.partial(poisson, seed=seed)))
    whole = Sampler(lambda t: np.arange(1000), PoissonSampling(1.0, 1000))
    plan(batch_size=1000, rounds=200).check_sampler(whole)
    # Few and rare: nothing to be seen, and no false alarm.
    rare = functools.partial(poisson, probability=0.001)
    plan(batch_size=1, rounds=5).check_sampler(
        Sampler(rare, PoissonSampling(0.001, 1000))
    )


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Sampler(poisson, AtMostOnce()), "hold for PoissonSampling"),
        (
            Sampler(poisson, PoissonSampling(0.1, 1000)),
            "probability 0.1, the plan counts on",
        ),
        (Sampler(poisson, population_size=999), "draws from 999 examples"),
        (Sampler(poisson, rounds=100), "serves 100 steps, the plan 200"),
        (
            Sampler(functools.partial(poisson, probability=0.07)),
            "takes 0.0697",
        ),
        (Sampler(fixed_size), "sizes of the batches vary too little"),
        (Sampler(shuffled_epochs), "sizes of the batches vary too little"),
        (Sampler(epochs_in_uneven_parts), "counts of the examples vary too little"),
        (Sampler(lambda t: [1, 1]), "step 0 has an example twice"),
        (Sampler(lambda t: [1000]), "not among the 1000"),
    ],
)
def test_other_samplers_are_refused(sampler, message):
    with pytest.raises(ValueError, match=message):
        plan(rounds=200).check_sampler(sampler)


def test_a_sampler_that_cannot_be_looked_at_is_refused():
    class Blind:
        participation = PoissonSampling(0.05, 1000)
        rounds = 200

    with pytest.raises(ValueError, match="Blind has no population_size, users"):
        plan().check_sampler(Blind())


# --- reports --------------------------------------------------------------------------


def test_the_report_is_that_of_dp_sgd(tmp_path):
    made = plan()
    write_report(tmp_path, made, rounds_done=50, sampler_checked=True)
    content = json.loads((tmp_path / "privacy_report.json").read_text())
    assert content["guarantee"]["epsilon"] == made.epsilon
    assert content["guarantee"]["epsilon_so_far"] == made.epsilon_after(50)
    page = (tmp_path / "privacy_report.md").read_text()
    for words in (
        "one example",
        "adding or removing one example",
        "Poisson sampling",
        "Secret sampling: the figures hold for somebody who does not know",
        "without amplification",
        "sampling probability | 0.05",
        "were checked",
    ):
        assert words in page, words
    for words in ("one user:", "zero-out", "per tree node", "zCDP, and"):
        assert words not in page, words
    write_report(tmp_path, plan(noise_multiplier=0.0))
    content = json.loads((tmp_path / "privacy_report.json").read_text())
    assert content["guarantee"]["statement"] == "none: no noise is added"

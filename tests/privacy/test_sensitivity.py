"""Sensitivities against brute force over every allowed set of rounds."""

import functools
import importlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_agg import noise
from tff_agg.noise import forest
from tff_agg.privacy import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    implies,
    sensitivity,
    tree_sensitivity,
)
from tff_agg.privacy.cohorts import violation
from tff_agg.privacy.sensitivity import best_sum, upper_bound

# The package exports the function under the module's name.
sensitivities = importlib.import_module("tff_agg.privacy.sensitivity")


def schemas(n):
    yield AtMostOnce()
    for b in range(1, n + 1):
        fits = 1 + (n - 1) // b
        yield MinSeparation(b)
        yield FixedEpochOrder(b)
        for k in range(1, fits + 1):
            yield MinSeparation(b, k)
            yield FixedEpochOrder(b, k)


@functools.cache
def allowed_subsets(schema, n):
    """Lists every allowed subset of the rounds as rows of 0 and 1.

    All 2ⁿ subsets are tried; nothing is shared with the code under test.
    """
    rows = []
    for mask in range(1, 2**n):
        rounds = [i for i in range(n) if mask >> i & 1]
        if isinstance(schema, MinSeparation):
            gaps = all(b - a >= schema.separation for a, b in zip(rounds, rounds[1:]))  # noqa: B905, RUF007
            allowed = gaps and len(rounds) <= (schema.max_participations or n)
        else:
            places = {i % schema.epoch_length for i in rounds}
            allowed = len(places) == 1 and len(rounds) <= (schema.epochs or n)
        if allowed:
            rows.append([mask >> i & 1 for i in range(n)])
    return np.array(rows, np.float64)


def brute_force(encoder, schema):
    """Returns the largest (Σᵢⱼ |⟨cᵢ, cⱼ⟩|)^½ over every allowed subset."""
    subsets = allowed_subsets(schema, encoder.shape[1])
    gram = np.abs(encoder.T @ encoder)
    return math.sqrt(np.sum((subsets @ gram) * subsets, axis=1).max())


def mechanisms(n):
    rng = np.random.default_rng(n)
    yield "identity", noise.identity()
    yield "tree", noise.tree()
    yield "tree completed", noise.tree(rounds=n, completion=True)
    yield "honaker", noise.tree("honaker", n)
    yield "honaker completed", noise.tree("honaker", n, completion=True)
    yield "tree restarted", noise.restart_every(noise.tree(), 3)
    yield "honaker restarted", noise.restart_every(noise.tree("honaker", 3, True), 3)
    yield "square root", noise.banded_square_root(n)
    yield "banded", noise.banded_square_root(3)
    for bands, period in ((2, 4), (2, 3), (3, 4), (3, 5), (4, 5), (4, 7)):
        inner = noise.banded_square_root(bands)
        name = f"banded {bands} restarted every {period}"
        yield name, noise.restart_every(inner, period)
    rising = noise.restart_every(noise.banded_from([0.4, 0.8, 1.0]), 4)
    yield "rising banded restarted", rising
    signs = noise.restart_every(noise.banded_from([1.0, -0.6, 0.3]), 4)
    yield "banded with signs restarted", signs
    yield "identity restarted", noise.restart_every(noise.identity(), 3)
    yield "banded with signs", noise.banded_from([1.0, -0.6, 0.3])
    yield "blt", noise.blt_from((0.9, 0.3), (0.4, 0.3))
    yield "blt restarted", noise.restart_every(noise.blt_from((0.9,), (0.4,)), 4)
    lower = np.tril(rng.uniform(0, 1, (5, 5))) + np.eye(5)
    yield "dense restarted", noise.restart_every(noise.dense_from(lower), 5)
    yield "blt, optimised", noise.blt(n, 2)
    yield "banded, optimised", noise.banded(n, min(3, n))
    yield "dense, optimised", noise.dense(n)
    yield "dense", noise.dense_from(np.tril(rng.uniform(0, 1, (n, n))) + np.eye(n))
    yield (
        "dense with signs",
        noise.dense_from(np.tril(rng.normal(size=(n, n)), -1) + np.eye(n)),
    )


@pytest.mark.parametrize("n", range(1, 11))
def test_equals_brute_force_for_every_mechanism_and_schema(n):
    for (name, mechanism), schema in itertools.product(mechanisms(n), schemas(n)):
        got = sensitivity(mechanism, schema, n)
        encoder = (mechanism.encoder or mechanism.matrix)(n)
        expected = brute_force(encoder, schema)
        where = f"{name}, {schema}, {n} rounds: {got}"
        assert got.value == pytest.approx(expected, rel=1e-12), where
        # Never "exact" where a bound with absolute values was taken.
        rounds_apart = (encoder.T @ encoder < -1e-12).any()
        assert got.exact or rounds_apart, where


@functools.cache
def allowed_signs(schema, n):
    """Lists every allowed user who sends ±1 in its rounds, and 0 in all others."""
    rows = []
    for row in allowed_subsets(schema, n).astype(int):
        choices = [(1, -1) if taken else (0,) for taken in row]
        rows += itertools.product(*choices)
    return np.array(rows, np.float64)


@pytest.mark.parametrize("few", [None, 0], ids=["as it is", "no pattern is tried"])
@pytest.mark.parametrize("n", [3, 6, 10])
def test_exact_is_said_only_where_some_user_attains_it(n, few, monkeypatch):
    """Users with updates ±1 stand for all: `exact` names a value that one attains.

    Without patterns, as in runs that have too many of them, the bounds are all that is
    left; they may be loose but must not call themselves exact then.
    """
    if few is not None:
        monkeypatch.setattr(sensitivities, "_FEW_PATTERNS", few)
    said = 0
    for (name, mechanism), schema in itertools.product(mechanisms(n), schemas(n)):
        got = sensitivity(mechanism, schema, n)
        encoder = (mechanism.encoder or mechanism.matrix)(n)
        gram = encoder.T @ encoder
        users = allowed_signs(schema, n)
        attained = math.sqrt(np.sum((users @ gram) * users, axis=1).max())
        where = f"{name}, {schema}, {n} rounds: {got}, attained {attained}"
        assert got.value >= attained - 1e-9, where
        if got.exact:
            assert got.value == pytest.approx(attained, rel=1e-9), where
        said += got.exact
    assert said > 100


def test_a_restarted_banded_matrix_under_a_fixed_order():
    """The last columns before a restart are short; a fixed order cannot avoid them."""
    mechanism = noise.restart_every(noise.banded_square_root(4), 5)
    got = sensitivity(mechanism, FixedEpochOrder(4), 12)
    free = sensitivity(mechanism, MinSeparation(4), 12)
    assert got.exact and free.exact
    assert got.value < free.value - 1e-3
    assert got.value == pytest.approx(
        brute_force(mechanism.matrix(12), FixedEpochOrder(4))
    )
    # A user of few epochs picks the best of them.
    one = sensitivity(mechanism, FixedEpochOrder(4, 1), 12)
    assert one.value == pytest.approx(np.linalg.norm(mechanism.matrix(12)[:, 0]))


def test_real_users_never_exceed_it():
    """Any contributions of norm 1, aligned or not, stay within the sensitivity."""
    n, rng = 9, np.random.default_rng(3)
    schema = MinSeparation(2, 4)
    patterns = list(schema.patterns(n))
    for name, mechanism in mechanisms(n):
        limit = sensitivity(mechanism, schema, n).value
        encoder = (mechanism.encoder or mechanism.matrix)(n)
        for _ in range(200):
            rounds = list(patterns[rng.integers(len(patterns))])
            updates = rng.normal(size=(len(rounds), 3))
            updates /= np.linalg.norm(updates, axis=1, keepdims=True)
            moved = np.linalg.norm(encoder[:, rounds] @ updates)
            assert moved <= limit + 1e-12, name


def test_the_noise_reveals_no_more_than_the_encoder():
    """What is seen, C⁻¹(Cx + z), hides at least as much as the noisy nodes do."""
    for completion in (False, True):
        for n in (6, 7, 8, 11):
            mechanism = noise.tree("honaker", n, completion)
            columns = np.square(mechanism.matrix(n)).sum(axis=0)
            nodes = np.square(mechanism.encoder(n)).sum(axis=0)
            assert (columns <= nodes + 1e-9).all()


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=10),
    st.integers(1, 6),
    st.integers(1, 5),
)
@settings(deadline=None, max_examples=150)
def test_best_sum(values, spacing, most):
    n = len(values)
    best = max(
        sum(values[i] for i in chosen)
        for size in range(0, most + 1)
        for chosen in itertools.combinations(range(n), size)
        if all(b - a >= spacing for a, b in itertools.pairwise(chosen))
    )
    assert best_sum(np.array(values), spacing, most) == pytest.approx(best)


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_the_bound_by_rows_is_a_bound(n, spacing, seed):
    rng = np.random.default_rng(seed)
    c = np.tril(rng.normal(size=(n, n)))
    most = 1 + (n - 1) // spacing
    bound = upper_bound(c.T @ c, spacing, most)
    assert math.sqrt(bound) >= brute_force(c, MinSeparation(spacing)) - 1e-9


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9), st.integers(1, 5))
@settings(deadline=None, max_examples=80)
def test_falling_toeplitz_coefficients(ratios, separation):
    column = np.concatenate([[1.0], np.cumprod(ratios)])
    n = len(column)
    mechanism = noise.banded_from(column)
    got = sensitivity(mechanism, MinSeparation(separation), n)
    expected = brute_force(mechanism.matrix(n), MinSeparation(separation))
    assert got.value == pytest.approx(expected, rel=1e-9) and got.exact


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 8), st.booleans())
@settings(deadline=None, max_examples=60)
def test_tree_never_gets_cheaper_with_more_of_anything(n, separation, most, all_nodes):
    most = min(most, 1 + (n - 1) // separation)

    def cost(rounds, b, k):
        nodes = forest.binary(rounds, right_children=all_nodes)
        return tree_sensitivity.squared(nodes, MinSeparation(b, k))[0]

    value = cost(n, separation, most)
    assert value >= cost(n, separation, 1) == n.bit_length()
    assert cost(n + 1, separation, most) >= value
    if separation > 1:
        assert cost(n, separation - 1, most) >= value
    assert value <= most**2 * n.bit_length()


@pytest.mark.parametrize("n", [1, 7, 16, 30])
@pytest.mark.parametrize(("between", "most"), [(0, 1), (0, 3), (2, 2), (4, 5), (9, 2)])
def test_all_nodes_agree_with_tensorflow_privacy(n, between, most):
    from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant as tfp

    schema = MinSeparation(between + 1, most).cut(n)
    nodes = forest.binary(n, right_children=True)
    got = tree_sensitivity.squared(nodes, schema)[0]
    expected = 2 * tfp.compute_zcdp_single_tree(1.0, n, most, between)
    assert got == pytest.approx(expected)
    # The prefix tree leaves out nodes that are never read.
    assert sensitivity(noise.tree(), schema, n).value ** 2 <= got + 1e-9


@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 3, 16, 100])
@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_restarted_tree_agrees_with_tensorflow_privacy(epochs, length, sigma):
    """Restarted once per epoch, a user in each epoch once."""
    from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant as tfp

    from tff_agg.privacy import rho_of_per_node

    expected = tfp.compute_rdp_tree_restart(sigma, [length] * epochs, 2.0) / 2.0
    schema, n = FixedEpochOrder(length), epochs * length
    assert rho_of_per_node(sigma, n, schema, length) == pytest.approx(expected)
    tree = noise.restart_every(noise.tree(), length)
    got = sensitivity(tree, schema, n).value ** 2 / (2 * sigma**2)
    assert got == pytest.approx(expected)


def test_large_runs_are_quick_and_known():
    assert sensitivity(noise.tree(), AtMostOnce(), 2000).value ** 2 == pytest.approx(11)
    six = MinSeparation(342, 6)
    banded = noise.banded_square_root(200)
    one = sensitivity(banded, AtMostOnce(), 2000).value
    assert sensitivity(banded, six, 2000).value == pytest.approx(one * math.sqrt(6))
    bound = sensitivity(noise.restart_every(noise.blt(500, 2), 500), six, 2000)
    assert not bound.exact and bound.value < 6 * one


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinSeparation(0), "separation"),
        (lambda: MinSeparation(2.5), "separation"),
        (lambda: MinSeparation(2, 0), "max_participations"),
        (lambda: FixedEpochOrder(0), "epoch_length"),
        (lambda: FixedEpochOrder(3, -1), "epochs"),
        (lambda: MinSeparation(400, 6).largest(2000), "do not fit into rounds=2000"),
        (lambda: FixedEpochOrder(400, 6).largest(2000), "do not fit into rounds=2000"),
        (lambda: AtMostOnce().largest(0), "rounds"),
        (lambda: sensitivity(noise.dense(4), AtMostOnce(), 5), "built for 4 rounds"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schema_implies_another_exactly_if_all_its_patterns_are_allowed():
    n = 7
    every = list(schemas(n))
    for kept, claimed in itertools.product(every, every):
        truth = all(violation(claimed, rounds) is None for rounds in kept.patterns(n))
        if implies(kept, claimed, n):
            assert truth, (kept, claimed)
        elif type(kept) is type(claimed) or isinstance(claimed, MinSeparation):
            assert not truth, (kept, claimed)

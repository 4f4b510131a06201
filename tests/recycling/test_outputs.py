"""Inference aggregation equals the naive computation, at any round, in any portions."""

import collections
import functools
import subprocess
import sys
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tff_agg import averaging
from tff_agg.checkpoints import CheckpointStore
from tff_agg.recycling import outputs, windows
from tff_agg.recycling.methods import EMA_BASELINE
from tff_agg.recycling.outputs import Predictions, aggregate_outputs

CLASSES = 6


def make_scores(members, positions, seed=0, classes=CLASSES):
    """Distributions that are close together, so that methods and ks disagree."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((positions, classes))
    noise = 0.8 * rng.standard_normal((members, positions, classes))
    scores = np.exp(base + noise)
    return (scores / scores.sum(axis=2, keepdims=True)).astype(np.float32)


def naive_opa(scores, newest, k):
    window = scores[max(0, newest - k + 1) : newest + 1].astype(np.float64)
    return window.mean(axis=0).argmax(axis=1)


def naive_omv(scores, newest, k):
    out = []
    for position in range(scores.shape[1]):
        window = scores[max(0, newest - k + 1) : newest + 1, position]
        labels = window.argmax(axis=1)[::-1].tolist()  # The newest first.
        votes = collections.Counter(labels)
        most = max(votes.values())
        out.append(next(label for label in labels if votes[label] == most))
    return np.array(out)


def predictor(scores, targets, per_example=1):
    """Weights are just the member's number; an example is a row of positions."""

    def predict(weights, rows):
        rows = np.asarray(rows).reshape(-1)
        chosen = (rows[:, None] * per_example + np.arange(per_example)).reshape(-1)
        return Predictions(scores[int(weights)][chosen], targets[chosen])

    return predict


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 10_000),
    members=st.integers(1, 12),
    per_example=st.integers(1, 3),
    examples=st.integers(1, 9),
    ks=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    budget=st.integers(1500, 20_000),
    data=st.data(),
)
def test_outputs_equal_the_naive_computation_exactly(
    seed, members, per_example, examples, ks, budget, data
):
    scores = make_scores(members, examples * per_example, seed)
    targets = np.random.default_rng(seed).integers(0, CLASSES, scores.shape[1])
    numbers = [3 * i + 1 for i in range(members)]
    ends = data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=6))
    try:
        found = aggregate_outputs(
            lambda number: np.float32((number - 1) // 3),
            numbers,
            ends,
            ks,
            predictor(scores, targets, per_example),
            np.arange(examples),
            classes=CLASSES,
            positions_per_example=per_example,
            memory_budget=budget,
            keep_labels=True,
        )
    except ValueError as error:
        hypothesis.assume("memory_budget" not in str(error))
        raise
    assert found.total == scores.shape[1]
    assert found.targets is not None
    np.testing.assert_array_equal(found.targets, targets)
    assert set(found.values) == {
        (method, end, k) for method in ("OPA", "OMV") for end in ends for k in ks
    }
    naive = {"OPA": naive_opa, "OMV": naive_omv}
    for (method, end, k), labels in found.labels.items():
        expected = naive[method](scores, numbers.index(end), k)
        np.testing.assert_array_equal(labels, expected, err_msg=f"{method} {end} {k}")
        assert found.values[method, end, k] == {
            "accuracy": np.mean(expected == targets)
        }


def test_every_checkpoint_runs_once_for_all_methods_and_ks():
    scores, targets = make_scores(40, 30), np.zeros(30, int)
    calls: collections.Counter[int] = collections.Counter()
    seen = []
    inner = predictor(scores, targets)

    def predict(weights, rows):
        calls[int(weights)] += 1
        return inner(weights, rows)

    found = aggregate_outputs(
        np.float32,
        range(40),
        [39],
        [1, 2, 3, 5, 10, 20, 30],
        predict,
        np.arange(30),
        classes=CLASSES,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert calls == {i: 1 for i in range(10, 40)}
    assert found.passes == 30 and found.portions == 1
    assert seen == [(i, 30) for i in range(1, 31)]


def test_sums_are_exact_whatever_the_order():
    """Curves subtract sums; plain addition gives the very same bits."""
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.full(50, 0.05), size=(300, 4)).astype(np.float32)
    rounded = np.add(scores, outputs._ROUNDING, dtype=np.float64) - outputs._ROUNDING
    assert np.abs(rounded - scores).max() < 5e-13
    forward = np.cumsum(rounded, axis=0)
    for newest, k in [(299, 300), (250, 200), (100, 7)]:
        window = rounded[newest - k + 1 : newest + 1]
        start = forward[newest - k] if newest >= k else 0.0
        np.testing.assert_array_equal(
            forward[newest] - start, np.add.reduce(window[::-1])
        )


@pytest.mark.parametrize("ends", [[59], [30, 45, 59]])
def test_memory_stays_within_the_budget_whatever_k(ends):
    classes, rows = 2000, 400
    budget = 8 << 20
    everything = rows * classes * 4
    assert everything * 60 > 10 * budget  # All scores at once would not fit.

    def predict(weights, part):
        rng = np.random.default_rng(int(weights))
        scores = rng.random((len(part), classes), np.float32) / classes
        return Predictions(scores, np.zeros(len(part), int))

    tracemalloc.start()
    found = aggregate_outputs(
        np.float32,
        range(60),
        ends,
        [1, 5, 30],
        predict,
        np.arange(rows),
        classes=classes,
        memory_budget=budget,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.total == rows and found.portions > 2
    assert peak < 1.1 * budget


def test_a_budget_too_small_for_one_example_is_refused():
    with pytest.raises(ValueError, match="memory_budget"):
        aggregate_outputs(
            np.float32,
            [0],
            [0],
            [1],
            predictor(make_scores(1, 4), np.zeros(4, int)),
            np.arange(4),
            classes=10_000,
            memory_budget=1000,
        )


def test_checkpoints_are_read_once_where_they_fit_and_once_a_portion_where_not():
    scores, targets = make_scores(5, 8), np.zeros(8, int)

    def portions_and_loads(weights_size, budget):
        loads = []

        def load(number):
            loads.append(number)
            return np.full(weights_size, number, np.float32)

        found = aggregate_outputs(
            load,
            range(5),
            [4],
            [5],
            lambda w, rows: predictor(scores, targets)(w[0], rows),
            np.arange(8),
            classes=CLASSES,
            memory_budget=budget,
        )
        return found.portions, len(loads)

    assert portions_and_loads(10, 1000) == (2, 5)
    assert portions_and_loads(1000, 1000) == (2, 11)  # One to measure, 5 a portion.


def test_predictions_that_are_none_are_refused():
    targets = np.zeros(4, int)

    def call(scores):
        aggregate_outputs(
            np.float32,
            [7],
            [7],
            [1],
            lambda w, rows: Predictions(scores, targets),
            np.arange(4),
            classes=2,
        )

    with pytest.raises(ValueError, match="round 7: the highest score is nan"):
        call(np.full((4, 2), np.nan))
    with pytest.raises(ValueError, match="round 7: the highest score is 3"):
        call(np.full((4, 2), 3.0))
    with pytest.raises(ValueError, match="round 7: predict must return"):
        call(np.full((3, 2), 0.5))


def test_targets_must_not_depend_on_the_weights():
    def predict(weights, rows):
        return Predictions(np.full((4, 2), 0.5), np.full(4, int(weights)))

    with pytest.raises(ValueError, match="targets"):
        aggregate_outputs(
            np.float32, [0, 1], [1], [2], predict, np.arange(4), classes=2
        )


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.integers(1, 9).flatmap(
        lambda m: st.lists(
            st.lists(st.integers(0, 3), min_size=m, max_size=m), min_size=1, max_size=6
        )
    )
)
def test_majorities_equal_a_plain_count(columns):
    labels = np.array(columns).T
    for k, winner in outputs.majority_labels(labels, range(1, 12)):
        for position, column in enumerate(columns):
            votes = collections.Counter(column[:k])
            most = max(votes.values())
            expected = next(x for x in column if votes[x] == most)
            assert winner[position] == expected
    assert len(list(outputs.majority_labels(labels, [1, 3, 50]))) == 3


def weights_of(averager, t):
    assert averager.weights is not None
    return averager.weights(t)


def random_walk(rounds, seed=0):
    rng = np.random.default_rng(seed)
    theta = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
    for t in range(rounds):
        yield t, theta
        theta = {
            name: (leaf + rng.standard_normal(leaf.shape)).astype(np.float32)
            for name, leaf in theta.items()
        }


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path)
    for t, theta in random_walk(25):
        store.save(t, {"iterate": theta})
    return store


def test_folds_over_the_store_equal_the_explicit_weights(store):
    averagers = {
        "ema": averaging.ema(decay=0.9, warm_up=True),
        "ema weight": averaging.ema(weight=0.3),
        "baseline": EMA_BASELINE.averager(),
        "pda": averaging.pda(2.0),
        "uta": averaging.uta(8),
    }
    loaded = []

    def load(t):
        loaded.append(t)
        return store.load(t, "iterate")

    stream = ((t, load(t)) for t in store.rounds("iterate"))
    found = {
        (t, key): value
        for t, key, value in windows.fold_averagers(averagers, stream, [0, 7, 20])
    }
    assert loaded == list(range(21))  # One pass, and no further than needed.
    assert set(found) == {(t, key) for t in (0, 7, 20) for key in averagers}
    all_thetas = [theta for _, theta in random_walk(25)]
    for (t, key), value in found.items():
        weights = weights_of(averagers[key], t)
        for leaf in ("w", "b"):
            explicit = sum(
                p * th[leaf] for p, th in zip(weights, all_thetas, strict=False)
            )
            np.testing.assert_allclose(value[leaf], explicit, rtol=1e-5, atol=1e-5)


def test_a_fold_up_to_a_round_that_is_not_there_is_refused(store):
    with pytest.raises(ValueError, match=r"\[99\]"):
        list(
            windows.fold_averagers(
                {"x": averaging.last()}, store.iterate("iterate"), [3, 99]
            )
        )


def test_tail_means_equal_the_naive_mean_exactly_for_every_k(store):
    load = functools.partial(store.load, name="iterate")
    members = store.rounds("iterate")
    thetas = [theta for _, theta in random_walk(25)]
    loads = []

    def counting(number):
        loads.append(number)
        return load(number)

    for end in (0, 4, 24):
        loads.clear()
        found = dict(windows.tail_means(counting, members, end, [1, 2, 5, 20, 100]))
        assert sorted(found) == [1, 2, 5, 20, 100]
        assert loads == list(range(end, -1, -1))
        for k, mean in found.items():
            window = thetas[max(0, end - k + 1) : end + 1]
            assert list(mean) == list(thetas[0])
            for leaf in ("w", "b"):
                total = functools.reduce(
                    np.add, [th[leaf].astype(np.float64) for th in window[::-1]]
                )
                naive = (total / len(window)).astype(np.float32)
                np.testing.assert_array_equal(mean[leaf], naive)
                *_, folded = averaging.fold(averaging.uta(k), thetas[: end + 1])
                np.testing.assert_allclose(
                    mean[leaf], folded[leaf], rtol=1e-6, atol=1e-6
                )


def test_rounds_without_a_checkpoint_are_refused(store):
    load = functools.partial(store.load, name="iterate")
    with pytest.raises(ValueError, match="99"):
        aggregate_outputs(
            load,
            range(25),
            [99],
            [1],
            predictor(np.zeros(0), np.zeros(0)),
            [],
            classes=2,
        )


def test_the_library_does_not_load_tensorflow():
    code = (
        "import sys, tff_agg.checkpoints, tff_agg.recycling.windows, "
        "tff_agg.recycling.methods, tff_agg.recycling.uncertainty; "
        "print(sorted({'tensorflow', 'jax', 'pyarrow', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

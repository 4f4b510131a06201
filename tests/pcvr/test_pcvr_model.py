"""The model: its clipped gradients against a loop, AUC against counting all pairs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pcvr import auc, features, model
from tff_agg.recycling.outputs import Predictions, aggregate_outputs

SIZES = model.Sizes(
    features.parse("ad=advert:5,size:3 user=country:4 kernel=bias:2,top:3"), 3, 4, 5
)


@pytest.fixture(scope="module")
def batch():
    """Weights with biases off zero, and examples of which many share rows."""
    rng = np.random.default_rng(1)
    weights = {
        name: jnp.asarray(value + 0.1 * rng.standard_normal(value.shape), jnp.float32)
        for name, value in model.initial_weights(SIZES, 0).items()
    }
    columns = [rng.integers(0, f.buckets, 40) for f in SIZES.features]
    labels = rng.integers(0, 2, 40).astype(np.float32)
    return weights, np.stack(columns, 1).astype(np.int32), labels


def one_by_one(weights, ids, labels, present, clip_norm):
    """The plain way: every example's whole gradient, clipped, added up."""
    gradient = jax.grad(lambda w, i, y: model.losses(SIZES, w, i[None], y[None])[0])
    sums = {name: np.zeros(np.shape(value)) for name, value in weights.items()}
    norms = []
    for i, y, there in zip(ids, labels, present, strict=True):
        found = {
            k: np.asarray(v, np.float64) for k, v in gradient(weights, i, y).items()
        }
        norms.append(math.sqrt(sum(float((v**2).sum()) for v in found.values())))
        for name, value in found.items():
            sums[name] += there * min(1.0, clip_norm / norms[-1]) * value
    return sums, np.array(norms)


@pytest.mark.parametrize("clip_norm", [0.3, 1e9])
def test_clipped_sum_is_that_of_a_loop_and_of_vmap(batch, clip_norm):
    weights, ids, labels = batch
    present = (np.arange(len(labels)) % 5 > 0).astype(np.float32)
    sums, norms = model.clipped_sum(SIZES, weights, ids, labels, present, clip_norm)
    expected, lengths = one_by_one(weights, ids, labels, present, clip_norm)
    assert list(sums) == list(SIZES.shapes)
    np.testing.assert_allclose(norms, lengths, rtol=1e-5)
    for name, value in sums.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
    each = jax.vmap(
        jax.grad(lambda w, i, y: model.losses(SIZES, w, i[None], y[None])[0]),
        (None, 0, 0),
    )(weights, ids, labels)
    squares = sum(jnp.square(g).reshape(len(ids), -1).sum(1) for g in each.values())
    factors = present * jnp.minimum(1, clip_norm / jnp.sqrt(squares))
    for name, value in sums.items():
        plain = jnp.tensordot(factors, each[name], 1)
        np.testing.assert_allclose(value, plain, rtol=1e-4, atol=1e-5)


def test_no_array_of_the_clipped_sum_is_examples_by_table(batch):
    """Nothing grows with examples times rows of a table."""
    weights, ids, labels = batch
    made = jax.make_jaxpr(
        lambda *a: model.clipped_sum(SIZES, *a, np.ones(len(labels)), 1.0)
    )(weights, ids, labels)
    widest = max(
        SIZES.embedding * 2, *(outputs for _, outputs in SIZES.layers.values())
    )
    widest = max(widest, *(inputs for inputs, _ in SIZES.layers.values()))
    shapes = {v.aval.shape for e in made.eqns for v in e.outvars}
    of_examples = [shape for shape in shapes if len(labels) in shape]
    assert of_examples and all(math.prod(s) <= widest * 40 for s in of_examples)


def test_an_encoder_reads_its_own_class_only(batch):
    """With the kernel of one encoder at zero, its columns change nothing."""
    weights, ids, _ = batch
    silent = weights | {
        "encoder/ad/kernel": jnp.zeros_like(weights["encoder/ad/kernel"])
    }
    other = ids.copy()
    other[:, :2] = 0
    before, after = (model.logits(SIZES, silent, rows) for rows in (ids, other))
    np.testing.assert_array_equal(before, after)
    assert not np.array_equal(
        model.logits(SIZES, weights, ids), model.logits(SIZES, weights, other)
    )


@pytest.mark.parametrize("levels", [2, 7, 10**6])
def test_auc_is_the_share_of_pairs_with_ties_as_halves(levels):
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, 300) / levels
    labels = rng.integers(0, 2, 300)
    above, below = scores[labels == 1][:, None], scores[labels == 0][None]
    counted = ((above > below) + 0.5 * (above == below)).mean()
    assert auc.auc(scores, labels) == pytest.approx(counted, rel=1e-14)
    assert auc.auc(-scores, labels) == pytest.approx(1 - counted, rel=1e-14)


def test_auc_without_pairs_or_with_nan_is_nan():
    assert math.isnan(auc.auc(np.array([0.1, 0.2]), np.array([1, 1])))
    assert math.isnan(auc.auc(np.array([0.1, math.nan]), np.array([0, 1])))
    assert not auc.AUC_LOSS.better(math.nan, 0.5)
    assert auc.AUC_LOSS.better(0.4, 0.41)


def test_mean_outputs_are_judged_over_all_portions():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 90)
    chances = rng.random((4, 90)).astype(np.float32)

    def predict(weights, rows):
        scores = np.stack([1 - chances[int(weights)], chances[int(weights)]], 1)
        return Predictions(scores[rows], labels[rows])

    found = aggregate_outputs(
        np.float32, range(4), [3], [1, 3], predict, np.arange(90), classes=2,
        judge=auc.judge(), memory_budget=1000,
    )  # fmt: skip
    assert found.portions > 1
    assert set(found.values) == {("OPA", 3, 1), ("OPA", 3, 3)}
    for k, members in ((1, chances[3:]), (3, chances[1:])):
        expected = auc.values(members.astype(np.float64).mean(0), labels)
        for name, value in found.values["OPA", 3, k].items():
            assert value == pytest.approx(expected[name], rel=1e-6)

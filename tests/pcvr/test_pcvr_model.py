"""The model: its clipped gradients against a loop, AUC against counting all pairs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pcvr import auc, features, model
from tff_agg.recycling.outputs import Predictions, aggregate_outputs
from tff_agg.sample.per_example import clipped_by_vmap

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


def loss(weights, example):
    """The loss of one example."""
    ids, label = example
    return model.losses(SIZES, weights, ids[None], label[None])[0]


closed_form = jax.jit(functools.partial(model.clipped_sum, SIZES))
by_vmap = jax.jit(clipped_by_vmap(loss))
gradient = jax.jit(jax.grad(loss))


def one_by_one(weights, ids, labels, counted, clip_norm):
    """The plain way: every example's whole gradient, clipped, added up."""
    sums = {name: np.zeros(np.shape(value)) for name, value in weights.items()}
    longer = 0
    for i, y, there in zip(ids, labels, counted, strict=True):
        found = jax.tree.map(np.float64, gradient(weights, [i, y]))
        norm = math.sqrt(sum(float((v**2).sum()) for v in found.values()))
        longer += bool(there) and norm > clip_norm
        for name, value in found.items():
            sums[name] += there * min(1.0, clip_norm / norm) * value
    return sums, longer


@pytest.mark.parametrize("clip_norm", [0.8, 1e9])
def test_clipped_sum_is_that_of_a_loop_and_of_vmap(batch, clip_norm):
    weights, ids, labels = batch
    counted = np.arange(len(labels)) % 5 > 0
    arguments = (weights, [ids, labels], counted, clip_norm)
    closed, plain = closed_form(*arguments), by_vmap(*arguments)
    expected, longer = one_by_one(weights, ids, labels, counted, clip_norm)
    assert closed.clipped == plain.clipped == longer
    assert 0 < longer < counted.sum() or clip_norm == 1e9
    assert closed.loss == pytest.approx(float(plain.loss), rel=1e-5)
    for name, value in closed.gradients.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(plain.gradients[name], value, rtol=1e-4, atol=1e-5)


def test_an_example_that_is_not_finite_counts_as_zeros(batch):
    weights, ids, labels = batch
    table = weights["table/ad/advert"].at[2].set(math.inf)
    there = ids[:, 0] != 2
    assert 0 < there.sum() < len(there)
    every = np.ones(len(labels), bool)
    broken = weights | {"table/ad/advert": table}
    found = closed_form(broken, [ids, labels], every, 1.0)
    expected = closed_form(weights, [ids, labels], there, 1.0)
    assert found.non_finite == (~there).sum() and expected.non_finite == 0
    for name, value in found.gradients.items():
        np.testing.assert_allclose(value, expected.gradients[name], atol=1e-6)


def test_no_array_of_the_clipped_sum_is_examples_by_table(batch):
    """Nothing grows with examples times rows of a table."""
    weights, ids, labels = batch
    every = np.ones(len(labels), bool)
    names: list[str] = []

    def gradients(*given):
        found = model.clipped_sum(SIZES, *given, every, 1.0).gradients
        names.extend(found)
        return found

    made = jax.make_jaxpr(gradients)(weights, [ids, labels])
    assert names == list(SIZES.shapes)
    widest = max(max(sizes) for sizes in SIZES.layers.values())
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

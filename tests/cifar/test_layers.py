"""Clipped gradients layer by layer, and on all cores: those of a loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cifar import layers
from cifar.layers import Layers
from tests.sampled_plans import sampled_plan
from tff_agg.sample import per_example
from tff_agg.sample.dp_sgd import DPSGDProcess
from tff_agg.sample.laned_sum import LanedSum
from tff_agg.sample.per_example import SampleModel
from tff_agg.server.state import iterate

# The second kernel is so large that, of single images, norms come from products of
# rows.
SHAPES = {"first": (3, 3, 2, 6), "second": (3, 3, 6, 20), "last": (20, 3)}


def loss(given, example, standard=True):
    net = given if isinstance(given, Layers) else Layers(given)
    images, label = example
    x = jnp.tanh(net.convolution("first", images, standard=standard))
    # The mean lets the kernel's own direction have a gradient.
    x = jax.nn.relu(0.3 + net.convolution("second", x, 2, "VALID", standard))
    return -jax.nn.log_softmax(x.mean((0, 1, 2)) @ net.weight("last"))[label]


def plainly(given, example):
    return loss(given, example, standard=False)


def weights():
    generator = np.random.default_rng(0)
    return {n: generator.standard_normal(s).astype("f") for n, s in SHAPES.items()}


def batch(count, copies=1):
    generator = np.random.default_rng(count)
    images = 3 * generator.standard_normal((count, copies, 6, 5, 2)).astype("f")
    return [images, generator.integers(3, size=count, dtype="i4")]


def model(run, **changes):
    return SampleModel(run, layers.clipped_by_layers(run), by_core=True, **changes)


@functools.cache
def summed(run):
    """The clipped sum, compiled once for all clip norms."""
    return jax.jit(model(run).clipped_sum)


@functools.cache
def gradient_of(run):
    return jax.jit(jax.grad(run))


def by_loop(run, given, examples, clip_norm):
    """The sum in numpy, and how many were clipped."""
    total = {name: np.zeros_like(value) for name, value in given.items()}
    clipped = 0
    for example in zip(*examples, strict=True):
        found = gradient_of(run)(given, list(example))
        norm = np.sqrt(sum(float(np.square(g).sum()) for g in found.values()))
        clipped += norm > clip_norm
        for name, value in found.items():
            total[name] += np.asarray(value) * min(1.0, clip_norm / norm)
    return total, clipped


@pytest.mark.parametrize("run", [loss, plainly], ids=["standard", "plain"])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("share", [0.5, 1e3])
def test_the_sum_is_that_of_a_loop(run, copies, share):
    given, examples = weights(), batch(8, copies)
    probed = layers._probed(run, given, examples).uses
    assert [use.small for use in probed.values()] == [False, copies == 1]
    one = gradient_of(run)(given, [a[0] for a in examples])
    clip_norm = share * np.sqrt(sum(float(np.square(g).sum()) for g in one.values()))
    found = summed(run)(given, examples, jnp.ones(8, bool), clip_norm)
    wanted, clipped = by_loop(run, given, examples, clip_norm)
    assert int(found.clipped) == clipped
    for name, value in wanted.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found.gradients[name], value, atol=2e-5 * scale)


def seen_by_the_first_channel(given, example):
    net = given if isinstance(given, Layers) else Layers(given)
    seen = net.convolution("second", example[0], 1, "VALID", standard=True)
    return 7 * seen[..., 0].sum()


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-3, 1e-4, 1e-6])
def test_no_gradient_is_clipped_too_little(apart):
    """Where an image is like the kernel, nearly all of the norm is subtracted."""
    run = seen_by_the_first_channel
    given = {"second": weights()["second"]}
    column = layers.standardised(given["second"])[..., 0]
    noise = np.random.default_rng(0).standard_normal(column.shape)
    examples = [np.asarray(column + apart * noise, "f")[None, None]]
    (use,) = layers._probed(run, given, examples).uses.values()
    assert use.small
    clip_norm = 1e-5
    found = summed(run)(given, examples, jnp.ones(1, bool), clip_norm)
    norm = np.linalg.norm(np.asarray(found.gradients["second"], "f8"))
    assert norm <= clip_norm * (1 + 1e-5)
    if apart == 1.0:
        assert norm >= clip_norm * (1 - 1e-4)


def test_in_double_precision_the_sum_is_that_of_single_gradients():
    """So that what differs in single precision is rounding, and nothing else."""
    with jax.experimental.enable_x64():
        given = {name: value.astype("f8") for name, value in weights().items()}
        examples = batch(8)
        examples[0] = examples[0].astype("f8")
        sums = [
            jax.jit(add)(given, examples, jnp.ones(8, bool), 1e3).gradients
            for add in (
                layers.clipped_by_layers(loss),
                per_example.clipped_by_vmap(loss),
            )
        ]
        for name in given:
            np.testing.assert_allclose(*(one[name] for one in sums), rtol=1e-9)


def test_an_example_that_is_not_finite_counts_as_zeros():
    given, examples = weights(), batch(5)
    rest = [np.delete(array, [1, 3], axis=0) for array in examples]
    examples[0][1, 0, 2, 2, 0] = np.nan
    examples[0][3, 0, 0, 0, 1] = np.inf
    run = summed(loss)
    found = run(given, examples, np.ones(5, bool), 0.3)
    wanted = run(given, rest, np.ones(3, bool), 0.3)
    assert int(found.non_finite) == 2
    for name, value in wanted.gradients.items():
        np.testing.assert_allclose(found.gradients[name], value, atol=1e-6)


def test_a_kernel_has_one_use():
    def twice(net, example):
        x = net.convolution("first", example[0])
        return x.sum() + net.convolution("first", example[0]).sum()

    def before(net, example):
        return net.weight("first").sum() * net.convolution("first", example[0]).sum()

    def afterwards(net, example):
        return net.convolution("first", example[0]).sum() * net.weight("first").sum()

    for run in (twice, before, afterwards):
        with pytest.raises(ValueError, match="use"):
            layers.clipped_by_layers(run)(weights(), batch(2), np.ones(2, bool), 1.0)


def test_lanes_share_a_batch_and_keep_its_bits(monkeypatch):
    given, examples = weights(), batch(12)
    for cores in (1, 3):
        monkeypatch.setattr(per_example, "usable_cores", lambda cores=cores: cores)
        add = LanedSum(model(loss), 0.3, 2)
        for count in (0, 1, 7, 12):
            first, again = (add(given, examples, count) for _ in range(2))
            wanted, clipped = by_loop(loss, given, [a[:count] for a in examples], 0.3)
            assert int(first.clipped) == clipped
            for name, value in wanted.items():
                np.testing.assert_array_equal(
                    first.gradients[name], again.gradients[name]
                )
                np.testing.assert_allclose(first.gradients[name], value, atol=1e-5)


def test_memory_is_shared_between_lanes_and_steps_agree(monkeypatch):
    monkeypatch.setattr(per_example, "usable_cores", lambda: 2)
    given, examples = weights(), batch(6)
    taken = layers.example_bytes(loss, given, examples)
    assert taken > 4 * (given["first"].size + examples[0][0].size)
    laned = model(loss, example_bytes=taken)
    assert laned.micro_batch(given, 10 * taken) == 5
    plan = sampled_plan(
        clip_norm=0.3, noise_multiplier=1.0, batch_size=6, population_size=60, steps=3,
        delta=1e-5, noise_seed_is_known=True,
    )  # fmt: skip
    after = []
    for one in (laned, SampleModel(loss)):
        process = DPSGDProcess(one, plan=plan, memory_budget=4 * taken)
        state = process.initialize(given, seed=(1, 2))
        after.append(process.next(state, examples))
    for name in given:
        np.testing.assert_allclose(
            *(iterate(out.state)[name] for out in after), atol=1e-5
        )
    assert after[0].metrics["train"]["loss"] == pytest.approx(
        after[1].metrics["train"]["loss"]
    )

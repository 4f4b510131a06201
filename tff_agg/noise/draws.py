"""Stateless standard normals and the little control flow that mechanisms need.

A draw is a pure function of (seed, position, leaf, index): nothing is consumed, so a
resumed run sees the same noise again, and a mechanism may regenerate a past draw
instead of keeping a model-sized copy of it. Each library uses its own counter-based
generator (numpy and TensorFlow: Philox, JAX: threefry), hence the bits differ from
library to library while the distribution does not. `normals.py` says how words become
normals.
"""

import functools
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np

from tff_agg import structure
from tff_agg.aliases import Array, Scalar, Structure
from tff_agg.noise import normals as transforms
from tff_agg.structure import Form

#: Two secret integers of 64 bits: a pair, or an array of one of the libraries.
Seed = Sequence[int] | Array

# position, leaf and index share one 64-bit word of the TensorFlow counter.
MAX_LEAVES = 2**16
MAX_INDEX = 2**8
# TensorFlow makes this many normals at a time, so that what lies between words and
# normals stays in a core's cache. Streams depend on it.
TF_BLOCK = 2**16


def seed_in(backend: str, seed: Seed) -> Array:
    """Returns the pair of 64-bit integers `seed` as a leaf of `backend`.

    JAX has no 64-bit integers unless asked for, so there the pair becomes four
    unsigned 32-bit words and no bit of the secret is lost.
    """
    if backend == "tf":
        tf = sys.modules["tensorflow"]
        if structure.backend_of(seed) != "tf":
            seed = _seed_words(seed).view(np.int64)
        return tf.reshape(tf.cast(seed, tf.int64), [2])
    if backend == "jax":
        jnp = sys.modules["jax"].numpy
        if structure.backend_of(seed) == "jax":
            assert not isinstance(seed, Sequence)
            if seed.shape == (4,) and seed.dtype == jnp.uint32:
                return seed
            if seed.dtype.itemsize < 8:
                raise ValueError(
                    f"seed is a JAX array of {seed.dtype}, too short for two 64-bit "
                    "integers; give numpy int64[2], a pair of Python integers, or "
                    "the uint32[4] of an earlier state"
                )
        return jnp.asarray(_seed_words(seed).view(np.uint32))
    return _seed_words(seed).view(np.int64)


def _seed_words(seed: Seed) -> np.ndarray:
    """Returns `seed` as numpy uint64[2], whatever integers it was given as."""
    flat = np.asarray(seed, dtype=object).reshape(-1).tolist()
    whole = all(isinstance(word, int | np.integer) for word in flat)
    words = [int(word) for word in flat] if whole else []
    if len(words) != 2 or not all(-(2**63) <= word < 2**64 for word in words):
        raise ValueError(f"seed must be two integers of 64 bits, got {seed!r}")
    return np.array([word % 2**64 for word in words], np.uint64)


def counter_in(backend: str, value: Scalar) -> Array:
    """Returns a round counter as a leaf of `backend`: int64 (int32 in plain JAX)."""
    if backend == "tf":
        tf = sys.modules["tensorflow"]
        return tf.cast(value, tf.int64)
    if backend == "jax":
        jax = sys.modules["jax"]
        return jax.numpy.asarray(value, jax.dtypes.canonicalize_dtype(np.int64))
    return np.asarray(value, np.int64)


def normals(
    seed: Array, position: Scalar, like: Form, backend: str, index: Scalar = 0
) -> Form:
    """Draws i.i.d. standard normals in the form of `like`.

    Args:
      seed: What `seed_in` returned for this backend.
      position: The round the draw belongs to, below 2^40.
      like: A structure whose leaves give shapes and dtypes.
      backend: 'numpy', 'tf' or 'jax'.
      index: Tells several draws of one round apart, below `MAX_INDEX`.

    Returns:
      A structure like `like`; different arguments give independent draws.
    """
    one = {"numpy": _numpy_normal, "tf": _tf_normal, "jax": _jax_normal}[backend]
    flat = structure.leaves(like)
    drawn = [one(seed, position, i, index, leaf) for i, leaf in enumerate(flat)]
    return structure.pack(like, drawn)


def _numpy_normal(seed, position, leaf, index, like) -> np.ndarray:
    """Draws with Philox keyed by the seed; each draw has 2**64 counters of its own."""
    counter = [0, int(index), int(leaf), int(position)]
    key = np.asarray(seed).view(np.uint64)
    philox = np.random.Philox(key=key, counter=np.array(counter, np.uint64))
    shape = np.shape(like)
    count, wide = math.prod(shape), _wide(like)
    words = philox.random_raw(transforms.words_for(count, wide))
    drawn = transforms.from_words(words, count, wide, "numpy")
    return drawn.reshape(shape).astype(structure.dtype_of(like))


def _tf_normal(seed, position, leaf, index, like) -> Array:
    """Draws with Philox under a key that Philox itself derives from the names.

    The 128 bits of the derived block become the key and the high half of the counter,
    so a collision of two draws is as unlikely as one of 128-bit hashes.
    """
    tf = sys.modules["tensorflow"]
    philox = tf.constant(1, tf.int32)
    seed = tf.bitcast(seed, tf.uint64)
    position = tf.cast(position, tf.int64)
    word = (position * MAX_LEAVES + leaf) * MAX_INDEX + tf.cast(index, tf.int64)
    block = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=seed[:1],
        counter=tf.stack([seed[1], tf.bitcast(word, tf.uint64)]),
        alg=philox,
        dtype=tf.uint64,
    )
    shape, wide = _tf_shape(like), _wide(like)
    known = isinstance(shape, list)
    count = math.prod(shape) if known else tf.reduce_prod(shape)
    # Where the shape is open there may be no element at all, but there is a block.
    least = count if known else tf.maximum(count, 1)
    size = min(count, TF_BLOCK) if known else tf.minimum(least, TF_BLOCK)

    def draw(number):
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.reshape(transforms.words_for(size, wide), [1]),
            key=block[:1],
            # Each number leaves room for 2**32 steps of the counter, four words each.
            counter=tf.stack([tf.cast(number, tf.uint64) * 2**32, block[1]]),
            alg=philox,
            dtype=tf.uint64,
        )
        return transforms.from_words(words, size, wide, "tf")

    if known and count <= TF_BLOCK:
        drawn = draw(0)
    else:
        blocks = -(-least // size)
        drawn = _tf_blocks(draw, blocks, [size] if known else [None], wide)
    drawn = tf.reshape(drawn[:count], shape)
    drawn.set_shape(like.shape)
    return tf.cast(drawn, like.dtype)


def _tf_blocks(draw, blocks: Scalar, shape: list, dtype: np.dtype) -> Array:
    """Joins draw(0), draw(1), …, of which at most two are made at a time."""
    tf = sys.modules["tensorflow"]
    parts = tf.TensorArray(dtype, blocks, element_shape=shape)
    _, parts = tf.while_loop(
        lambda number, _: number < blocks,
        lambda number, parts: (number + 1, parts.write(number, draw(number))),
        (0, parts),
        parallel_iterations=2,
    )
    return tf.reshape(parts.stack(), [-1])


def _tf_shape(like) -> Array:
    """Returns the shape of a tensor (or spec), static where it is known."""
    static = like.shape
    if static.is_fully_defined():
        return static.as_list()
    return sys.modules["tensorflow"].shape(like)


def _jax_normal(seed, position, leaf, index, like) -> Array:
    """Draws with threefry, folding in the names one by one."""
    jax = sys.modules["jax"]
    key = jax.random.wrap_key_data(seed[:2], impl="threefry2x32")
    for name in (seed[2], seed[3], position, leaf, index):
        key = jax.random.fold_in(key, name)
    draw = _jax_draw(tuple(like.shape), _wide(like))
    return draw(key).astype(like.dtype)


@functools.cache
def _jax_draw(shape: tuple[int, ...], wide: np.dtype) -> Callable[[Array], Array]:
    """Returns the draw compiled as one piece: the same inside a trace and outside."""
    jax = sys.modules["jax"]
    count = math.prod(shape)

    def draw(key):
        if wide == np.float64:
            long = transforms.words_for(count, wide)
            words = jax.random.bits(key, (long,), np.uint64)
            drawn = transforms.from_words(words, count, wide, "jax")
        else:
            short = (transforms.SHORT_WORDS, transforms.pairs_for(count))
            words = jax.random.bits(key, short, np.uint32)
            drawn = transforms.from_short_words(words, count)
        return drawn.reshape(shape)

    return jax.jit(draw)


def _wide(like: Array) -> np.dtype:
    """Returns the dtype to draw in: half precision is drawn in single and rounded."""
    return np.dtype(np.float64 if structure.dtype_of(like) == np.float64 else "f4")


def zeros(like: Form, backend: str) -> Form:
    """Returns zeros in the form of `like`, whose leaves may be mere specs."""

    def one(leaf):
        if backend == "tf":
            return sys.modules["tensorflow"].zeros(_tf_shape(leaf), leaf.dtype)
        if backend == "jax":
            return sys.modules["jax"].numpy.zeros(leaf.shape, leaf.dtype)
        return np.zeros(np.shape(leaf), structure.dtype_of(leaf))

    return structure.map_leaves(one, like)


def combine(terms: list[tuple[float, Structure]]) -> Structure:
    """Adds up coefficient times structure, in the dtype of the structures.

    Coefficients are Python floats or scalars of the structures' own library.
    """

    def one(*parts):
        total = None
        for (weight, _), part in zip(terms, parts, strict=True):
            if isinstance(weight, float) and weight == 1.0:
                term = part
            elif isinstance(weight, float) and weight == -1.0 and total is not None:
                total = total - part
                continue
            else:
                term = _scalar_for(part, weight) * part
            total = term if total is None else total + term
        if structure.backend_of(total) == "numpy":
            # numpy turns arrays without dimensions into float64 on the way.
            return np.asarray(total, structure.dtype_of(parts[0]))
        return total

    return structure.map_leaves(one, *[part for _, part in terms])


def _scalar_for(part: Array, weight: Scalar) -> Scalar:
    """Casts a coefficient to the dtype of the leaf that it multiplies."""
    if isinstance(weight, float) and math.isfinite(weight):
        return weight
    return structure.cast(weight, structure.dtype_of(part))


def while_loop(
    condition: Callable[..., Scalar],
    body: Callable[..., tuple],
    carry: tuple,
    backend: str,
) -> tuple:
    """Runs `carry = body(*carry)` as long as `condition(*carry)` holds."""
    if backend == "tf":
        tf = sys.modules["tensorflow"]
        return tf.while_loop(condition, body, carry, parallel_iterations=1)
    if backend == "jax":
        return sys.modules["jax"].lax.while_loop(
            lambda c: condition(*c), lambda c: body(*c), carry
        )
    while condition(*carry):
        carry = body(*carry)
    return carry


def within(position: Scalar, limit: int | None, backend: str, what: str) -> Array:
    """Returns `position`, refusing (as well as a graph can) to pass `limit`.

    numpy and eager TensorFlow raise at once, a TensorFlow graph when it runs. JAX
    cannot raise inside a trace, so there a negative position is passed on and
    `poison` turns the noise into NaN.
    """
    if limit is None:
        return position
    message = f"{what} was built for {limit} rounds and was asked for one more"
    if backend == "tf":
        tf = sys.modules["tensorflow"]
        check = tf.debugging.assert_less(
            position, tf.constant(limit, tf.int64), message=message
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(position)
    if backend == "numpy" and int(position) >= limit:
        raise ValueError(message)
    return position


def poison(noise: Form, position: Scalar, limit: int | None) -> Form:
    """Replaces JAX noise beyond `limit` by NaN: a run that goes too far must fail."""
    if limit is None or structure.backend_of(position) != "jax":
        return noise
    jnp = sys.modules["jax"].numpy
    return structure.map_leaves(
        lambda leaf: jnp.where(position < limit, leaf, jnp.nan), noise
    )

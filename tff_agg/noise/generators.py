"""Stateless standard normals: what is drawn depends on its name only.

A draw is a pure function of (seed, round, leaf, index): nothing is consumed, so a
resumed run sees the same noise again, and a mechanism may regenerate a past draw
instead of keeping a model-sized copy of it. `normals.py` says how words become normals.

The seed chooses where the words come from:

* Two integers of 64 bits: each library's own counter-based generator (numpy and
  TensorFlow: Philox, JAX: threefry). The bits differ from library to library. These are
  good generators, not ciphers.
* Four integers: AES-256 in counter mode, with the seed as the key. Whoever has any
  number of draws cannot tell the others from uniform ones without breaking AES. The
  words are made by Python code, in graphs of TensorFlow and traces of JAX as well, so
  such a graph runs in the process that made it only. numpy and TensorFlow draw the same
  words for the same normals.
"""

import functools
import math
import sys
from collections.abc import Callable

import numpy as np

from tff_agg import backends, structure
from tff_agg.aliases import Array, Scalar
from tff_agg.backends import Backend
from tff_agg.noise import normals as transforms
from tff_agg.noise.seeds import CIPHER_WORDS
from tff_agg.structure import Form

# round, leaf and index share one 64-bit word of the TensorFlow counter.
MAX_LEAVES = 2**16
# The last two leaves are no leaves of a model: draws for other ends have their names.
RESERVED_LEAVES = 2
SAMPLING_LEAF = MAX_LEAVES - 2
MAX_INDEX = 2**8
# TensorFlow and the cipher make this many normals at a time, so that what lies between
# words and normals stays in a core's cache. Streams depend on it.
BLOCK = 2**16


# --- draws -------------------------------------------------------------------------


def normals(
    backend: Backend, seed: Array, round: Scalar, like: Form, index: Scalar = 0
) -> Form:
    """Draws i.i.d. standard normals in the form of `like`.

    Args:
      backend: The library of `like`.
      seed: What `seed_in` returned for this library.
      round: The round the draw belongs to, below 2^40.
      like: A structure whose leaves give shapes and dtypes.
      index: Tells several draws of one round apart, below `MAX_INDEX`.

    Returns:
      A structure like `like`; different arguments give independent draws.
    """
    one = _NORMALS[backend.name]
    flat = structure.leaves(like)
    drawn = [one(backend, seed, round, i, index, leaf) for i, leaf in enumerate(flat)]
    return structure.pack(like, drawn)


def cipher_words(
    seed: Array, round: Scalar, leaf: Scalar, index: Scalar, block: Scalar, count: int
) -> np.ndarray:
    """Returns the words of 64 bits that AES-256-CTR makes under a seed of four.

    The counter is that of the mode: 128 bits, most significant byte first. 40 bits of
    round, 16 of leaf, 8 of index and 32 of block leave 2**32 steps of 16 bytes to each
    name, so no two names share one.
    """
    # It takes a moment to load, and known seeds do not need it.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    name = int(round) << 56 | int(leaf) << 40 | int(index) << 32 | int(block)
    start = (name << 32).to_bytes(16, "big")
    key = np.asarray(seed).tobytes()
    cipher = Cipher(algorithms.AES256(key), modes.CTR(start)).encryptor()
    size = 8 * int(count)
    # The interface wants room for one more step.
    made = np.empty(size + 16, np.uint8)
    cipher.update_into(np.zeros(size, np.uint8).data, made.data)
    return made[:size].view("<u8")


def _numpy_normal(backend, seed, round, leaf, index, like) -> np.ndarray:
    """Draws with Philox keyed by the seed, or with the cipher block by block."""
    shape, wide = np.shape(like), _wide(like)
    count = math.prod(shape)
    if seed.shape == (CIPHER_WORDS,):
        size = min(count, BLOCK)
        long = int(transforms.words_for(size, wide))
        parts = [np.empty(0, wide)]
        for block in range(-(-count // BLOCK)):
            words = cipher_words(seed, round, leaf, index, block, long)
            parts.append(transforms.from_words(backend, words, size, wide))
        drawn = np.concatenate(parts)[:count]
    else:
        # Each draw has 2**64 counters of its own.
        counter = [0, int(index), int(leaf), int(round)]
        key = np.asarray(seed).view(np.uint64)
        philox = np.random.Philox(key=key, counter=np.array(counter, np.uint64))
        words = philox.random_raw(transforms.words_for(count, wide))
        drawn = transforms.from_words(backend, words, count, wide)
    return drawn.reshape(shape).astype(structure.dtype_of(like))


def _tf_normal(backend, seed, round, leaf, index, like) -> Array:
    """Draws block by block, with Philox or with the cipher."""
    tf = sys.modules["tensorflow"]
    make_words = _tf_cipher if seed.shape == (CIPHER_WORDS,) else _tf_philox
    words = make_words(seed, tf.cast(round, tf.int64), leaf, index)
    shape, wide = backend.shape(like), _wide(like)
    known = isinstance(shape, list)
    count = math.prod(shape) if known else tf.reduce_prod(shape)
    # Where the shape is open there may be no element at all, but there is a block.
    least = count if known else tf.maximum(count, 1)
    size = min(count, BLOCK) if known else tf.minimum(least, BLOCK)

    def draw(number):
        made = words(number, transforms.words_for(size, wide))
        return transforms.from_words(backend, made, size, wide)

    if known and count <= BLOCK:
        drawn = draw(0)
    else:
        blocks = -(-least // size)
        drawn = _tf_blocks(draw, blocks, [size] if known else [None], wide)
    drawn = tf.reshape(drawn[:count], shape)
    drawn.set_shape(like.shape)
    return tf.cast(drawn, like.dtype)


def _tf_philox(seed, round, leaf, index) -> Callable[[Scalar, Scalar], Array]:
    """Draws with Philox under a key that Philox itself derives from the names.

    The 128 bits of the derived block become the key and the high half of the counter,
    so a collision of two draws is as unlikely as one of 128-bit hashes.
    """
    tf = sys.modules["tensorflow"]
    philox = tf.constant(1, tf.int32)
    seed = tf.bitcast(seed, tf.uint64)
    word = (round * MAX_LEAVES + leaf) * MAX_INDEX + tf.cast(index, tf.int64)
    derived = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=seed[:1],
        counter=tf.stack([seed[1], tf.bitcast(word, tf.uint64)]),
        alg=philox,
        dtype=tf.uint64,
    )

    def words(block, long):
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.reshape(long, [1]),
            key=derived[:1],
            # Each block leaves room for 2**32 steps of the counter, four words each.
            counter=tf.stack([tf.cast(block, tf.uint64) * 2**32, derived[1]]),
            alg=philox,
            dtype=tf.uint64,
        )

    return words


def _tf_cipher(seed, round, leaf, index) -> Callable[[Scalar, Scalar], Array]:
    """Calls `cipher_words` from the graph. TensorFlow holds it weakly: no closure."""
    tf = sys.modules["tensorflow"]

    def words(block, long):
        given = [seed, round, leaf, index, block, long]
        made = tf.numpy_function(cipher_words, given, tf.uint64, stateful=False)
        return tf.reshape(made, [long])

    return words


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


def _jax_normal(backend, seed, round, leaf, index, like) -> Array:
    """Draws with threefry, folding in the names one by one, or with the cipher."""
    jax = sys.modules["jax"]
    shape, wide = tuple(like.shape), _wide(like)
    if seed.shape == (2 * CIPHER_WORDS,):
        drawn = _jax_cipher(shape, wide)(seed, round, leaf, index)
    else:
        key = jax.random.wrap_key_data(seed[:2], impl="threefry2x32")
        for name in (seed[2], seed[3], round, leaf, index):
            key = jax.random.fold_in(key, name)
        drawn = _jax_threefry(shape, wide)(key)
    return drawn.astype(like.dtype)


def _jax_from_words(words: Array, shape: tuple[int, ...], wide: np.dtype) -> Array:
    """Turns what `_jax_words_for` asks for into normals."""
    count = math.prod(shape)
    if wide == np.float64:
        drawn = transforms.from_words(backends.of(words), words, count, wide)
    else:
        drawn = transforms.from_short_words(words, count)
    return drawn.reshape(shape)


def _jax_words_for(shape: tuple[int, ...], wide: np.dtype) -> tuple[tuple, np.dtype]:
    """Returns shape and dtype of the words that normals in JAX are made of."""
    count = math.prod(shape)
    if wide == np.float64:
        return (transforms.words_for(count, wide),), np.dtype(np.uint64)
    pairs = transforms.pairs_for(count)
    return (transforms.SHORT_WORDS, pairs), np.dtype(np.uint32)


# Both are compiled as one piece: the same bits inside a trace and outside.


@functools.cache
def _jax_threefry(shape: tuple[int, ...], wide: np.dtype) -> Callable[..., Array]:
    jax = sys.modules["jax"]

    def draw(key):
        words = jax.random.bits(key, *_jax_words_for(shape, wide))
        return _jax_from_words(words, shape, wide)

    return jax.jit(draw)


@functools.cache
def _jax_cipher(shape: tuple[int, ...], wide: np.dtype) -> Callable[..., Array]:
    jax = sys.modules["jax"]
    form, dtype = _jax_words_for(shape, wide)

    def words(seed, round, leaf, index):
        count = math.prod(form) * dtype.itemsize // 8
        made = cipher_words(seed, round, leaf, index, 0, count)
        return made.view(dtype).reshape(form)

    def draw(seed, round, leaf, index):
        result = jax.ShapeDtypeStruct(form, dtype)
        made = jax.pure_callback(words, result, seed, round, leaf, index)
        return _jax_from_words(made, shape, wide)

    return jax.jit(draw)


def _wide(like: Array) -> np.dtype:
    """Returns the dtype to draw in: half precision is drawn in single and rounded."""
    return np.dtype(np.float64 if structure.dtype_of(like) == np.float64 else "f4")


_NORMALS = {"numpy": _numpy_normal, "tf": _tf_normal, "jax": _jax_normal}

"""A seed of four words is a key of AES-256, in every library."""

import numpy as np
import pytest
import scipy.stats

from tff_agg import backends, noise, structure
from tff_agg.noise import generators, seeds

KEY = (0x0123456789ABCDEF, -42, 2**64 - 1, 7)
LIKE = {"a": np.zeros([3], np.float32), "b": np.zeros([70_001], np.float32)}
MECHANISMS = {
    "identity": noise.identity(),
    "tree": noise.restart_every(noise.tree(rounds=3, completion=True), 3),
    "honaker": noise.tree("honaker", 6),
    "blt": noise.blt_from((0.9, 0.4), (0.3, 0.2)),
    "dense": noise.dense_from(np.tril(np.ones((6, 6)))),
}
EVERY = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS.keys())
# A mechanism asks for normals by round and index. Compiled, where both are traced, one
# draw a round and several are all there is to tell apart.
EITHER_WAY_OF_DRAWING = pytest.mark.parametrize("name", ["identity", "tree"])


# --- AES by the standard, as slow and as plain as it may be ---------------------------


def times(a, b):
    """Multiplies in the field of 256 elements."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def substitute(byte):
    inverse = next((b for b in range(256) if times(byte, b) == 1), 0)
    turned = [inverse << k | inverse >> 8 - k for k in range(5)]
    return (turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4] ^ 0x63) & 0xFF


BOX = [substitute(byte) for byte in range(256)]


def encrypted(key: bytes, block: bytes) -> bytes:
    """Returns what AES-256 makes of 16 bytes, as FIPS 197 says."""
    words, power = [list(key[i : i + 4]) for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = [BOX[b] for b in word[1:] + word[:1]]
            word, power = [word[0] ^ power, *word[1:]], times(power, 2)
        elif i % 8 == 4:
            word = [BOX[b] for b in word]
        words.append([a ^ b for a, b in zip(words[i - 8], word, strict=True)])
    keys = [[b for word in words[4 * r : 4 * r + 4] for b in word] for r in range(15)]
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for r in range(1, 15):
        state = [BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if r < 14:
            mixed = []
            for column in range(0, 16, 4):
                part = state[column : column + 4]
                for i in range(4):
                    two, three, *ones = part[i:] + part[:i]
                    mixed.append(times(two, 2) ^ times(three, 3) ^ ones[0] ^ ones[1])
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[r], strict=True)]
    return bytes(state)


def test_the_plain_aes_gives_the_standards_example():
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    expected = "8ea2b7ca516745bfeafc49904b496089"
    assert encrypted(bytes(range(32)), block).hex() == expected


@pytest.mark.parametrize(
    "name", [(0, 0, 0, 0), (1, 2, 3, 4), (2**40 - 1, 2**16 - 1, 2**8 - 1, 2**32 - 1)]
)
def test_words_are_those_of_aes_in_counter_mode(name):
    round, leaf, index, block = name
    start = round << 88 | leaf << 72 | index << 64 | block << 32
    key = b"".join((word % 2**64).to_bytes(8, "little") for word in KEY)
    stream = b"".join(
        encrypted(key, (start + step).to_bytes(16, "big")) for step in range(3)
    )
    seed = seeds.seed_in(backends.NUMPY, KEY)
    found = generators.cipher_words(seed, *name, 5)
    assert found.dtype == np.uint64
    assert found.astype("<u8").tobytes() == stream[:40]


# --- one noise in every library ------------------------------------------------------


def drawn(mechanism, like, seed=KEY, rounds=6, step=None):
    state, found = mechanism.init(like, seed), []
    for _ in range(rounds):
        state, value = (step or mechanism.next)(state, like)
        found.append(structure.map_leaves(np.asarray, value))
    return found


def assert_alike(a, b, **tolerance):
    for one, other in zip(structure.leaves(a), structure.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@EVERY
def test_numpy_and_tensorflow_draw_the_same(mechanism):
    """The last bits of elementary functions differ, the words do not."""
    import tensorflow as tf

    here = drawn(mechanism, LIKE)
    like = structure.map_leaves(tf.constant, LIKE)
    there = drawn(mechanism, like)
    traced = drawn(mechanism, like, step=tf.function(mechanism.next))
    assert_alike(here, there, atol=2e-5)
    assert_alike(there, traced, atol=2e-6)


@EITHER_WAY_OF_DRAWING
def test_graphs_of_tensorflow_1_of_any_shape_draw_the_same(name):
    import tensorflow as tf

    mechanism = MECHANISMS[name]
    expected = drawn(mechanism, structure.map_leaves(tf.constant, LIKE))
    start = mechanism.init(structure.map_leaves(tf.constant, LIKE), KEY)
    held = [np.asarray(leaf) for leaf in structure.leaves(start)]
    for known in (True, False):
        state = held
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:

            def place(leaf, known=known):
                floating = leaf.dtype == np.float32
                shape = leaf.shape if known or not floating else [None]
                return tf.compat.v1.placeholder(leaf.dtype, shape)

            like = structure.map_leaves(place, LIKE)
            places = [place(leaf) for leaf in held]
            outputs = mechanism.next(structure.pack(start, places), like)
            fetched = [structure.leaves(output) for output in outputs]
            given = dict(
                zip(structure.leaves(like), structure.leaves(LIKE), strict=True)
            )
            for value in expected:
                feed = given | dict(zip(places, state, strict=True))
                state, found = session.run(fetched, feed)
                assert_alike(found, structure.leaves(value), atol=2e-6)


@pytest.mark.parametrize(
    ("name", "wide"), [("identity", False), ("identity", True), ("tree", True)]
)
def test_jax_draws_alike_outside_and_inside_of_a_trace(name, wide):
    import jax
    from jax.experimental import enable_x64

    mechanism = MECHANISMS[name]
    with enable_x64(wide):
        like = structure.map_leaves(jax.numpy.asarray, LIKE)
        eager = drawn(mechanism, like)
        traced = drawn(mechanism, like, step=jax.jit(mechanism.next))

        def body(state, _):
            return mechanism.next(state, like)

        state = mechanism.init(like, KEY)
        _, scanned = jax.lax.scan(body, state, None, length=6)
    assert_alike(eager, traced, atol=2e-6)
    for t in range(6):
        at = structure.map_leaves(lambda leaf, t=t: leaf[t], scanned)
        assert_alike(eager[t], at, atol=2e-6)


@pytest.mark.parametrize("library", ["numpy", "tf", "jax"])
def test_the_law_is_normal_and_depends_on_every_word_of_the_key(library):
    like = np.zeros(200_001, np.float32)
    if library == "tf":
        import tensorflow as tf

        like = tf.constant(like)
    elif library == "jax":
        import jax

        like = jax.numpy.asarray(like)
    (first,) = drawn(noise.identity(), like, rounds=1)
    assert scipy.stats.kstest(first, "norm").pvalue > 1e-4
    assert len(np.unique(first)) > 190_000
    for place in range(4):
        other = list(KEY)
        other[place] ^= 1 << 40
        (second,) = drawn(noise.identity(), like, seed=other, rounds=1)
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))
    (again,) = drawn(noise.identity(), like, rounds=1)
    np.testing.assert_array_equal(again, first)


@EVERY
def test_resuming_continues_the_same_noise(mechanism):
    whole = drawn(mechanism, LIKE)
    state = mechanism.init(LIKE, KEY)
    assert state["seed"].shape == (4,)
    for value in whole:
        state = structure.map_leaves(lambda x: np.array(x, copy=True), state)
        state, found = mechanism.next(state, LIKE)
        assert_alike(found, value, rtol=0)


def test_fresh_seeds_are_keys_and_differ():
    seeds = {tuple(noise.fresh_seed()) for _ in range(20)}
    assert len(seeds) == 20 and {len(seed) for seed in seeds} == {4}
    assert noise.fresh_seed(words=2).shape == (2,)
    with pytest.raises(ValueError, match="words must be one of 2, 4, got 3"):
        noise.fresh_seed(3)
    words = np.array([noise.fresh_seed() for _ in range(200)])
    # Both signs of each word, and every bit.
    bits = np.unpackbits(words.view(np.uint8), axis=1)
    assert bits.sum(axis=0).min() > 40 and bits.sum(axis=0).max() < 160


def test_a_seed_that_is_a_tensor_of_another_length_is_refused():
    import tensorflow as tf

    with pytest.raises(ValueError, match=r"seed must be two .* four .*\(3,\)"):
        noise.identity().init(tf.zeros(2), tf.constant([1, 2, 3], tf.int64))

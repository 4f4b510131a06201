"""Normals have the right law far into the tail and lie on no lattice.

The lattice tests ask of every draw whether some uniform of so many bits could have
made it. A generator that makes its normals of such uniforms answers yes always; one
that shows no lattice answers as a coin does, for the draw and for the draw moved by
what a user may have added.
"""

import contextlib
import functools
import math

import numpy as np
import pytest
import scipy.stats

from tff_agg import backends
from tff_agg.noise import generators, seeds

SEED = (0x0123456789ABCDEF, -42)
LIBRARIES = pytest.mark.parametrize("backend", ["numpy", "tf", "jax"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def zeros(backend, shape, dtype="float32"):
    """Returns a leaf to draw for; float64 in JAX asks for `wide_jax`."""
    if backend == "tf":
        import tensorflow as tf

        return tf.zeros(shape, dtype)
    if backend == "jax":
        import jax.numpy as jnp

        return jnp.zeros(shape, dtype)
    return np.zeros(shape, dtype)


@contextlib.contextmanager
def wide_jax(dtype):
    """Gives JAX its 64-bit types for a while, where `dtype` needs them."""
    if dtype != "float64":
        yield
        return
    from jax.experimental import enable_x64

    with enable_x64():
        yield


def drawn(backend, shape, dtype="float32", position=0, index=0, seed=SEED):
    """Returns the normals of one leaf, as numpy."""
    with wide_jax(dtype):
        like = [zeros(backend, shape, dtype)]
        library = backends.of(like)
        seed = seeds.seed_in(library, seed)
        found = generators.normals(library, seed, position, like, index)[0]
        found = np.asarray(found)
    assert found.shape == tuple(np.atleast_1d(shape)) and found.dtype == dtype
    return found


# --- the lattice -------------------------------------------------------------------

SIZE = 2**19
# How many bits uniforms have in the generators that we know, and a few more.
BITS = {"float32": (22, 23, 24, 31, 32), "float64": (52, 53, 63, 64)}


def pairings(z):
    """Yields the ways in which neighbours may come from one pair of uniforms."""
    yield z[0::2], z[1::2]
    half = len(z) // 2
    yield z[:half], z[half:]
    # TensorFlow's blocks.
    blocks = z.reshape(-1, min(len(z), 2**16))
    half = blocks.shape[1] // 2
    yield blocks[:, :half].ravel(), blocks[:, half:].ravel()


def uniforms(z):
    """Yields uniforms that may have made the draws, and how precisely we know them.

    The uniforms of Box and Muller's radius and angle, in extended precision. The other
    number is their relative error for a relative error of one in the draws.
    """
    for x, y in pairings(z):
        square = x * x + y * y
        yield np.exp(-square / 2), square
        turn = np.arctan2(np.abs(y), np.abs(x)) / (2 * np.longdouble(math.pi))
        yield turn, np.ones_like(turn)


def inverse_uniforms(z):
    """Yields the uniforms that an inverse distribution function turns into draws."""
    below = z[z < -1]
    # double precision is all that SciPy offers; single precision draws are coarser
    chance = scipy.stats.norm.cdf(below.astype(np.float64))
    yield chance.astype(np.longdouble), below**2


def shares_on_grids(z, dtype):
    """Yields (share of draws that are on a grid, how many draws that is)."""
    epsilon = np.finfo(dtype).eps
    maps = list(uniforms(z))
    if dtype == "float32":
        maps += inverse_uniforms(z)
    for bits in BITS[dtype]:
        for uniform, error in maps:
            steps = uniform * np.longdouble(2) ** bits
            # Only where rounding leaves the place between two grid points readable.
            sharp = (steps * error * epsilon < 0.1) & (steps > 2)
            away = np.abs(steps[sharp] - np.rint(steps[sharp]))
            if len(away) >= 30:
                yield np.mean(away < 0.25), len(away)


@LIBRARIES
@DTYPES
def test_no_draw_or_pair_tells_a_user_by_a_lattice(backend, dtype):
    z = drawn(backend, SIZE, dtype).astype(np.longdouble)
    moved = z + np.longdouble(0.1)
    checked = 0
    for hypothesis in (z, moved):
        for share, count in shares_on_grids(hypothesis, dtype):
            assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(count), (share, count)
            checked += 1
    assert checked >= 20


def test_the_lattice_tests_see_known_lattices():
    rng = np.random.default_rng(1)

    def worst(z, dtype):
        return max(
            abs(share - 0.5) * 2 * math.sqrt(count)
            for share, count in shares_on_grids(z.astype(np.longdouble), dtype)
        )

    for dtype, bits in (("float32", 23), ("float64", 52)):
        u, v = rng.integers(1, 2**bits, (2, SIZE // 2)) * 2.0**-bits
        fine = np.longdouble(1)
        r = np.sqrt(-2 * np.log(u * fine))
        angle = 2 * np.longdouble(math.pi) * rng.random(SIZE // 2)
        z = np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1).ravel()
        assert worst(z.astype(dtype), dtype) > 100
        angle = 2 * np.longdouble(math.pi) * v
        r = np.sqrt(-2 * np.log(rng.random(SIZE // 2) * fine))
        z = np.concatenate([r * np.cos(angle), r * np.sin(angle)])
        assert worst(z.astype(dtype), dtype) > 100
    z = scipy.stats.norm.ppf(rng.integers(1, 2**23, SIZE) * 2.0**-23)
    assert worst(z.astype(np.float32), "float32") > 100


# --- the tail ----------------------------------------------------------------------


def lengths(backend, dtype, exponents):
    """Returns the lengths of pairs whose uniform of the radius is 2**-exponent."""
    from tff_agg.noise import normals

    pairs = normals.pairs_for(2 * len(exponents))
    places = [2 ** (96 - exponent) for exponent in exponents]
    places += [2**95] * (pairs - len(places))
    if backend == "jax" and dtype == "float32":
        import jax.numpy as jnp

        words = np.zeros((normals.SHORT_WORDS, pairs), np.uint32)
        for row in range(3):
            words[row] = [2 * place >> (64 - 32 * row) & 0xFFFFFFFF for place in places]
        # Angles, no blur, and the half of the small uniforms.
        words[3], words[7] = 2**31 + 12345, 1
        z = normals.from_short_words(jnp.asarray(words), 2 * pairs)
    else:
        high = np.array([place >> 32 for place in places], np.uint64)
        low = np.array([place & 0xFFFFFFFF for place in places], np.uint64)
        angle = np.full(pairs // 2, 2**60 + 2**29, np.uint64)
        if dtype == "float64":
            turn = low << np.uint64(32)
        else:
            turn = low.astype(np.uint32).view(np.uint64)
        words = np.concatenate([high, turn, angle])
        assert len(words) == normals.words_for(2 * pairs, np.dtype(dtype))
        with wide_jax(dtype):
            leaf = as_leaf(backend, words)
            z = normals.from_words(backends.of(leaf), leaf, 2 * pairs, np.dtype(dtype))
    z = np.asarray(z, np.float64)
    return np.hypot(z[:pairs], z[pairs:])[: len(exponents)]


def as_leaf(backend, words):
    if backend == "tf":
        import tensorflow as tf

        return tf.constant(words)
    if backend == "jax":
        import jax.numpy as jnp

        return jnp.asarray(words)
    return words


@LIBRARIES
@DTYPES
def test_the_length_of_a_pair_is_right_to_beyond_ten_sigma(backend, dtype):
    exponents = range(2, 88)
    found = lengths(backend, dtype, exponents)
    expected = np.sqrt(2 * math.log(2) * np.array(exponents))
    assert expected[-1] > 10.9
    # The factor 1 + it is what the tolerance is for.
    np.testing.assert_allclose(found, expected, rtol=2e-4)


@LIBRARIES
@DTYPES
def test_the_most_extreme_words_give_finite_draws_up_to_the_bound(backend, dtype):
    from tff_agg.noise import normals

    farthest = 0.0
    for byte in (0x00, 0xFF, 0x80, 0x7F, 0x01):
        if backend == "jax" and dtype == "float32":
            pairs = normals.pairs_for(100)
            words = np.full((4 * normals.SHORT_WORDS, pairs), byte, np.uint8)
            words = words.reshape(-1).view(np.uint32).reshape(-1, pairs).copy()
            for choices in range(16):
                words[7] = choices
                z = normals.from_short_words(as_leaf(backend, words), 100)
                assert np.isfinite(z).all()
                farthest = max(farthest, np.abs(z).max())
            continue
        count = normals.words_for(100, np.dtype(dtype))
        words = np.full(8 * count, byte, np.uint8).view(np.uint64)
        with wide_jax(dtype):
            leaf = as_leaf(backend, words)
            library = backends.of(leaf)
            z = np.asarray(normals.from_words(library, leaf, 100, np.dtype(dtype)))
        assert np.isfinite(z).all() and z.shape == (100,) and z.dtype == dtype
        farthest = max(farthest, np.abs(z).max())
    assert farthest >= (1 - 1e-6) * normals.BOUND
    assert normals.BOUND > 11.5


# --- the law -----------------------------------------------------------------------

TAIL = np.array([3.25, 3.5, 3.75, 4, 4.25, 4.5, 4.75, 5, np.inf])
EDGES = np.concatenate([-TAIL[::-1], np.linspace(-3, 3, 121), TAIL])


def p_value(z):
    """Chi-squared test of a standard normal, with the tail in bins of its own.

    Args:
      z: The draws in their order by size, so that they need not be gone through.
    """
    counts = np.diff(np.searchsorted(z, EDGES.astype(z.dtype)))
    expected = np.diff(scipy.stats.norm.cdf(EDGES)) * len(z)
    # The upper bins as differences of the upper tail, which has the digits.
    upper = -np.diff(scipy.stats.norm.sf(EDGES)) * len(z)
    expected = np.where(EDGES[:-1] > 0, upper, expected)
    return scipy.stats.chisquare(
        counts, expected * (counts.sum() / expected.sum())
    ).pvalue


def within(z, bound):
    """Returns the draws between −bound and bound, of draws in their order."""
    first, end = np.searchsorted(z, np.array([-bound, bound], z.dtype))
    return z[first:end]


@LIBRARIES
def test_ten_million_draws_are_normal_with_their_tail(backend):
    z = drawn(backend, 10_000_000)
    assert scipy.stats.kstest(z[:1_000_000], "norm").pvalue > 1e-4
    z = np.sort(z)
    assert p_value(z) > 1e-4
    assert p_value(np.float32(1.005) * z) < 1e-6
    assert p_value(within(z, 4)) < 1e-6
    # Among small draws float32 itself lets 0.7 coincide. A grid lets many.
    small = within(z, 1e-3)
    assert len(small) > 7000 and len(small) - len(np.unique(small)) <= 6


@LIBRARIES
def test_a_million_draws_in_double_precision_are_normal(backend):
    z = np.sort(drawn(backend, 1_000_000, "float64"))
    assert p_value(z) > 1e-4
    assert p_value(1.02 * z) < 1e-6
    assert p_value(within(z, 3.5)) < 1e-6
    assert scipy.stats.kstest(z, "norm").pvalue > 1e-4
    assert len(np.unique(z)) == len(z)


@LIBRARIES
@DTYPES
def test_members_of_a_pair_neighbours_and_draws_are_independent(backend, dtype):
    z = drawn(backend, SIZE, dtype).astype(np.float64)
    others = [
        drawn(backend, SIZE, dtype, position=1).astype(np.float64),
        drawn(backend, SIZE, dtype, index=1).astype(np.float64),
        drawn(backend, SIZE, dtype, seed=(SEED[0], 1 + SEED[1])).astype(np.float64),
    ]
    couples = [*pairings(z), (z[:-1], z[1:]), *((z, other) for other in others)]
    for x, y in couples:
        for a, b in ((x, y), (x**2, y**2), (x, y**2), (np.abs(x), y), (x**3, y)):
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(a))
        # Directions of pairs are uniform, of long and of short ones alike.
        direction = np.arctan2(y, x) / (2 * math.pi) + 0.5
        for far in (np.hypot(x, y) > 3.5, np.hypot(x, y) < 0.1):
            assert scipy.stats.kstest(direction[far], "uniform").pvalue > 1e-5


# --- one draw, however it is asked for ------------------------------------------------


def draw_in_tensorflow(like):
    import tensorflow as tf

    position = tf.constant(3, tf.int64)
    library = backends.of(like)
    seed = seeds.seed_in(library, SEED)
    return generators.normals(library, seed, position, [like], 1)[0]


@functools.cache
def drawn_for_any_length(dtype):
    """Returns draws of graphs that do not know how many there will be."""
    import tensorflow as tf

    traced = [
        tf.function(
            draw_in_tensorflow, input_signature=[tf.TensorSpec(shape, dtype)]
        ).get_concrete_function()
        for shape in ([None], None)
    ]
    with tf.Graph().as_default() as graph:
        like = tf.compat.v1.placeholder(dtype, [None])
        found = draw_in_tensorflow(like)
    session = tf.compat.v1.Session(graph=graph)
    return [
        *(lambda zeros, one=one: one(tf.constant(zeros)) for one in traced),
        lambda zeros: session.run(found, {like: zeros}),
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 33, 2**16, 2**16 + 1, 200_001])
@DTYPES
def test_tensorflow_draws_alike_in_graphs_and_with_unknown_shapes(count, dtype):
    import tensorflow as tf

    eager = drawn("tf", [count], dtype, position=3, index=1)
    zeros = np.zeros(count, dtype)
    traced = tf.function(
        draw_in_tensorflow, input_signature=[tf.TensorSpec([count], dtype)]
    )
    np.testing.assert_array_equal(traced(zeros), eager)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        like = tf.compat.v1.placeholder(dtype, [count])
        found = session.run(draw_in_tensorflow(like), {like: zeros})
        np.testing.assert_array_equal(found, eager)
    for draw in drawn_for_any_length(dtype):
        np.testing.assert_array_equal(draw(zeros), eager)


@pytest.mark.parametrize("count", [0, 1, 2, 33, 50_001])
@DTYPES
def test_jax_draws_alike_outside_and_inside_of_a_trace(count, dtype):
    import jax

    eager = drawn("jax", [count], dtype, position=3, index=1)
    with wide_jax(dtype):
        like = [zeros("jax", [count], dtype)]
        library = backends.of(like)
        seed = seeds.seed_in(library, SEED)

        def draw(position):
            return generators.normals(library, seed, position, like, 1)[0]

        np.testing.assert_array_equal(jax.jit(draw)(3), eager)
        np.testing.assert_array_equal(
            jax.lax.map(draw, jax.numpy.arange(2, 4))[1], eager
        )


@LIBRARIES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_drawn_in_single_and_rounded(backend, dtype):
    import ml_dtypes

    if backend == "numpy" and dtype == "bfloat16":
        dtype = ml_dtypes.bfloat16
    wide = drawn(backend, 1000, "float32")
    narrow = drawn(backend, 1000, dtype)
    np.testing.assert_array_equal(narrow, wide.astype(narrow.dtype))

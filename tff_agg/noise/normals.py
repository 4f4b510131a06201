"""Standard normals from random words, with a far tail and without a lattice.

What the libraries offer themselves is not good enough to hide a user. TensorFlow
stops at 5.68 standard deviations (it cuts uniforms off at 1e-7, in double precision
too) and JAX at about 5.4; both make their single-precision normals of uniforms of 23
bits, so that a pair of normals lies on a lattice that can be seen.

Here Box and Muller's transform is taken of words that are longer than its results:

* The uniform of the radius has 96 bits or more, hence |z| reaches `BOUND` (11.6). A
  perfect normal is outside with a probability of 4e-31.
* The pair is turned once more by a random small angle, by way of a factor 1 + it with
  t between 0 and `TURN`. The law of a uniform direction does not change by that, and
  the sines of the large angle may come from single precision, which is fast. Since the
  factor is longer than one, by an unknown √(1 + t²), it blurs the radius as well.
* Everything else is done in double precision and rounded once at the end. A pair of
  float32 results has about 2**79 preimages, and more than one up to a radius of 10.4.

JAX has no double precision unless asked for. There `from_short_words` makes float32
normals of float32 numbers whose exponents are right however small they are, and blurs
each result by up to 2**10 of its last places.

What remains (`python -m benchmarks.normals` computes the figures):

* Results are rounded to their dtype, and the scaling and adding that follow round
  again, which proofs over the real numbers do not cover.
* Float64 results are as fine as a sum in double precision: the smallest ones, below
  `TURN` times the radius, are multiples of about 2**-60 of the radius.
* The turn and the blur make the density wrong by 2e-8 of itself at 3 and by 2.5e-6 at
  8 standard deviations.
* Philox and threefry are good generators, not ciphers (`generators.py` has one).
* The last bit may differ from processor to processor, as elementary functions do.
"""

import math
import sys

import numpy as np

from tff_agg import backends, structure
from tff_agg.aliases import Array, Scalar

# The largest tangent of the second, fine turn.
TURN = 2.0**-6
# The longest radius, of float32 pairs: that of the smallest uniform, half of 2**-96.
BOUND = math.sqrt(2 * 97 * math.log(2) / (1 + TURN**2 / 3))
# Words of 32 bits a pair, and how far each result is blurred, in single precision.
SHORT_WORDS = 8
BLUR = 2.0**-14
# A multiple of all vector lengths: no element is left over to slower code, whose last
# bit differs.
_LANES = 16


def pairs_for(count: Scalar) -> Array:
    """Returns how many pairs are made for `count` normals, a number or a tensor."""
    return (count + 2 * _LANES - 1) // (2 * _LANES) * _LANES


def words_for(count: Scalar, dtype: np.dtype) -> Array:
    """Returns how many words of 64 bits `from_words` wants for `count` normals."""
    pairs = pairs_for(count)
    return 2 * pairs + pairs // 2 if dtype == np.float64 else 2 * pairs


def from_words(
    backend: backends.Backend, words: Array, count: Scalar, dtype: np.dtype
) -> Array:
    """Turns random words into standard normals.

    Args:
      backend: The library of `words`; JAX needs its 64-bit types.
      words: uint64[words_for(count, dtype)], uniform and independent.
      count: How many normals to make; in TensorFlow it may be a tensor.
      dtype: float32 or float64, as a numpy dtype.

    Returns:
      `count` normals of `dtype`. The first half are the first members of the pairs.

    Example:
      >>> from_words(backends.NUMPY, np.zeros(32, np.uint64), 1, np.dtype('float32'))
      array([11.595672], dtype=float32)
    """
    pairs = pairs_for(count)
    if dtype == np.float64:
        turn = words[pairs : 2 * pairs]
        angle = backend.bitcast(words[2 * pairs :], np.int32)
    else:
        turn = backend.bitcast(words[pairs : pairs + pairs // 2], np.uint32)
        angle = backend.bitcast(words[pairs + pairs // 2 :], np.int32)
    both = _pairs_in_double(backend, words[:pairs], turn, angle)
    return backend.concatenate([backend.cast(one, dtype) for one in both])[:count]


def _pairs_in_double(
    backend: backends.Backend, radius: Array, turn: Array, angle: Array
) -> tuple[Array, Array]:
    """Makes pairs in float64 of words: uint64, uint32 or uint64, and int32."""
    bits = 8 * structure.dtype_of(turn).itemsize
    # From half a unit on, so that the logarithm below is finite.
    turn = backend.cast(turn, np.float64) + 0.5
    # The word of the turn goes on where that of the radius ends. It matters to
    # radii beyond 9 only, and the direction is uniform whatever the turn is.
    uniform = (backend.cast(radius, np.float64) + turn * 2.0**-bits) * 2.0**-64
    # The divisor is the mean of 1 + t²: the variance is one.
    length = backend.sqrt(backend.log(uniform) * (-2.0 / (1 + TURN**2 / 3)))
    tangent = turn * (TURN * 2.0**-bits)
    angle = backend.cast(angle, np.float32) * (math.pi * 2.0**-31)
    cosine = backend.cast(backend.cos(angle), np.float64)
    sine = backend.cast(backend.sin(angle), np.float64)
    return length * (cosine - tangent * sine), length * (sine + tangent * cosine)


def from_short_words(words: Array, count: int) -> Array:
    """Turns random words into float32 normals of JAX, without 64-bit types.

    Args:
      words: JAX uint32[SHORT_WORDS, pairs_for(count)], uniform and independent.
      count: How many normals to make.
    """
    jax = sys.modules["jax"]
    jnp = jax.numpy

    def unit(*parts):
        """A uniform in (0, 1], with a mantissa of 24 bits however small it is."""
        total = 2.0 ** (-32 * len(parts) - 1)
        for place in range(len(parts), 0, -1):
            total = parts[place - 1].astype(jnp.float32) * 2.0 ** (-32 * place) + total
        return total

    def signed(word):
        """A number in [-1, 1)."""
        word = jax.lax.bitcast_convert_type(word, jnp.int32)
        return word.astype(jnp.float32) * 2.0**-31

    def choice(bit):
        return (words[7] >> bit) & 1 == 1

    # Uniforms in either half of the unit interval are measured from its nearer end:
    # the logarithm has all its digits for the smallest radius and for the largest.
    half = 0.5 * unit(words[0], words[1], words[2])
    minus_log = jnp.where(choice(0), -jnp.log(half), -jnp.log1p(-half))
    length = jnp.sqrt(2.0 * minus_log)
    # So are angles, from the nearest axis.
    angle = (math.pi / 4) * unit(words[3], words[4])
    near = length * jnp.cos(angle)
    far = length * jnp.sin(angle)
    first = jnp.where(choice(1), near, far)
    second = jnp.where(choice(1), far, near)
    first = jnp.where(choice(2), first, -first)
    second = jnp.where(choice(3), second, -second)
    first = first + first * (BLUR * signed(words[5]))
    second = second + second * (BLUR * signed(words[6]))
    return jnp.concatenate([first, second])[:count]

"""Seeds: two or four integers of 64 bits, known ones and secrets.

A seed of four integers is a key of AES-256, and what a secret is by default. One of two
is for known seeds, and for secrets of processes that run on TFF's worker: see
`generators.py`.
"""

import secrets
import sys
from collections.abc import Sequence

import numpy as np

from tff_agg import checks
from tff_agg.aliases import Array
from tff_agg.backends import NUMPY, Backend

#: Two or four secret integers of 64 bits, in a sequence or an array of any library.
Seed = Sequence[int] | Array

KNOWN_WORDS = 2
#: How many integers a seed has that is the key of a cipher.
CIPHER_WORDS = 4

_WANTED = "two integers of 64 bits, or four for AES-256"


def fresh_seed(words: int = CIPHER_WORDS) -> np.ndarray:
    """Returns a secret of the operating system: four integers of 64 bits, or two.

    Example:
      >>> fresh_seed().shape
      (4,)
    """
    check_number(words)
    return np.frombuffer(secrets.token_bytes(8 * words), np.int64)


def check_number(words: int) -> int:
    """Returns how many integers a seed has; refuses what no seed has."""
    return checks.choice("words", words, (KNOWN_WORDS, CIPHER_WORDS))


def generator_name(words: int) -> str:
    """Returns what makes the noise of a seed of so many integers, except in JAX.

    Example:
      >>> generator_name(4)
      'AES-256-CTR'
    """
    return "AES-256-CTR" if check_number(words) == CIPHER_WORDS else "Philox"


def of_run(
    backend: Backend,
    given: Seed | None = None,
    *,
    is_known: bool,
    words: int | None = None,
) -> Array:
    """Returns the seed that a run starts with: the one that is known, or a secret.

    In a graph of TensorFlow a secret is drawn anew whenever the graph runs.

    Args:
      backend: The library that the noise is drawn with.
      given: A known seed; None draws one.
      is_known: Whether the plan says that somebody may know the seed.
      words: How many integers are drawn; four by default, or two where the seed will
        be known.

    Raises:
      ValueError: A seed is given, but the plan counts on a secret one.
    """
    words = words_of(given, is_known, words)
    if given is not None:
        return seed_in(backend, given)
    if backend.name != "tf":
        return seed_in(backend, fresh_seed(words))
    return _drawn_in_graph(words)


def words_of(given: Seed | None, is_known: bool, words: int | None = None) -> int:
    """Returns how many integers a run's seed has; refuses one that must be a secret.

    The arguments are those of `of_run`.
    """
    if given is None:
        return check_number(words or (KNOWN_WORDS if is_known else CIPHER_WORDS))
    seed = seed_in(NUMPY, given)
    if not is_known:
        raise ValueError(
            "a noise seed was given, but the plan counts on one that nobody knows: "
            "leave it out, so that a secret is drawn; or say so in the plan, with "
            "noise_seed_is_known=True, which has no guarantee"
        )
    return len(seed)


def _drawn_in_graph(words: int) -> Array:
    """Draws a secret whenever the operation runs.

    TensorFlow's own non-deterministic integers come from one Mersenne twister a
    process, seeded with 32 bits: few enough to try them all.
    """
    tf = sys.modules["tensorflow"]
    if words == CIPHER_WORDS:
        drawn = tf.numpy_function(fresh_seed, [words], tf.int64, stateful=True)
    else:
        drawn = _from_entropy_file()
    return tf.ensure_shape(drawn, [words])


# Lines of this file have 256 bytes on average. Eight carry thousands of random bits.
_ENTROPY_FILE = "/dev/urandom"
_ENTROPY_LINES = 8


def _from_entropy_file() -> Array:
    """Draws two words without Python, for graphs that run in another program."""
    tf = sys.modules["tensorflow"]
    lines = tf.data.TextLineDataset(_ENTROPY_FILE).take(_ENTROPY_LINES)
    text = lines.reduce(tf.constant(""), lambda read, line: read + line)
    words = []
    for key in ([0x5EED, 1], [0x5EED, 2]):
        # Buckets number below 2**63; the top bit is a hash's low one.
        low = tf.strings.to_hash_bucket_strong(text, 2**63 - 1, key)
        top = tf.strings.to_hash_bucket_strong(text, 2, [key[0], key[1] + 2])
        words.append(tf.where(tf.equal(top, 1), -low - 1, low))
    return tf.stack(words)


def seed_in(backend: Backend, seed: Seed) -> Array:
    """Returns a seed as a leaf of a library: int64[2] or int64[4].

    JAX has no 64-bit integers unless asked for, so there it becomes twice as many
    unsigned 32-bit words and no bit of the secret is lost.
    """
    if backend.name == "jax":
        if not backend.owns(seed):
            return backend.constant(_words(seed).view(np.uint32), np.uint32)
        assert not isinstance(seed, Sequence)
        if seed.dtype == np.uint32 and seed.shape in ((4,), (2 * CIPHER_WORDS,)):
            return seed
        if seed.dtype.itemsize < 8:
            raise ValueError(
                f"seed is a JAX array of {seed.dtype}{list(seed.shape)}, too short for "
                "64-bit integers; give numpy int64, Python integers, or the uint32 of "
                "an earlier state"
            )
        return backend.constant(_words(seed).view(np.uint32), np.uint32)
    if backend.owns(seed) and backend.name == "tf":
        assert not isinstance(seed, Sequence)
        if (shape := tuple(seed.shape)) not in ((2,), (CIPHER_WORDS,)):
            raise ValueError(f"seed must be {_WANTED}, got a tensor of shape {shape}")
        return backend.cast(seed, np.int64)
    return backend.constant(_words(seed).view(np.int64), np.int64)


def _words(seed: Seed) -> np.ndarray:
    """Returns `seed` as numpy uint64, whatever integers it was given as."""
    flat = np.asarray(seed, dtype=object).reshape(-1).tolist()
    words = [int(word) for word in flat] if all(map(checks.is_whole, flat)) else []
    in_range = all(-(2**63) <= word < 2**64 for word in words)
    if len(words) not in (2, CIPHER_WORDS) or not in_range:
        raise ValueError(f"seed must be {_WANTED}, got {seed!r}")
    return np.array([word % 2**64 for word in words], np.uint64)

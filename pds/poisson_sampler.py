"""Which examples are in which batch: Poisson sampling, a function of (seed, step).

Every example is drawn on its own, so that batches have no fixed size. Under a periodic
shift the chance of an example follows from its group and the step; the accountant sees
the same chances. The seed is a secret: amplification by sampling holds for somebody who
does not know the batches.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from pds.groups import Group, sizes_in_words
from pds.schedule import Schedule
from tff_agg import backends, checks
from tff_agg.noise import generators, seeds
from tff_agg.privacy.participation import PoissonSampling, ShiftingPoissonSampling

# Tells this stream apart from the noise, which is keyed by the same secret.
_STREAM = b"tff_agg poisson sampling"
# The cipher draws for this many examples at a time.
_BLOCK = 2**20
# Of so many examples, the places of those that a step takes, each with one chance.
_Draw = Callable[[int, float], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class PoissonSampler:
    """Draws a batch for every step.

    Attributes:
      groups: One or two groups; together they hold 0, 1, …, population_size − 1, each
        example once.
      batch_size: How many examples a batch has on average.
      rounds: Steps of the run.
      seed: The secret: two integers of 64 bits, or four for draws by AES-256-CTR.
      schedule: The share of the first group; needed with two groups.

    Example:
      >>> sampler = PoissonSampler((Group('all', np.arange(10)),), 5, 3, seed=(1, 2))
      >>> sampler.users(0).tolist() == sampler.users(0).tolist()
      True
    """

    groups: Sequence[Group]
    batch_size: int
    rounds: int
    seed: tuple[int, ...]
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if len(self.groups) not in (1, 2):
            raise ValueError(f"groups: must be one or two, got {len(self.groups)}")
        if (self.schedule is None) != (len(self.groups) == 1):
            raise ValueError(
                f"schedule={self.schedule}: two groups need a schedule, one has none"
            )
        every = np.sort(np.concatenate([group.users for group in self.groups]))
        if not np.array_equal(every, np.arange(len(every))):
            raise ValueError(
                "groups: every example must be in one group, numbered from 0; got "
                + sizes_in_words(self.groups)
            )
        smallest = min(self.groups, key=lambda group: len(group.users))
        if not 1 <= self.batch_size <= len(smallest.users):
            raise ValueError(
                f"batch_size={self.batch_size} must be from 1 to the "
                f"{len(smallest.users):,} examples of {smallest.name!r}: a whole batch "
                "may have to come from one group"
            )

    @property
    def cohort_size(self) -> int:
        """How many examples a batch has on average."""
        return self.batch_size

    @property
    def population_size(self) -> int:
        """How many examples there are."""
        return sum(len(group.users) for group in self.groups)

    @functools.cached_property
    def participation(self) -> PoissonSampling | ShiftingPoissonSampling:
        """What the accountant has to know about the batches."""
        if self.schedule is None:
            size = self.population_size
            return PoissonSampling(self.batch_size / size, size)
        steps = [self.chances(t) for t in range(self.rounds)]
        return ShiftingPoissonSampling(
            tuple(zip(*steps, strict=True)), self.population_size
        )

    def chances(self, round: int) -> tuple[float, ...]:
        """Returns the chance of an example of each group to be in a step's batch."""
        if self.schedule is None:
            return (self.batch_size / self.population_size,)
        share = self.schedule.share(round)
        return tuple(
            # Rounded, so that steps alike are alike to the last digit.
            _rounded(self.batch_size * part / len(group.users))
            for part, group in zip((share, 1 - share), self.groups, strict=True)
        )

    def users(self, round: int) -> np.ndarray:
        """Returns the examples of a step's batch, in ascending order."""
        checks.whole("round", round, least=0, most=self.rounds - 1)
        if len(self.seed) == seeds.CIPHER_WORDS:
            draws = _by_cipher(self.seed, round)
        else:
            draws = _by_philox(self.seed, round)
        found = [
            group.users[draws(len(group.users), chance)]
            for group, chance in zip(self.groups, self.chances(round), strict=True)
        ]
        return np.sort(np.concatenate(found))

    def with_seed(self, seed: tuple[int, ...]) -> "PoissonSampler":
        """Returns the sampler of another secret."""
        return dataclasses.replace(self, seed=seed)

    @property
    def fingerprint(self) -> str:
        """A checksum of how batches are drawn: of some that a known seed would give.

        It says nothing of the secret, and changes with the code that draws.
        """
        known = self.with_seed((0,) * len(self.seed))
        digest = hashlib.sha256()
        for t in sorted(
            {0, 1, self.rounds // 2, self.rounds - 1} & {*range(self.rounds)}
        ):
            digest.update(known.users(t).astype(np.int64).tobytes())
        return digest.hexdigest()

    @property
    def shortages(self) -> tuple[()]:
        """No batch falls short: its size is left to chance."""
        return ()

    def describe(self) -> str:
        """Returns in words which examples are taken when."""
        parts = [
            f"batches of {self.batch_size:,} on average in {self.rounds:,} steps, "
            f"drawn from {self.population_size:,} examples "
            f"({sizes_in_words(self.groups)})",
            self.participation.describe(),
        ]
        if self.schedule is not None:
            first = self.groups[0].name
            parts.append(f"{self.schedule.describe()}, starting with {first}")
        return "; ".join(parts)


def _rounded(value: float) -> float:
    """Returns a chance with twelve digits."""
    return round(value, 12)


def _by_cipher(seed: tuple[int, ...], step: int) -> _Draw:
    """Takes each example by a word of AES-256-CTR of its own."""
    key = seeds.seed_in(backends.NUMPY, seed)
    numbers = itertools.count()

    def draw(size: int, chance: float) -> np.ndarray:
        if chance >= 1:
            return np.arange(size)
        # Exact: a product with a power of two.
        below, found = np.uint64(int(chance * 2**64)), []
        for start in range(0, size, _BLOCK):
            words = generators.cipher_words(
                key,
                step,
                generators.SAMPLING_LEAF,
                0,
                next(numbers),
                min(_BLOCK, size - start),
            )
            found.append(start + np.flatnonzero(words < below))
        return np.concatenate(found)

    return draw


def _by_philox(seed: tuple[int, ...], step: int) -> _Draw:
    """Draws how many first, then which.

    The same law as one draw for each example, in the time that the batch takes and not
    the population.
    """
    rng = _generator(seed, step)

    def draw(size: int, chance: float) -> np.ndarray:
        count = rng.binomial(size, chance)
        return rng.choice(size, count, replace=False, shuffle=False)

    return draw


def _generator(seed: tuple[int, ...], step: int) -> np.random.Generator:
    """Returns the random stream of a step."""
    words = np.array([word % 2**64 for word in seed], np.uint64).tobytes()
    key = hashlib.blake2b(words, key=_STREAM, digest_size=16).digest()
    return np.random.Generator(
        np.random.Philox(
            key=np.frombuffer(key, np.uint64),
            counter=np.array([0, 0, 0, step], np.uint64),
        )
    )

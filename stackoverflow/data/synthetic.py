"""The embedded data: users, topics and a small grammar, made from a seed.

Every word belongs to a class. The class of the next word follows from the classes of
the last two (a rule that a small LSTM learns; the last word alone leaves two classes
open), except for a share of free choices. Within a class, words follow a Zipf law with
exponent 2 whose ranking depends on the type of the post and on the topic of the
sentence; users write about few topics. Questions and answers obey different rules and
rankings over the same words, so a model of the one is wrong about the other.

All draws are integer or correctly rounded arithmetic on a Philox stream, so every
machine makes the same sentences.
"""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stackoverflow.data.sources import SCHEMA, SPLITS, TYPES
from tff_agg.aliases import JsonObject

CLASSES = 8
TOPICS = 6
_SHARD_USERS = 2048
_MAX_WORDS = 24
_FREE_CHOICE = 0.1  # share of words whose class ignores the rule
_MAIN_TOPIC = 0.7  # share of a user's sentences on the user's main topic
_ENDINGS = ("?", ".")
_SPLIT_BOUNDS = (0.8, 0.9)
_STREAM_GRAMMAR, _STREAM_USERS, _STREAM_SENTENCES = 1, 2, 3


class _Grammar:
    """Transition rules and word distributions, the same for all users.

    A class has a number from 0 to 3 and a bit. The next class takes its number from a
    permutation of the last number (one permutation for each value of the last bit),
    and its bit from the class before the last. So the last word alone leaves the next
    bit open, the last two settle the next class, and all classes are equally frequent.
    In answers, one of the two permutations is another one, and the bit is turned over
    after half of the numbers.
    """

    def __init__(self, words: int, seed: int):
        generator = _generator(seed, _STREAM_GRAMMAR, 0)
        per_class = words // CLASSES
        numbers = CLASSES // 2
        first, second = (_moving(generator, numbers) for _ in range(2))
        third = _moving(generator, numbers)
        while np.any(third == second):
            third = _moving(generator, numbers)
        # rule[type, bit before last, last class] -> next class; class = 2 number + bit
        self.rule = np.empty((len(TYPES), 2, CLASSES), np.int64)
        for kind, permutations in enumerate(((first, second), (first, third))):
            for last in range(CLASSES):
                number, bit = divmod(last, 2)
                turned = int(kind == 1 and number % 2 == 1)
                for before in range(2):
                    self.rule[kind, before, last] = 2 * permutations[bit][number] + (
                        before ^ turned
                    )
        rank = np.arange(1, per_class + 1, dtype=np.int64)
        self.cumulative = np.cumsum(2**40 // rank**2)
        self.per_class = per_class
        self.ranking = _rankings(generator, per_class)

    def draw(
        self, kind: np.ndarray, topic: np.ndarray, group: np.ndarray, u: np.ndarray
    ) -> np.ndarray:
        """Returns the numbers of words drawn from the classes `group`."""
        # All rankings share one Zipf law, so one table of cumulative weights will do.
        target = (u * self.cumulative[-1]).astype(np.int64)
        rank = np.searchsorted(self.cumulative, target, side="right")
        return group * self.per_class + self.ranking[kind, topic, group, rank]


def _generator(seed: int, stream: int, part: int) -> np.random.Generator:
    """Returns the random stream of one part of the data."""
    return np.random.Generator(
        np.random.Philox(
            key=np.array([seed & (2**64 - 1), stream], np.uint64),
            counter=np.array([0, 0, 0, part], np.uint64),
        )
    )


def _shuffled(generator: np.random.Generator, n: int) -> np.ndarray:
    """Returns a permutation of n numbers that only uses the raw stream."""
    return np.argsort(generator.bit_generator.random_raw(n), kind="stable")


def _moving(generator: np.random.Generator, n: int) -> np.ndarray:
    """Returns a permutation of n numbers that leaves none in its place."""
    while True:
        permutation = _shuffled(generator, n)
        if not np.any(permutation == np.arange(n)):
            return permutation


def _rankings(generator: np.random.Generator, per_class: int) -> np.ndarray:
    """Returns the words of each [type, topic, class] by rank.

    Questions and answers rank the words of every other number differently. A topic
    brings some words of each class forward, behind the first.
    """
    ranking = np.empty((len(TYPES), TOPICS, CLASSES, per_class), np.int64)
    for group in range(CLASSES):
        shared = _shuffled(generator, per_class)
        other = np.roll(shared, -1) if group % 4 < 2 else shared
        for kind, common in enumerate((shared, other)):
            for topic in range(TOPICS):
                moved = _shuffled(generator, per_class)[: max(1, per_class // 8)]
                moved = moved[moved != common[0]]
                rest = common[1:][~np.isin(common[1:], moved)]
                ranking[kind, topic, group] = np.concatenate([common[:1], moved, rest])
    return ranking


@functools.lru_cache(maxsize=4)
def _grammar(words: int, seed: int) -> _Grammar:
    """Returns the grammar, built once per process."""
    return _Grammar(words, seed)


def word_text(number: int) -> str:
    """Returns a pronounceable word for a number.

    Example:
      >>> word_text(0), word_text(65)
      ('baba', 'beba')
    """
    consonants, vowels = "bdfgklmnprstv", "aeiou"
    syllables = [c + v for c in consonants for v in vowels]
    text = ""
    while True:
        text = syllables[number % len(syllables)] + text
        number //= len(syllables)
        if number == 0 and len(text) >= 4:
            return text


@dataclasses.dataclass(frozen=True)
class SyntheticSource:
    """Made-up questions and answers of made-up users.

    User sizes have a heavy tail (density falling like size^(-7/3)), a fifth of the
    users write questions only and a fifth answers only. Users are split 80:10:10 into
    train, heldout and test.

    Attributes:
      users: How many users.
      words: How many different words, punctuation not counted.
      seed: Everything follows from it.
      max_sentences: The largest user's size.

    Example:
      >>> batch = next(SyntheticSource(users=10, seed=1).read(0))
      >>> batch.column('type')[0].as_py()
      'answer'
    """

    users: int = 2000
    words: int = 256
    seed: int = 0
    max_sentences: int = 1000
    name: str = dataclasses.field(default="synthetic", init=False)

    def __post_init__(self):
        if self.users < 10:
            raise ValueError(f"users={self.users}: must be at least 10")
        if self.words < 4 * CLASSES:
            raise ValueError(f"words={self.words}: must be at least {4 * CLASSES}")
        if self.max_sentences < 10:
            raise ValueError(f"max_sentences={self.max_sentences}: at least 10")

    def fingerprint(self) -> JsonObject:
        """Returns the parameters: everything follows from them."""
        return {
            "generator": 1,
            "users": self.users,
            "words": self.words,
            "seed": self.seed,
            "max_sentences": self.max_sentences,
        }

    def num_shards(self) -> int:
        """Returns the number of groups of users."""
        return -(-self.users // _SHARD_USERS)

    def num_sentences(self) -> int:
        """Returns the number of sentences."""
        return sum(
            int(self._sizes(shard)[0].sum()) for shard in range(self.num_shards())
        )

    def _sizes(self, shard: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns every user's number of sentences, question share and split."""
        users = min(_SHARD_USERS, self.users - shard * _SHARD_USERS)
        generator = _generator(self.seed, _STREAM_USERS, shard)
        u = 1.0 - generator.random(_SHARD_USERS)[:users]
        # Pareto with exponent 4/3 by square roots, which all machines round alike.
        sizes = np.floor(10.0 / (np.sqrt(u) * np.sqrt(np.sqrt(u)))).astype(np.int64)
        share = np.clip(generator.random(_SHARD_USERS)[:users] * 5 / 3 - 1 / 3, 0, 1)
        split = np.searchsorted(
            _SPLIT_BOUNDS, generator.random(_SHARD_USERS)[:users], side="right"
        )
        first = np.arange(users) + shard * _SHARD_USERS
        split[first < len(SPLITS)] = first[first < len(SPLITS)]  # no split is empty
        return np.minimum(sizes, self.max_sentences), share, split

    def where(self, shard: int) -> str:
        """Names the group of users."""
        return f"synthetic data, group {shard} of users"

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Yields the sentences of one group of users, user by user."""
        sizes, share, split = self._sizes(shard)
        generator = _generator(self.seed, _STREAM_SENTENCES, shard)
        user = np.repeat(np.arange(len(sizes)), sizes)
        count = len(user)
        kind = (generator.random(count) >= share[user]).astype(np.int64)
        main = (generator.random(len(sizes)) * TOPICS).astype(np.int64)
        topic = (generator.random(count) * TOPICS).astype(np.int64)
        topic = np.where(generator.random(count) < _MAIN_TOPIC, main[user], topic)
        day = (generator.random(count) * 3650).astype(np.int64)
        tokens = self._sentences(generator, kind, topic)
        dates = np.datetime_as_string(np.datetime64("2008-01-01") + day)
        first = shard * _SHARD_USERS
        names = pa.array([f"user{first + i:07d}" for i in range(len(sizes))])
        yield pa.RecordBatch.from_arrays(
            [
                names.take(pa.array(user)),
                pa.array(TYPES).take(pa.array(kind)),
                pa.array([f"{date} 12:00:00 UTC" for date in dates], pa.string()),
                tokens,
                pa.array(SPLITS).take(pa.array(split[user])),
            ],
            schema=SCHEMA,
        )

    def _sentences(
        self, generator: np.random.Generator, kind: np.ndarray, topic: np.ndarray
    ) -> pa.Array:
        """Returns one sentence for each entry of `kind` and `topic`."""
        grammar = _grammar(self.words, self.seed)
        count = len(kind)
        # Questions are short, answers longer; a few pass the usual limit of 20 words.
        spread = generator.random(count)
        longest = np.where(kind == 0, 12, _MAX_WORDS)
        lengths = 3 + np.floor(spread * np.sqrt(spread) * (longest - 3)).astype(
            np.int64
        )
        words = np.empty((count, _MAX_WORDS + 1), np.int64)
        before = (generator.random(count) * CLASSES).astype(np.int64)
        last = (generator.random(count) * CLASSES).astype(np.int64)
        for position in range(int(lengths.max(initial=0))):
            ruled = grammar.rule[kind, before % 2, last]
            free = (generator.random(count) * CLASSES).astype(np.int64)
            group = np.where(generator.random(count) < _FREE_CHOICE, free, ruled)
            words[:, position] = grammar.draw(
                kind, topic, group, generator.random(count)
            )
            before, last = last, group
        used = CLASSES * grammar.per_class
        words[np.arange(count), lengths] = used + kind  # the ending of the type
        inside = np.arange(words.shape[1]) <= lengths[:, None]
        texts = pa.array([word_text(i) for i in range(used)] + list(_ENDINGS))
        offsets = np.concatenate([[0], np.cumsum(lengths + 1)])
        lists = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), texts.take(pa.array(words[inside]))
        )
        return pc.binary_join(lists, " ")

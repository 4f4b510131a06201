"""The words a model knows, and the ids of the four special tokens.

Ids: 0 is padding, words are 1..V in order of frequency, then beginning of sentence
(V + 1), end of sentence (V + 2) and out of vocabulary (V + 3).
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tff_agg.noise.seeds import Seed
from tff_agg.privacy.selection import KeySelection

PAD = 0
# What the list of words is called in the folder of an exported model.
FILE_NAME = "vocabulary.json"
T = TypeVar("T", int, float)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The top words of the training split, most frequent first.

    Attributes:
      words: The words; the id of `words[i]` is `i + 1`.

    Example:
      >>> vocabulary = Vocabulary(('the', 'a'))
      >>> vocabulary.row('the cat', max_tokens=4).tolist()
      [3, 1, 5, 4, 0]
    """

    words: tuple[str, ...]

    def __post_init__(self):
        if not self.words:
            raise ValueError("words=(): a vocabulary needs at least one word")
        if len(set(self.words)) != len(self.words):
            raise ValueError("words: a vocabulary holds every word once")

    @property
    def size(self) -> int:
        """The number of words, without the special tokens."""
        return len(self.words)

    @property
    def num_ids(self) -> int:
        """The number of ids: words and the four special tokens."""
        return self.size + 4

    @property
    def pad(self) -> int:
        """The id of padding."""
        return PAD

    @property
    def bos(self) -> int:
        """The id of the beginning of a sentence."""
        return self.size + 1

    @property
    def eos(self) -> int:
        """The id of the end of a sentence."""
        return self.size + 2

    @property
    def oov(self) -> int:
        """The id of every word that is not in the vocabulary."""
        return self.size + 3

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """Word to id."""
        return {word: i for i, word in enumerate(self.words, start=1)}

    def encode(self, sentence: str) -> list[int]:
        """Returns the ids of the words of `sentence`, without bos and eos."""
        return [self._ids.get(word, self.oov) for word in sentence.split(" ") if word]

    def row(self, sentence: str, max_tokens: int = 20) -> np.ndarray:
        """Returns one training row: bos, up to `max_tokens` words, eos, padding.

        The end of the sentence is only there when the sentence is shorter than
        `max_tokens`: a cut sentence has not ended.

        Args:
          sentence: Words separated by spaces.
          max_tokens: The number of ids after bos.

        Returns:
          int32 of shape [max_tokens + 1].
        """
        ids = self.encode(sentence)[:max_tokens]
        if len(ids) < max_tokens:
            ids.append(self.eos)
        row = np.full(max_tokens + 1, PAD, np.int32)
        row[0] = self.bos
        row[1 : len(ids) + 1] = ids
        return row

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`, special tokens in angle brackets, no padding."""
        special = {self.bos: "<bos>", self.eos: "<eos>", self.oov: "<oov>"}
        return " ".join(
            special.get(int(i)) or self.words[int(i) - 1] for i in ids if int(i) != PAD
        )


def top_words(
    counts: Sequence[Iterable[tuple[str, float]]], size: int
) -> tuple[tuple[str, ...], int]:
    """Returns the `size` most frequent words over several word counts.

    Ties go to the word that comes first in code point order. The counts are merged as
    streams, so memory does not grow with the number of different words.

    Args:
      counts: Word counts, each sorted by word.
      size: How many words to keep at most.

    Returns:
      The words, most frequent first, and the number of different words seen.

    Example:
      >>> top_words([[('a', 1), ('b', 2)], [('a', 1), ('c', 1)]], size=2)
      (('a', 'b'), 3)
    """
    if size < 1:
        raise ValueError(f"size={size}: a vocabulary needs at least one word")
    best: list[tuple[float, _Reversed]] = []
    distinct = 0
    for word, count in _summed(heapq.merge(*counts)):
        distinct += 1
        entry = (count, _Reversed(word))
        if len(best) < size:
            heapq.heappush(best, entry)
        elif best[0] < entry:
            heapq.heapreplace(best, entry)
    ordered = sorted(best, key=lambda entry: (-entry[0], entry[1].word))
    return tuple(entry[1].word for entry in ordered), distinct


def private_top_words(
    votes: Sequence[Iterable[tuple[str, int]]],
    size: int,
    selection: KeySelection,
    seed: Seed,
) -> tuple[tuple[str, ...], int]:
    """Returns the words with the most noisy votes, as many as pass the threshold.

    Args:
      votes: How many users vote for each word, in several parts, each sorted by word.
        Nobody may have more than `selection.cap` votes in all parts together.
      size: How many words to keep at most.
      selection: Noise and threshold.
      seed: The secret that the noise depends on, from `noise.fresh_seed`.

    Returns:
      The words, most votes first, and the number of words that passed. All of this is
      covered by the selection's guarantee.
    """
    passed = _passing(_summed(heapq.merge(*votes)), selection, seed)
    return top_words([passed], size)


def _passing(
    votes: Iterator[tuple[str, int]],
    selection: KeySelection,
    seed: Seed,
) -> Iterator[tuple[str, float]]:
    """Adds noise to the votes of every word and yields those above the threshold."""
    for part in itertools.count():
        if not (block := list(itertools.islice(votes, 4096))):
            return
        noisy = selection.noisy(np.array([count for _, count in block]), seed, part)
        for (word, _), value in zip(block, noisy.tolist(), strict=True):
            if value > selection.threshold:
                yield word, value


@dataclasses.dataclass(frozen=True, order=False)
class _Reversed:
    """A word that compares the other way round: earlier words are worth more."""

    word: str

    def __lt__(self, other: "_Reversed") -> bool:
        return self.word > other.word


def _summed(entries: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Adds up the counts of equal neighbours."""
    current: str | None = None
    total: Any = 0
    for word, count in entries:
        if word == current:
            total += count
            continue
        if current is not None and total > 0:
            yield current, total
        current, total = word, count
    if current is not None and total > 0:
        yield current, total

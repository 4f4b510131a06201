"""The words that a model knows, and how they are chosen."""

import dataclasses
import functools
import heapq
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from stackoverflow.token_ids import PAD, TokenIds
from tff_agg.noise.seeds import Seed
from tff_agg.privacy.selection import KeySelection

# What the list of words is called in the folder of an exported model.
FILE_NAME = "vocabulary.json"
T = TypeVar("T", int, float)


@dataclasses.dataclass(frozen=True)
class Vocabulary(TokenIds):
    """The top words of the training split, most frequent first.

    Attributes:
      words: The words; the id of `words[i]` is `i + 1`.

    Example:
      >>> vocabulary = Vocabulary(('the', 'a'))
      >>> vocabulary.encode('the cat')
      [1, 5]
    """

    words: tuple[str, ...]

    def __post_init__(self):
        if not self.words:
            raise ValueError("words=(): a vocabulary needs at least one word")
        if len(set(self.words)) != len(self.words):
            raise ValueError("words: a vocabulary holds every word once")

    @property
    def vocab_size(self) -> int:
        """The number of words, without the special tokens."""
        return len(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """Word to id."""
        return {word: i for i, word in enumerate(self.words, start=1)}

    def encode(self, sentence: str) -> list[int]:
        """Returns the ids of the words of `sentence`, without bos and eos."""
        return [self._ids.get(word, self.oov) for word in sentence.split(" ") if word]

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
    number = itertools.count()
    entries = zip(_summed(heapq.merge(*counts)), number, strict=False)
    best = heapq.nsmallest(size, ((-count, word) for (word, count), _ in entries))
    return tuple(word for _, word in best), next(number)


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


def _summed(entries: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Adds up the counts of neighbours with the same word; leaves zeros out."""
    for word, same in itertools.groupby(entries, operator.itemgetter(0)):
        total: Any = sum(count for _, count in same)
        if total > 0:
            yield word, total

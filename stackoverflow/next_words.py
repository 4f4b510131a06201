"""The next words after a text, with error bars, from an exported model."""

import json
import os
from typing import NamedTuple

import numpy as np

from stackoverflow.data import tokenisation
from stackoverflow.data import vocabulary as vocabularies
from tff_agg.experiment import exported
from tff_agg.recycling import series

END = "<end of sentence>"


class NextWord(NamedTuple):
    """A word that may come next.

    Attributes:
      word: The word, or `END`.
      probability: By the exported model.
      low: Where the 95 % interval of the mean probability over the stored checkpoints
        begins. The model's own probability is another mean, and may lie outside.
      high: Where it ends.
    """

    word: str
    probability: float
    low: float
    high: float


class Guess(NamedTuple):
    """What may follow a text.

    Attributes:
      words: The likeliest first.
      other: The probability of a word that is not in the vocabulary, with its interval.
      unknown: Words of the text that are not in the vocabulary.
    """

    words: list[NextWord]
    other: NextWord
    unknown: list[str]


class NextWords:
    """Predicts with an exported model.

    Example:
      NextWords('models/uta')('how do i', count=1).words[0].word
    """

    def __init__(self, folder: str | os.PathLike):
        """Loads the model, its vocabulary and its checkpoints; imports TensorFlow."""
        opened = exported.ExportedModel.open(folder)
        self.facts = opened.facts
        words = json.loads(opened.text(vocabularies.FILE_NAME))
        self.vocabulary = vocabularies.Vocabulary(tuple(words))
        self._model = opened.model()
        self._weights = self._model.get_weights()
        self._checkpoints = opened.checkpoints()

    @property
    def title(self) -> str:
        """Which model it is."""
        whose = series.IN_WORDS[self.facts["checkpoints"]]
        return f"{self.facts['method']} of {whose}, run {self.facts['run']}"

    @property
    def checkpoints(self) -> int:
        """How many checkpoints the intervals are of."""
        return len(self._checkpoints)

    def __call__(self, text: str, count: int = 10) -> Guess:
        """Returns the likeliest next words.

        Args:
          text: Raw text. What stands between spaces and is no word of the vocabulary
            is cut by the rule of `tokenisation`.
          count: How many words.
        """
        known = self.vocabulary
        words = [
            word
            for part in text.lower().split()
            for word in ([part] if part in known.words else tokenisation.tokens(part))
        ]
        ids = known.encode(" ".join(words))
        rows = np.array([[known.bos, *ids]], np.int32)
        likely = self._probabilities(self._weights, rows)
        each = (self._probabilities(weights, rows) for weights in self._checkpoints)
        low, high = exported.intervals(each, self.facts["error_bars_times"])

        def next_word(place: int, word: str) -> NextWord:
            values = (likely[place], low[place], high[place])
            return NextWord(word, *map(float, values))

        candidates = [*range(1, known.vocab_size + 1), known.eos]
        best = sorted(candidates, key=lambda place: -likely[place])[:count]
        return Guess(
            [next_word(i, END if i == known.eos else known.words[i - 1]) for i in best],
            next_word(known.oov, "<another word>"),
            [w for w, i in zip(words, ids, strict=True) if i == known.oov],
        )

    def _probabilities(self, weights: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
        self._model.set_weights(weights)
        logits = self._model(rows, training=False).numpy()[0, -1].astype(np.float64)
        mass = np.exp(logits - logits.max())
        return mass / mass.sum()

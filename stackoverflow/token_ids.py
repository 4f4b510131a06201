"""The ids of tokens: 0 is padding, words are 1 … V, three special ones follow."""

import abc

PAD = 0


class TokenIds(abc.ABC):
    """The ids that follow from the number of words."""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """The number of words V, without the special tokens."""

    @property
    def num_ids(self) -> int:
        """The number of ids: words and the four special tokens."""
        return self.vocab_size + 4

    @property
    def bos(self) -> int:
        """The id of the beginning of a sentence."""
        return self.vocab_size + 1

    @property
    def eos(self) -> int:
        """The id of the end of a sentence."""
        return self.vocab_size + 2

    @property
    def oov(self) -> int:
        """The id of every word that is not in the vocabulary."""
        return self.vocab_size + 3

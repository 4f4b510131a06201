"""Rows of ids as training reads them, from the words of one sentence."""

import numpy as np

from stackoverflow.data.vocabulary import Vocabulary
from stackoverflow.token_ids import PAD


def row(vocabulary: Vocabulary, sentence: str, max_tokens: int = 20) -> np.ndarray:
    """Returns bos, up to `max_tokens` words, eos where there is room, padding.

    A cut sentence has not ended.
    """
    ids = vocabulary.encode(sentence)[:max_tokens]
    if len(ids) < max_tokens:
        ids.append(vocabulary.eos)
    padded = np.full(max_tokens + 1, PAD, np.int32)
    padded[0] = vocabulary.bos
    padded[1 : len(ids) + 1] = ids
    return padded

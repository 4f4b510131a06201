"""Token stores of made-up sentences, for runs that take seconds."""

import os

from stackoverflow.data import preparation


def make_store(folder, users, words, **settings) -> str:
    """Prepares a store of short rows and returns its path.

    The model's loop over a row is unrolled, and compiling it takes most of the time of
    a tiny run: with 6 tokens in a row a third of what it takes with 20.
    """
    source = preparation.make_source("synthetic", users=users, words=words)
    given = {"vocab_size": words, "max_tokens": 6, **settings}
    out = os.path.join(folder, "store")
    return preparation.prepare_store(source, out, **given).path

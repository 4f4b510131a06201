"""Token stores of made-up sentences, for runs that take seconds."""

import os

from stackoverflow.data import preparation


def make_store(folder, users, words, **settings) -> str:
    """Prepares a store of short rows and returns its path.

    The model's loop over a row is unrolled and has to be compiled: a tiny run with 6
    tokens in a row took 6.4 s of processor time, with 20 it took 8.1 and 8.4.
    """
    source = preparation.make_source("synthetic", users=users, words=words)
    given = {"vocab_size": words, "max_tokens": 6, **settings}
    out = os.path.join(folder, "store")
    return preparation.prepare_store(source, out, **given).path

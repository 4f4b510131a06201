"""Token stores of made-up sentences, for runs that take seconds."""

import os

from stackoverflow.data import preparation, sources
from tests.made_once import made_once


def make_store(folder, users, words, **settings) -> str:
    """Prepares a store of short rows and returns its path.

    The model's loop over a row is unrolled and has to be compiled: a tiny run with 6
    tokens in a row took 6.4 s of processor time, with 20 it took 8.1 and 8.4.
    """
    source = sources.make_source("synthetic", users=users, words=words)
    given = {"vocab_size": words, "max_tokens": 6, **settings}
    out = os.path.join(folder, "store")
    return preparation.prepare_store(source, out, **given).path


def shared_store(factory, users, words) -> str:
    """Returns the path of a store of these sizes that no test may change."""
    name = f"store_of_{users}_users_and_{words}_words"
    return made_once(
        factory, name, lambda folder: make_store(folder, users=users, words=words)
    )[1]

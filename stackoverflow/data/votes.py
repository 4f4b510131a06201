"""Which words each train user votes for, added up by word: one bucket at a time.

A vocabulary with a guarantee needs a bound on what one user can change. Here a user
votes for at most `cap` different words, once for each: the words that the user wrote
most often. Which of equally frequent words they are is decided by a hash of user and
word, and by nothing else. So a user's votes depend on the user's own sentences alone,
and leaving a user out changes at most `cap` votes, whatever other users do.
"""

import hashlib
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stackoverflow.data.encode import Work, read_batch, write_batch
from stackoverflow.data.sources import SPLITS


def votes_path(bucket: int, work: Work) -> str:
    """Returns the file with the votes of a bucket's users."""
    return work.path("counts", f"votes-{bucket:06d}.arrow")


def count_votes(bucket: int, cap: int, work: Work) -> None:
    """Writes how many train users of a bucket vote for each word.

    All sentences of a user are in one bucket, so that the cap holds for all of them
    together. Words behind the cut of a long sentence do not count.

    Args:
      bucket: The bucket.
      cap: The most words that one user votes for.
      work: The preparation.
    """
    out = votes_path(bucket, work)
    if os.path.exists(out):
        return
    names: list[pa.Array] = [pa.array([], pa.string())]
    words: list[pa.Array] = [pa.array([], pa.string())]
    pairs: list[np.ndarray] = [np.empty((3, 0), np.int64)]  # user, word, occurrences
    for piece in work.pieces():
        occurring = _occurrences(piece, bucket, work)
        if occurring is None:
            continue
        users, own, counts = occurring
        known_users, known_words = (sum(map(len, known)) for known in (names, words))
        pairs.append(counts + np.array([[known_users], [known_words], [0]]))
        names.append(users)
        words.append(own)
    # A user, or a word, of several pieces gets a single number.
    user_names, user_of = _joined(names)
    word_texts, word_of = _joined(words)
    user, word, occurrences = np.concatenate(pairs, axis=1)
    user, word, occurrences = _added_up(user_of[user], word_of[word], occurrences)
    chosen = most_frequent(user, word, occurrences, user_names, word_texts, cap)
    votes = np.bincount(word[chosen], minlength=len(word_texts))
    order = pc.sort_indices(word_texts)
    write_batch(
        out,
        pa.record_batch(
            {
                "word": word_texts.take(order),
                "count": pa.array(votes[order.to_numpy()], pa.int64()),
            }
        ),
    )


def most_frequent(
    user: np.ndarray,
    word: np.ndarray,
    occurrences: np.ndarray,
    user_names: pa.Array,
    word_texts: pa.Array,
    cap: int,
) -> np.ndarray:
    """Returns which (user, word) entries are among their user's `cap` most frequent.

    Args:
      user: The position of each entry's user in `user_names`.
      word: The position of each entry's word in `word_texts`.
      occurrences: How often the user wrote the word; each pair occurs once.
      user_names: Names of users.
      word_texts: Words.
      cap: The most entries of one user.

    Returns:
      The positions of the entries that stay.

    Example:
      >>> user, word, times = np.zeros(3, int), np.arange(3), np.array([1, 3, 2])
      >>> names, words = pa.array(['ann']), pa.array(['a', 'b', 'c'])
      >>> most_frequent(user, word, times, names, words, cap=2).tolist()
      [1, 2]
    """
    of_user, of_word = _keys(user_names, b"user"), _keys(word_texts, b"word")
    by_chance = _mixed(of_user[user], of_word[word])
    order = np.lexsort((word, by_chance, -occurrences, user))
    ordered = user[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    return np.sort(order[np.arange(len(order)) - starts < cap])


def _occurrences(
    piece: str, bucket: int, work: Work
) -> tuple[pa.Array, pa.Array, np.ndarray] | None:
    """Returns a piece's train users of a bucket, their words, and how often which."""
    batch = read_batch(work.path("pieces", f"{piece}.sentences.arrow"))
    low, high = json.loads(batch.schema.metadata[b"bounds"])[bucket : bucket + 2]
    batch = batch.slice(low, high - low)
    train = batch.column("split").to_numpy() == SPLITS.index("train")
    if not train.any():
        return None
    lists = batch.column("words")
    lengths = np.diff(lists.offsets.to_numpy())
    owner = np.repeat(batch.column("user").indices.to_numpy(), lengths)
    inside = np.repeat(train, lengths)
    users, user = np.unique(owner[inside], return_inverse=True)
    numbers = lists.flatten().to_numpy()[inside]
    own, word = np.unique(numbers, return_inverse=True)
    texts = read_batch(work.path("pieces", f"{piece}.words.arrow")).column("word")
    counts = _added_up(user, word, np.ones(len(user), np.int64))
    return (
        batch.column("user").dictionary.take(pa.array(users)),
        texts.take(pa.array(own)),
        np.stack(counts),
    )


def _added_up(
    user: np.ndarray, word: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adds the counts of equal (user, word) pairs; each pair is there once then."""
    size = int(word.max(initial=0)) + 1
    pairs, where = np.unique(user.astype(np.int64) * size + word, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, where, count)
    return pairs // size, pairs % size, total


def _joined(arrays: list[pa.Array]) -> tuple[pa.Array, np.ndarray]:
    """Returns the different texts, and for each text given its place among them."""
    encoded = pa.concat_arrays(arrays).dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _keys(texts: pa.Array, kind: bytes) -> np.ndarray:
    """Returns 64 bits for each text, the same wherever it is met."""
    digests = (
        hashlib.blake2b(text.encode(), digest_size=8, person=kind).digest()
        for text in texts.to_pylist()
    )
    return np.frombuffer(b"".join(digests), "<u8")


def _mixed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns 64 bits for each pair, by the finaliser of splitmix64."""
    mixed = first * np.uint64(3) + second
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))

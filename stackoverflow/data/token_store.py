"""Sentences as ids, memory-mapped: the form in which training reads them.

A store is a folder: a manifest, the vocabulary, a table of users and a number of parts.
A part holds the sentences of some users, every user's questions before the user's
answers. Nothing is read into memory when a store is opened; the checksum of a part is
checked when the part is first used.
"""

import functools
import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from stackoverflow.data.sources import SPLITS, TYPES
from stackoverflow.data.store_files import (
    Part,
    open_part,
    open_users,
    open_vocabulary,
)
from stackoverflow.data.store_manifest import (
    USERS,
    VOCABULARY,
    TokenStoreError,
    check_sha256,
    part_name,
    read_manifest,
)
from stackoverflow.data.vocabulary import Vocabulary
from stackoverflow.token_ids import PAD
from tff_agg.privacy.releases import Release

# Separate the random streams of the two things a store draws.
_STREAM_ROWS, _STREAM_SAMPLE = 1, 2


@functools.lru_cache(maxsize=65536)
def _name_key(name: str) -> int:
    """Returns 64 bits that stand for a user's name in random keys."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _generator(seed: int, key: int, stream: int, round_num: int) -> np.random.Philox:
    """Returns the bit generator of one (seed, key, stream, round)."""
    mask = (1 << 64) - 1
    return np.random.Philox(
        key=np.array([seed & mask, key & mask], np.uint64),
        counter=np.array([0, 0, stream, round_num & mask], np.uint64),
    )


class TokenStore:
    """Sentences of users as token ids, fetched in well under a millisecond.

    Users are numbers. Those of a split are contiguous and sorted by name, so
    `users(split)` is a range. A user that occurs in two splits has two numbers and one
    `user_name`. Reading is thread-safe; pickling keeps the path only.

    Example:
      store = TokenStore.open('data/synthetic')
      user = store.users('train')[0]
      store.rows(user, type='question', seed=1, round=7).shape  # (12, 21)
    """

    def __init__(self, path: str, manifest: Mapping[str, Any], vocabulary: Vocabulary):
        """Use `TokenStore.open`."""
        self._path = path
        self._manifest = manifest
        self._vocabulary = vocabulary
        # Besides the parts a store has two files.
        parts = len(manifest["files"]) - 2
        self._users = open_users(os.path.join(path, USERS), parts)
        self._parts: dict[int, Part] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process, a store is opened there, by path and fingerprint."""
        return _open_the_same, (self._path, self.fingerprint)

    @classmethod
    def open(cls, path: str | os.PathLike, *, verify: bool = False) -> "TokenStore":
        """Opens a store without reading its sentences.

        The manifest, the vocabulary, the table of users and the sizes of all parts are
        checked now; the checksum of each part when the part is first used.

        Args:
          path: The folder that `stackoverflow prepare` wrote.
          verify: Check the checksums of all parts now.

        Returns:
          The store.

        Raises:
          TokenStoreError: If the folder is no store, or not the one that was written.
        """
        path = os.path.abspath(os.fspath(path))
        manifest = read_manifest(path)
        for name, entry in manifest["files"].items():
            file = os.path.join(path, name)
            if not os.path.isfile(file):
                raise TokenStoreError(
                    f"{path}: {name} is missing; prepare the store again"
                )
            if os.path.getsize(file) != entry["bytes"]:
                raise TokenStoreError(
                    f"{path}: {name} has {os.path.getsize(file)} bytes, the manifest "
                    f"says {entry['bytes']}; prepare the store again"
                )
            if verify or name in (VOCABULARY, USERS):
                check_sha256(path, name, entry["sha256"])
        return cls(path, manifest, open_vocabulary(os.path.join(path, VOCABULARY)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}={len(self.users(split))}" for split in SPLITS)
        return f"TokenStore({self._path!r}, users: {sizes})"

    @property
    def path(self) -> str:
        """The folder of the store."""
        return self._path

    @property
    def vocabulary(self) -> Vocabulary:
        """The words and special tokens behind the ids."""
        return self._vocabulary

    @property
    def max_tokens(self) -> int:
        """Ids in a row after the beginning of the sentence."""
        return self._manifest["max_tokens"]

    @property
    def summary(self) -> Mapping[str, Mapping[str, float]]:
        """Users, sentences, tokens and out-of-vocabulary share by split."""
        return self._manifest["summary"]

    @property
    def fingerprint(self) -> str:
        """A checksum over everything in the store."""
        return self._manifest["sha256"]

    @property
    def releases(self) -> tuple[Release, ...]:
        """What the store itself reveals about train users, with noise: its vocabulary.

        Empty if the vocabulary was made without noise, for which no guarantee holds.
        """
        release = self._manifest.get("vocabulary_release")
        return () if release is None else (Release.from_json(release),)

    @functools.cached_property
    def users_shared_with_train(self) -> Mapping[str, int]:
        """For heldout and test, how many of their users are in train, by name."""
        names = {
            split: self._users.names.slice(low, high - low)
            for split, (low, high) in self._users.ranges.items()
        }
        train = names.pop(SPLITS[0])
        return {
            split: int(pc.sum(pc.is_in(other, value_set=train)).as_py() or 0)
            for split, other in names.items()
        }

    def users(self, split: str) -> np.ndarray:
        """Returns the numbers of the users of a split, int64, sorted by name."""
        if split not in SPLITS:
            raise ValueError(f"split={split!r}: must be one of {SPLITS}")
        return np.arange(*self._users.ranges[split], dtype=np.int64)

    def users_with(self, split: str, type: str) -> np.ndarray:
        """Returns the users of a split who have at least one sentence of a type."""
        users = self.users(split)
        return users[self._users.counts[_type_index(type)][users] > 0]

    def user_name(self, user: int) -> str:
        """Returns the name of a user in the source."""
        return self._users.names[self._check_user(user)].as_py()

    def num_sentences(self, user: int, type: str | None = None) -> int:
        """Returns how many sentences a user has, of one type or of both."""
        counts = self._users.counts[:, self._check_user(user)]
        return int(counts.sum() if type is None else counts[_type_index(type)])

    def rows(
        self,
        user: int,
        *,
        type: str | None = None,
        max_sentences: int | None = 256,
        seed: int = 0,
        round: int = 0,
    ) -> np.ndarray:
        """Returns a user's sentences as rows of ids, shuffled, then cut.

        The order depends on the seed, the round and the user's name alone.

        Args:
          user: A user number.
          type: `'question'`, `'answer'` or None for both.
          max_sentences: At most so many rows; None for all.
          seed: Any integer.
          round: The training round.

        Returns:
          int32 of shape [sentences, max_tokens + 1]: bos, words, eos, padding.
        """
        if max_sentences is not None and max_sentences < 1:
            raise ValueError(f"max_sentences={max_sentences}: must be at least 1")
        start, count = self._range(self._check_user(user), type)
        raw = _generator(
            seed, _name_key(self.user_name(user)), _STREAM_ROWS, round
        ).random_raw(count)
        order = np.argsort(raw, kind="stable")[:max_sentences]
        return self._rows(int(self._users.part[user]), start + order)

    def dates(self, user: int, type: str | None = None) -> np.ndarray:
        """Returns the days of a user's sentences, questions first (NaT: not known)."""
        start, count = self._range(self._check_user(user), type)
        part = self._part(int(self._users.part[user]))
        return part.days.slice(start, count).to_numpy(zero_copy_only=False)

    def sample_rows(
        self,
        split: str,
        n: int,
        seed: int,
        type: str | None = None,
        users: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns a fixed sample of a split's sentences, each drawn at most once.

        Args:
          split: `'train'`, `'heldout'` or `'test'`.
          n: How many sentences; all of them where there are fewer.
          seed: Chooses the sample.
          type: `'question'`, `'answer'` or None for both.
          users: Of whom; all of the split by default.

        Returns:
          int32 of shape [min(n, sentences), max_tokens + 1].
        """
        if n < 1:
            raise ValueError(f"n={n}: must be at least 1")
        users = self.users(split) if users is None else users
        counts = self._users.counts[:, users]
        begins = self._users.start[users].astype(np.int64)
        if type == "answer":
            begins = begins + counts[0]
        sizes = (
            counts.sum(axis=0) if type is None else counts[_type_index(type)]
        ).astype(np.int64)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        chosen = _sample(total, n, _generator(seed, total, _STREAM_SAMPLE, 0))
        owner = np.searchsorted(ends, chosen, side="right")
        row = begins[owner] + chosen - (ends[owner] - sizes[owner])
        parts = self._users.part[users][owner]
        result = np.empty((len(chosen), self.max_tokens + 1), np.int32)
        for part in np.unique(parts):
            inside = parts == part
            result[inside] = self._rows(int(part), row[inside])
        return result

    def _check_user(self, user: int) -> int:
        """Returns `user`, or raises if there is no such number."""
        if not 0 <= user < len(self._users.part):
            raise ValueError(
                f"user={user}: there are {len(self._users.part)} users, numbered from 0"
            )
        return int(user)

    def _range(self, user: int, type: str | None) -> tuple[int, int]:
        """Returns the first row of a user's sentences in the part, and their number."""
        start = int(self._users.start[user])
        questions, answers = (int(count) for count in self._users.counts[:, user])
        if type is None:
            return start, questions + answers
        return (start + questions, answers) if _type_index(type) else (start, questions)

    def _part(self, part: int) -> Part:
        """Returns a part, mapped and checked when it is first used."""
        opened = self._parts.get(part)
        if opened is not None:
            return opened
        with self._lock:
            if part not in self._parts:
                name = part_name(part)
                check_sha256(self._path, name, self._manifest["files"][name]["sha256"])
                inside = self._users.part == part
                ends = self._users.start[inside] + self._users.counts[:, inside].sum(
                    axis=0, dtype=np.int64
                )
                self._parts[part] = open_part(
                    os.path.join(self._path, name),
                    sentences=int(ends.max(initial=0)),
                    max_tokens=self.max_tokens,
                    num_ids=self._vocabulary.num_ids,
                )
            return self._parts[part]

    def _rows(self, part: int, sentences: np.ndarray) -> np.ndarray:
        """Returns sentences of a part as padded rows."""
        offsets, words, _, _ = self._part(part)
        width = self.max_tokens
        begins = offsets[sentences].astype(np.int64)
        lengths = offsets[sentences + 1] - begins
        rows = np.full((len(sentences), width + 1), PAD, np.int32)
        rows[:, 0] = self._vocabulary.bos
        columns = np.arange(width)
        inside = columns < lengths[:, None]
        rows[:, 1:][inside] = words[(begins[:, None] + columns)[inside]]
        short = np.flatnonzero(lengths < width)
        rows[short, lengths[short] + 1] = self._vocabulary.eos
        return rows


def _type_index(type: str) -> int:
    """Returns 0 for questions and 1 for answers."""
    if type not in TYPES:
        raise ValueError(f"type={type!r}: must be None or one of {TYPES}")
    return TYPES.index(type)


def _open_the_same(path: str, fingerprint: str) -> TokenStore:
    """Opens a store that must be the one of another process."""
    store = TokenStore.open(path)
    if store.fingerprint != fingerprint:
        raise TokenStoreError(
            f"{path}: has the fingerprint {store.fingerprint[:16]} here, where "
            f"{fingerprint[:16]} is expected; it is another store"
        )
    return store


def _sample(total: int, n: int, bits: np.random.Philox) -> np.ndarray:
    """Returns min(n, total) different numbers below `total`, in increasing order."""
    if n >= total:
        return np.arange(total)
    generator = np.random.Generator(bits)
    return np.sort(generator.choice(total, size=n, replace=False, shuffle=False))

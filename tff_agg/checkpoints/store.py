"""The checkpoint store: every round's weights and state, safe against any crash.

```
folder/
  manifests/000000012.json   round 12: a line of JSON, then its smaller arrays
  blobs/<digest>             one large array each, shared by all rounds that name it
```
A save writes the large arrays that are new, makes them durable, and only then puts the
manifest in place with one rename: a process killed at any moment leaves the round
either whole or absent. Removal goes the other way round: first the manifest, then the
arrays that nothing names any more. What a crash leaves lying about is removed by the
next process that saves. All files belong to their owner alone, because a state holds
the secret seed of the noise.

A file or folder is made durable only where something relies on it. A round of a small
model takes three such waits: for the new manifest, for its name, and for the manifest
of the round that loses its state.
"""

import collections
import concurrent.futures
import contextlib
import logging
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_agg import checks, files
from tff_agg.aliases import Stored
from tff_agg.checkpoints import blobs, encoding, manifests, retention
from tff_agg.checkpoints.blobs import CorruptCheckpointError, StoreError

_log = logging.getLogger(__name__)

# Manifests that the writer remembers: of the rounds that still have a state, and one.
_RECENT = 3


class MissingCheckpointError(StoreError, LookupError):
    """There is no checkpoint of that round and name."""


class Restored(NamedTuple):
    """A checkpoint that was read back."""

    round: int
    value: Any


class CheckpointStore:
    """Named nested structures of numpy arrays, by round.

    Equal arrays are stored once, whichever checkpoint they are in. Any number of
    processes may read while one (see `RunLock`) writes.

    Example:
      >>> store = CheckpointStore(folder / 'checkpoints', keep_last={'state': 2})
      >>> store.save(7, {'iterate': weights, 'state': {'seed': np.arange(2)}})
      >>> store.rounds('iterate')
      [7]
      >>> len(store.load(7, 'iterate'))
      1
      >>> restored = store.latest_valid('state')
      >>> restored.round
      7
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep_last: int | Mapping[str, int] | None = None,
        keep_every: int | Mapping[str, int] | None = None,
        *,
        threads: int = 2,
    ):
        """Opens a store; the folder is made by the first save.

        Args:
          folder: Where the store is.
          keep_last: How many of the newest rounds stay: one number for all names or
            one for each name. Names without any policy keep all rounds.
          keep_every: Rounds divisible by this stay too; where only this is given, so
            does the newest round.
          threads: How many threads digest and write the arrays of a save.
        """
        self.folder = pathlib.Path(folder)
        self._manifests = self.folder / "manifests"
        self._blobs = blobs.BlobFolder(self.folder / "blobs")
        self._retention = retention.Retention(keep_last, keep_every)
        self._threads = threads
        # The writer's view: round -> name -> digests, and how many rounds use each.
        self._written: _View | None = None
        self._uses: collections.Counter[str] = collections.Counter()
        # Only blobs that this process wrote may stand in for a new write: one that was
        # damaged on the disk before must be written again.
        self._known_good: set[str] = set()
        self._names: dict[int, tuple[tuple, list[str]]] = {}
        # What this process wrote last need not be read back when it loses its state.
        self._recent: dict[int, manifests.Manifest] = {}

    def save(self, round: int, items: Mapping[str, Stored]) -> None:
        """Saves the structures `items` under a round: `prepare` and `commit`."""
        self.commit(round, self.prepare(items))

    def prepare(self, items: Mapping[str, Stored]) -> encoding.Prepared:
        """Digests structures, so that they can be compared before they are saved.

        Args:
          items: By name, nested dicts, lists and tuples of numpy arrays, numpy scalars
            and strings. They must not change before they are committed.

        Raises:
          TypeError: A value cannot be stored; the message says where it is.
        """
        return encoding.prepare(items, self._threads)

    def commit(self, round: int, prepared: encoding.Prepared) -> None:
        """Saves what was prepared under a round, all together or not at all.

        Where the round is there already, the names given now replace what it had and
        its other names stay. Afterwards the policies remove what is too old.

        Args:
          round: The round's number, zero or more.
          prepared: What `prepare` returned, or several of them joined by `|`.

        Raises:
          StoreError: The disk is full, the folder cannot be written to, and the like.
            The checkpoints saved before are intact.
        """
        round = checks.whole("round", round, least=0)
        if not prepared.items:
            raise ValueError("items is empty: a checkpoint needs at least one name.")
        with blobs.storing("save a checkpoint", self.folder):
            self._writer_view()
            self._write(round, prepared)
            self._apply_policies(prepared.items)

    def load(self, round: int, name: str) -> Any:
        """Returns the structure saved under a round and name, checked.

        Raises:
          MissingCheckpointError: There is none.
          CorruptCheckpointError: It is damaged; the message names the file.
        """
        return self._load(round, name).value

    def rounds(self, name: str | None = None) -> list[int]:
        """Returns the rounds (of a name) in order, without damaged manifests."""
        found = []
        for number in manifests.manifest_rounds(self._manifests):
            try:
                names = self._names_of(number)
            except (CorruptCheckpointError, MissingCheckpointError):
                continue
            if name is None or name in names:
                found.append(number)
        return found

    def has_rounds(self, after: int = -1) -> bool:
        """Returns whether any later round was ever saved here, damaged or not."""
        return any(n > after for n in manifests.manifest_rounds(self._manifests))

    def iterate(
        self, name: str, rounds: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yields (round, structure) for the rounds asked for, one at a time."""
        for number in self.rounds(name) if rounds is None else rounds:
            yield int(number), self.load(number, name)

    def latest_valid(self, name: str) -> Restored | None:
        """Returns the newest checkpoint of a name that is whole, or None.

        Newer ones that are damaged are logged as warnings.
        """
        for number in reversed(manifests.manifest_rounds(self._manifests)):
            try:
                return self._load(number, name)
            except MissingCheckpointError:
                continue
            except CorruptCheckpointError as error:
                _log.warning("Round %d is skipped: %s", number, error)
        return None

    def collect_garbage(self) -> int:
        """Removes what the policies let go and files that no checkpoint needs.

        Saves do this by themselves; a save that broke off leaves it to the next one,
        or to this. Only the process that writes may call it.

        Returns:
          How many arrays went.
        """
        with blobs.storing("collect garbage", self.folder):
            self._written = None
            before = len(self._blobs.digests())
            if self.has_rounds() or before:
                view = self._writer_view()
                self._apply_policies(
                    sorted({n for names in view.values() for n in names})
                )
            return before - len(self._blobs.digests())

    def discard(self, keep_last: Mapping[str, int], *, durable: bool = True) -> None:
        """Removes names from all but their newest rounds, whatever the policies say.

        Only the process that writes may call it. What was removed is off the disk's
        directory when this returns; a disk may hold the bytes until they are reused.

        Args:
          keep_last: By name, in how many of its newest rounds it stays.
          durable: Whether a power failure after this cannot bring them back. Without
            it, that is so after the next save.
        """
        for name, number in keep_last.items():
            checks.whole(f"keep_last[{name!r}]", number, least=0)
        with blobs.storing("discard checkpoints", self.folder):
            view = self._writer_view()
            old: dict[int, set[str]] = {}
            for name, kept in keep_last.items():
                rounds = sorted(number for number in view if name in view[number])
                for number in rounds[: len(rounds) - kept]:
                    old.setdefault(number, set()).add(name)
            self._remove(old)
            if durable:
                files.sync_folder(self._manifests)

    def _load(self, number: int, name: str) -> Restored:
        manifest = self._manifest(number)
        if name not in manifest.items:
            raise MissingCheckpointError(
                f"Round {number} in {self.folder} has no {name!r}; it has "
                f"{sorted(manifest.items)}."
            )
        try:
            with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
                value = self._decode(manifest, name, pool)
        except (ValueError, KeyError, TypeError) as error:
            path = manifests.manifest_path(self._manifests, number)
            raise CorruptCheckpointError(path, f"is damaged: {error}") from error
        except OSError as error:
            raise StoreError(f"Cannot read round {number}: {error}") from error
        return Restored(int(number), value)

    def _decode(
        self,
        manifest: manifests.Manifest,
        name: str,
        pool: concurrent.futures.Executor,
    ) -> Any:
        """Rebuilds a structure; reads its blobs in parallel, each of them once."""
        encoded = manifest.items[name]
        pending = {
            entry["blob"]: pool.submit(
                self._blobs.read,
                entry["blob"],
                encoding.dtype_of(entry),
                entry["shape"],
            )
            for entry in {
                entry["blob"]: entry
                for entry in encoding.array_entries(encoded)
                if "blob" in entry
            }.values()
        }
        shared: set[str] = set()

        def get(entry: encoding.ArrayEntry) -> np.ndarray:
            if "blob" not in entry:
                return manifest.array_in_body(entry)
            array = pending[entry["blob"]].result()
            # Two leaves with equal content are two arrays all the same.
            again = entry["blob"] in shared
            shared.add(entry["blob"])
            return array.copy() if again else array

        return encoding.decode(encoded, get)

    def _manifest(self, number: int) -> manifests.Manifest:
        """Reads a round's manifest."""
        path = manifests.manifest_path(self._manifests, int(number))
        try:
            return manifests.read_manifest(path)
        except FileNotFoundError as error:
            raise MissingCheckpointError(
                f"There is no round {number} in {self.folder}."
            ) from error
        except OSError as error:
            raise StoreError(f"Cannot read {path}: {error}.") from error

    def _names_of(self, number: int) -> list[str]:
        """Returns a round's names, read again only when the file has changed."""
        path = manifests.manifest_path(self._manifests, number)
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if number not in self._names or self._names[number][0] != stamp:
                self._names[number] = stamp, list(self._manifest(number).items)
            return self._names[number][1]
        raise MissingCheckpointError(f"There is no round {number} in {self.folder}.")

    def _writer_view(self) -> "_View":
        """Reads all manifests and tidies up, once in the life of a writer."""
        if self._written is not None:
            return self._written
        blobs.make_folder(self.folder)
        for folder in (self._manifests, self._blobs.folder):
            blobs.make_folder(folder)
            files.remove_temporaries(folder)
        files.sync_folder(self.folder)
        written = {}
        self._recent.clear()
        for number in manifests.manifest_rounds(self._manifests):
            try:
                written[number] = self._manifest(number).blobs()
            except CorruptCheckpointError as error:
                _log.warning("Round %d is lost: %s", number, error)
        self._uses = collections.Counter()
        for by_name in written.values():
            self._uses.update(_union(by_name))
        for digest in self._blobs.digests():
            if not self._uses[digest]:
                self._remove_blob(digest)
        self._written = written
        return written

    def _write(self, number: int, prepared: encoding.Prepared) -> None:
        """Writes new arrays, then the manifest; tidies up if it fails."""
        there = self._manifest(number) if number in self._writer_view() else None
        manifest = manifests.Manifest.of(number, prepared, there)
        new = {
            digest: prepared.arrays[digest]
            for digest in _union(manifest.blobs())
            if digest in prepared.arrays and digest not in self._known_good
        }
        temporaries: list[str] = []
        try:
            with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
                futures = [
                    pool.submit(self._blobs.stage, array, digest)
                    for digest, array in new.items()
                ]
                concurrent.futures.wait(futures)
                staged = [f.result() for f in futures if f.exception() is None]
                temporaries += [temporary for temporary, _ in staged]
                for future in futures:
                    future.result()
            files.publish(staged)
            self._put(manifest, durable=True)
        except BaseException:
            for temporary in temporaries:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            # What is on the disk now is the truth: read it, and remove the arrays
            # that were written for nothing.
            self._written = None
            with contextlib.suppress(OSError, StoreError):
                self._writer_view()
            raise
        self._known_good.update(new)
        self._recent[number] = manifest
        for old in sorted(self._recent)[:-_RECENT]:
            del self._recent[old]

    def _put(self, manifest: manifests.Manifest, *, durable: bool) -> None:
        """Puts a manifest in place, or takes an empty one away; then frees arrays."""
        number = manifest.round
        path = manifests.manifest_path(self._manifests, number)
        written = self._writer_view()
        old = _union(written.get(number, {}))
        found = manifest.blobs()
        new = _union(found)
        # No manifest may come back, after a power failure, that names what is gone.
        sync = durable or bool(old - new)
        if found:
            manifests.write_manifest(path, manifest, sync_folder=sync)
            written[number] = found
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            if sync:
                files.sync_folder(self._manifests)
            written.pop(number, None)
        self._recent.pop(number, None)
        self._uses.update(new - old)
        self._uses.subtract(old - new)
        for digest in old - new:
            if self._uses[digest] <= 0:
                self._remove_blob(digest)

    def _remove_blob(self, digest: str) -> None:
        self._known_good.discard(digest)
        self._uses.pop(digest, None)
        self._blobs.remove(digest)

    def _apply_policies(self, names: Iterable[str]) -> None:
        """Removes the rounds of these names that their policies let go."""
        old: dict[int, set[str]] = {}
        for name in names:
            rounds = sorted(r for r, m in self._writer_view().items() if name in m)
            for number in self._retention.dropped(name, rounds):
                old.setdefault(number, set()).add(name)
        self._remove(old)

    def _remove(self, old: Mapping[int, Collection[str]]) -> None:
        """Removes names from rounds."""
        for number, names in old.items():
            if self._writer_view()[number].keys() <= set(names):
                rest = manifests.Manifest(number, {})
            else:
                there = self._recent.get(number) or self._manifest(number)
                rest = there.without(names)
            self._put(rest, durable=False)


_View = dict[int, dict[str, frozenset[str]]]


def _union(by_name: dict[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*by_name.values())

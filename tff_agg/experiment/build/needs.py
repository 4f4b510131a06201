"""How much room a run takes on the disk, known before its first round."""

import os
import pathlib
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tree

from tff_agg.checkpoints.retention import Retention
from tff_agg.experiment.build.base import Build
from tff_agg.experiment.config import RunConfig

if TYPE_CHECKING:
    import tensorflow_federated as tff

# The newest two; a third while it is written and the oldest is still there.
_STATES = 3


class Disk(NamedTuple):
    """What a run writes, without tables of a few bytes per round.

    Attributes:
      rounds: How many rounds have a checkpoint in the end.
      models: Different models in each: θ, and θ^AGG where it is another.
      model_bytes: The size of one.
      state_bytes: The size of a state, of which there are up to three at a time.
      free: What is free where the run's folder is, or will be.
      there: What of it an earlier process has written.
    """

    rounds: int
    models: int
    model_bytes: int
    state_bytes: int
    free: int
    there: int = 0

    @property
    def total(self) -> int:
        """The most bytes that the whole run takes: equal arrays are stored once."""
        models = self.rounds * self.models * self.model_bytes
        return models + _STATES * self.state_bytes

    @property
    def left(self) -> int:
        """The most bytes that are still to be written."""
        return max(self.total - self.there, 0)

    @property
    def fits(self) -> bool:
        """Whether what is left to write fits into what is free."""
        return self.left <= self.free

    def describe(self) -> str:
        """Returns it in words."""
        what = "θ" if self.models == 1 else "θ and θ^AGG"
        there = f"; {in_units(self.there)} are there already" if self.there else ""
        return (
            f"at most {in_units(self.total)}: {what} of {self.rounds:,} rounds, "
            f"{in_units(self.model_bytes)} each, and states of "
            f"{in_units(self.state_bytes)}{there}; {in_units(self.free)} are free"
        )


def disk(build: Build[Any], folder: str | os.PathLike) -> Disk:
    """Returns what a run will take.

    Args:
      build: The run; where its runtime is set.
      folder: Where the run's folder is or will be.
    """
    config = build.task.config
    return Disk(
        rounds=len(kept_rounds(config)),
        models=1 if config.averager == "last" else 2,
        model_bytes=4 * build.task.num_parameters,
        state_bytes=_state_bytes(build),
        free=shutil.disk_usage(_existing(pathlib.Path(folder))).free,
        there=_size(pathlib.Path(folder) / "checkpoints"),
    )


def _size(folder: pathlib.Path) -> int:
    """Returns how many bytes the files of a folder take."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _state_bytes(build: Build[Any]) -> int:
    """Returns the size of a state, from its type where it has one."""
    initialize = build.process.initialize
    if hasattr(initialize, "type_signature"):
        return bytes_of_type(initialize.type_signature.result)
    state = build.initialize(throw_away=True)
    return sum(np.asarray(leaf).nbytes for leaf in tree.flatten(state))


def kept_rounds(config: RunConfig) -> list[int]:
    """Returns the rounds whose checkpoints are there when a run has ended."""
    rounds = range(config.rounds + 1)
    if not config.keep_last:
        return list(rounds)
    kept = Retention(config.keep_last, config.keep_every or None)
    return sorted(set(rounds) - set(kept.dropped("iterate", rounds)))


def bytes_of_type(of: "tff.Type") -> int:
    """Returns the size of a value of a TFF type whose shapes are all known."""
    import tensorflow_federated as tff

    if isinstance(of, tff.FederatedType):
        return bytes_of_type(of.member)
    if isinstance(of, tff.StructType):
        return sum(bytes_of_type(part) for _, part in tff.structure.to_elements(of))
    # Seeds and counters; what has no fixed shape is smaller than what has.
    extents = [extent or 1 for extent in (of.shape or ())]
    dtype = np.dtype(getattr(of.dtype, "as_numpy_dtype", of.dtype))
    return int(np.prod(extents, dtype=np.int64)) * dtype.itemsize


def in_units(count: float) -> str:
    """Writes a number of bytes with its unit.

    Example:
      >>> in_units(16_203_000), in_units(999)
      ('16.2 MB', '999 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _existing(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder, or the first above it that is there."""
    folder = folder.absolute()
    return next(p for p in (folder, *folder.parents) if p.exists())

"""How the models of a study come about: trained and saved, in memory, or loaded."""

from tff_agg.checkpoints.retention import Retention
from tff_agg.experiment.study.declare import Train


def saved() -> Train:
    """Runs in folders `runs/{digest of settings and seed}`, which resume."""
    raise NotImplementedError


def in_memory(keep: Retention | None = None, *, initial: bool = False) -> Train:
    """Runs of which nothing stays but scores.

    Args:
      keep: Which checkpoints averagers fold over and windows see; None: all.
      initial: Whether the weights of round 0 are among them.
    """
    raise NotImplementedError


def loaded(data: str | None = None) -> Train:
    """Runs that are there, the `folders` of arms; finished or not.

    Args:
      data: Where the data lie now, if not where the runs' configurations say.
    """
    raise NotImplementedError

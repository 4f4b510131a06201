"""Performs a study: search jobs, choices, test jobs."""

import os
from collections.abc import Callable

from tff_agg.experiment.study.declare import Job, Study
from tff_agg.experiment.study.results import Results


def perform(
    study: Study,
    out: str | os.PathLike,
    *,
    processes: int = 1,
    address: str | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Results:
    """Trains or loads only what a question still needs; chooses; tests once.

    Args:
      study: What to do.
      out: The study's folder.
      processes: How many jobs run side by side on this machine.
      address: A Ray cluster to run them on instead.
      on_progress: Called with a stage's name, the jobs done and the jobs in all.
    """
    raise NotImplementedError


def results(study: Study, out: str | os.PathLike) -> Results:
    """Returns what is there already; trains nothing."""
    raise NotImplementedError


def plan(study: Study, out: str | os.PathLike) -> list[Job]:
    """Returns what would be done, as far as it is known before choices are made."""
    raise NotImplementedError

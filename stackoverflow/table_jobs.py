"""The runs of a table as independent jobs, side by side if wanted."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from stackoverflow.paper_tables import ReproduceConfig
from tff_agg import runtime
from tff_agg.runtime import jobs

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def run_all(
    config: ReproduceConfig,
    function: Callable[[_Item], _Value],
    items: Sequence[_Item],
    stage: str,
) -> list[_Value]:
    """Calls a function with each item, in as many processes as wanted.

    Args:
      config: Says how many processes, or which cluster.
      function: Picklable; a job that is begun again must find what it has done.
      items: One for each job.
      stage: What the progress bar calls them.

    Returns:
      What the function returned, in the order of the items.

    Raises:
      Exception: What a job has raised; jobs that have not begun are dropped.
    """
    if not items:
        # Starting Ray takes seconds.
        return []
    from tff_agg.experiment import progress

    found: list[jobs.Ended] = []
    with contextlib.closing(progress.StageBar()) as bar:
        bar(stage, 0, len(items))
        spread = jobs.spread(
            function, items, processes=config.jobs, address=config.address
        )
        with contextlib.closing(spread):
            for ended in spread:
                ended.result()
                found.append(ended)
                bar(stage, len(found), len(items))
    return [ended.value for ended in sorted(found, key=lambda one: one.position)]


def set_up(lanes: int | None = None) -> None:
    """Sets TensorFlow up in a process that has not imported it.

    Args:
      lanes: Of the run that this process is for, which has other runs beside it: as
        many operations at a time, so that they leave each other's cores alone. None:
        the process has the machine for itself.
    """
    if "tensorflow" not in sys.modules:
        runtime.set_up_tensorflow(inter_op=lanes)

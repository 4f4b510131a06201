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
    done: Callable[[_Item], bool] = lambda item: False,
) -> list[_Value]:
    """Calls a function with each item, in as many processes as wanted.

    Args:
      config: Says how many processes, or which cluster.
      function: Picklable; a job that is begun again must find what it has done.
      items: One for each job.
      stage: What the progress bar calls them.
      done: Says which jobs have nothing left to do but to return what they found; they
        run here.

    Returns:
      What the function returned, in the order of the items.

    Raises:
      Exception: What a job has raised; jobs that have not begun are dropped.
    """
    if not items:
        return []
    from tff_agg.experiment import progress

    # Starting processes takes seconds.
    known = {i: function(item) for i, item in enumerate(items) if done(item)}
    left = [i for i in range(len(items)) if i not in known]
    with contextlib.closing(progress.StageBar()) as bar:
        bar(stage, len(known), len(items))
        if left:
            spread = jobs.spread(
                function,
                [items[i] for i in left],
                processes=config.jobs,
                address=config.address,
            )
            with contextlib.closing(spread):
                for ended in spread:
                    known[left[ended.position]] = ended.result()
                    bar(stage, len(known), len(items))
    return [known[i] for i in range(len(items))]


def set_up(config: ReproduceConfig, lanes: int | None) -> None:
    """Sets TensorFlow up for a run in a process that has not imported it.

    Args:
      config: Says whether other runs are beside it. If so, it has only as many
        operations at a time as it has lanes, and leaves the other cores to them.
      lanes: Of the run; None: one for each core.
    """
    if "tensorflow" not in sys.modules:
        runtime.set_up_tensorflow(inter_op=lanes if config.side_by_side else None)

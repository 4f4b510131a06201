"""The populations that benchmarks train on, as far as they are at hand."""

import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from examples.diabetes.task import Diabetes
from examples.emnist.task import Emnist
from stackoverflow.data import preparation
from stackoverflow.task import StackOverflow
from tff_agg.experiment.task import Task

LISTS, MADE_UP, DIGITS, PATIENTS = (
    "mailing lists",
    "made-up posts",
    "digits",
    "patients",
)


class Population(NamedTuple):
    """A task with what names its data.

    Attributes:
      name: What tables call it.
      task: The task.
      data: Fields of its configuration.
    """

    name: str
    task: type[Task]
    data: Mapping[str, Any]

    def config(self, **settings: Any) -> Any:
        """Returns a configuration on these data."""
        return self.task.Config(**self.data, **settings)


def at_hand(names: tuple[str, ...], data_dir: str, folder: str) -> Iterator[Population]:
    """Yields the populations that are there; says so of those that are not.

    Args:
      names: Which ones.
      data_dir: The folder with real data, which nobody has to have.
      folder: Where what is prepared from them is kept.
    """
    for name in names:
        if name == LISTS:
            path = pathlib.Path(data_dir) / "rlists" / "rlists.parquet"
            if not path.exists():
                print(f"{name}: skipped, {path} is not there", file=sys.stderr)
                continue
            store = preparation.ensure_store(
                "parquet", str(path), folder, vocab_size=1000
            )
            yield Population(name, StackOverflow, {"store": store})
        elif name == MADE_UP:
            store = preparation.ensure_store("synthetic", None, folder, users=4000)
            yield Population(name, StackOverflow, {"store": store})
        else:
            yield Population(name, Emnist if name == DIGITS else Diabetes, {})

"""The populations that benchmarks train on, as far as they are at hand."""

import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from examples.diabetes.task import Diabetes
from examples.emnist.task import Emnist
from pcvr.studies.table import PROXY
from pcvr.task import Pcvr
from stackoverflow.data import preparation
from stackoverflow.task import StackOverflow
from tff_agg.experiment.task import Task

LISTS, LARGE, MADE_UP, DIGITS, PATIENTS, CLICKS = (
    "mailing lists",
    "mailing lists (large model)",
    "made-up posts",
    "digits",
    "patients",
    "clicks",
)
#: 522,000 parameters, where it knows a thousand words.
_LARGE = {"embedding_size": 108, "lstm_size": 216}
_FILES = {
    LISTS: "rlists/rlists.parquet",
    LARGE: "rlists/rlists.parquet",
    CLICKS: "clicks/sessions.parquet",
}


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
        path = str(pathlib.Path(data_dir) / _FILES.get(name, ""))
        if not os.path.exists(path) and name in _FILES:
            print(f"{name}: skipped, {path} is not there", file=sys.stderr)
        elif name in (LISTS, LARGE):
            store = preparation.ensure_store("parquet", path, folder, vocab_size=1000)
            sizes = _LARGE if name == LARGE else {}
            yield Population(name, StackOverflow, {"store": store, **sizes})
        elif name == CLICKS:
            yield Population(name, Pcvr, {"data": path, "data_note": PROXY})
        elif name == MADE_UP:
            store = preparation.ensure_store("synthetic", None, folder, users=4000)
            yield Population(name, StackOverflow, {"store": store})
        else:
            yield Population(name, Emnist if name == DIGITS else Diabetes, {})

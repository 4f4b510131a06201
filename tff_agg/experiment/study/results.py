"""What a study has come to: chosen lines, their values seed by seed, their curves."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study.declare import Chosen, Line, Settings, Study
from tff_agg.recycling.metrics import Metric

if TYPE_CHECKING:
    import polars


class Curve(NamedTuple):
    """One line's values over rounds, a row for each seed.

    Attributes:
      rounds: [points].
      values: [seeds, points].
    """

    rounds: Sequence[float]
    values: Sequence[Sequence[float]]


class Results:
    """The results of a study, also of one that is not finished.

    Attributes:
      study: The study.
      out: Its folder.
      lines: Those that have a choice, in the order of the study.
      chosen: What was picked for each of them.
      seeds: Those for which every line has a value; of arms that are trained.
    """

    study: Study
    out: pathlib.Path
    lines: tuple[Line, ...]
    chosen: Mapping[Line, Chosen]
    seeds: tuple[int, ...]

    def line(self, row: str, name: str) -> Line:
        """Returns the line of a row and name."""
        raise NotImplementedError

    def rows(self) -> dict[str, list[Line]]:
        """Returns the lines by their row, in order."""
        raise NotImplementedError

    def values(
        self, line: Line, metric: Metric | str | None = None, split: str | None = None
    ) -> list[float]:
        """Returns a value for each seed, the mean over the study's rounds.

        Args:
          line: A chosen line.
          metric: Of which metric; the task's first if not given.
          split: On which data; the study's `final` if not given.
        """
        raise NotImplementedError

    def curve(
        self, line: Line, split: str = "heldout", metric: Metric | str | None = None
    ) -> Curve:
        """Returns all scores of a chosen line over rounds, seed by seed."""
        raise NotImplementedError

    def candidates(
        self, line: Line, metric: Metric | str | None = None
    ) -> list[tuple[Settings, str, list[float]]]:
        """Returns (settings, method, value by seed on validation data) of a choice."""
        raise NotImplementedError

    def best(self, lines: Iterable[Line] | None = None) -> Line:
        """Returns the line that is best on validation data."""
        raise NotImplementedError

    def only(self, lines: Iterable[Line]) -> "Results":
        """Returns the results of some lines, in that order."""
        raise NotImplementedError

    def config(self, line: Line, seed: int = 0) -> RunConfig:
        """Returns the configuration of a chosen line's run."""
        raise NotImplementedError

    def folders(self, line: Line) -> list[pathlib.Path]:
        """Returns the run folders of a chosen line; none of runs in memory."""
        raise NotImplementedError

    def looks(self, line: Line) -> int:
        """Counts the settings and methods of a line that were ever tested."""
        raise NotImplementedError

    @property
    def frame(self) -> "polars.DataFrame":
        """All scores of the study, joined with the labels of its lines."""
        raise NotImplementedError

"""Options that the commands have in common that read run folders."""

import dataclasses

from tff_agg import fields
from tff_agg.fields import described
from tff_agg.recycling import series

# The model of a run is what it broadcasts.
_SERIES = "checkpoints: θ^AGG, as broadcast, or the iterates θ"
_DATA = "where the data are, if they are not where the run found them"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfRun:
    """Which run is read."""

    run: str = described("", "the run's folder")
    data: str | None = described(None, _DATA)

    def __post_init__(self) -> None:
        fields.check(self)
        if not self.run:
            raise ValueError("--run must name the run's folder; it is empty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfRuns:
    """Which runs are read, and on how many examples their models are judged."""

    runs: tuple[str, ...] = described((), "the run folders")
    examples: int = described(10_000, "the size of a sample", at_least=1)
    series: str = described(series.BROADCAST, _SERIES, series.NAMES)
    memory_mb: float = described(1024.0, "the memory for predictions, in MB")
    data: str | None = described(None, _DATA)

    def __post_init__(self) -> None:
        fields.check(self)

    @property
    def memory_budget(self) -> int:
        """The memory for predictions, in bytes."""
        return int(self.memory_mb * (1 << 20))

"""What every study can be told."""

import dataclasses
from typing import Self

from tff_agg import fields
from tff_agg.fields import described


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performing:
    """Where a study goes, where its jobs run, and what is done of it."""

    out: str = described("results/study", "where scores, tables and pictures go")
    processes: int = described(1, "jobs side by side on this machine", at_least=1)
    address: str | None = described(
        None, "a Ray cluster to run the jobs on, which sees the same storage"
    )
    cpus_per_job: float = described(1.0, "the CPUs of the cluster that a job takes")
    dry_run: bool = described(False, "list what is left with its time, and do nothing")
    report_only: bool = described(False, "show what is there already, and do nothing")

    def __post_init__(self) -> None:
        fields.check(self)
        if self.processes > 1 and self.address is not None:
            raise ValueError(
                f"processes must be 1 with address={self.address!r}, a cluster that "
                f"runs as many jobs as it has room for; got {self.processes}"
            )

    def prepared(self) -> Self:
        """Returns the options with the data that they need; by default themselves."""
        return self


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(Performing):
    """The same, and with how many seeds."""

    seeds: int = described(3, "seeds of what is tested, from 0 on", at_least=1)

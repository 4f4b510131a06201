"""Writes one HTML page about a run that a colleague can open.

  python -m stackoverflow.report --run=runs/uta

Settings, privacy statement, curves, aggregations and uncertainty, all in one file.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-report`."""
    binaries.run(StackOverflow, "report")


if __name__ == "__main__":
    entry_point()

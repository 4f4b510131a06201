"""Lists runs with the settings in which they differ, ε, rounds done and scores.

  python -m stackoverflow.runs runs
  python -m stackoverflow.runs runs/uta runs/baseline

With two run folders it shows everything in which they differ.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-runs`."""
    binaries.run(StackOverflow, "runs")


if __name__ == "__main__":
    entry_point()

"""Does a run leak more than it claims? Trains it again with canaries and attacks it.

  python -m stackoverflow.audit --run=runs/uta
  python -m stackoverflow.audit --run=runs/uta --nousers --canaries=4000

Prints, for each threat model, the claimed ε, an estimate with its confidence interval
and a lower bound; writes them with a picture to the run's folder and its privacy
report. The exit status is 1 if a lower bound is above the claim.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-audit`."""
    binaries.run(StackOverflow, "audit")


if __name__ == "__main__":
    entry_point()

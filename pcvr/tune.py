r"""Tunes the aggregation of checkpoints: on heldout clicks, tested once.

  python -m pcvr.tune --runs=runs/seed100,runs/seed101 --out=results/tune
  python -m pcvr.tune --algorithm=training --averager=uta --parameters=3,5 \
      --out=results/tune_uta --train_flags="--data=clicks.parquet --epsilon=6 …"

Run the same command again to go on with a search that was stopped.
"""

from pcvr.task import Pcvr
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs the binary."""
    binaries.run(Pcvr, "tune")


if __name__ == "__main__":
    entry_point()

r"""Tunes the aggregation of checkpoints: on validation data, tested once.

Inference aggregation (Algorithm 3), over the checkpoints of finished runs:

  python -m stackoverflow.tune --runs=runs/seed0,runs/seed1 --out=results/tune

Training aggregation (Algorithm 2), one run for each parameter and start:

  python -m stackoverflow.tune --algorithm=training --averager=uta --parameters=2,3,5 \
      --out=results/tune_uta --train_flags="--store=data/so --epsilon=8 --rounds=500"

Without further flags the paper's grids are searched. Run the same command again to go
on with a search that was stopped.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-tune`."""
    binaries.run(StackOverflow, "tune")


if __name__ == "__main__":
    entry_point()

r"""Evaluates every way to use the checkpoints of runs at inference.

  python -m stackoverflow.evaluate --runs=runs/seed0,runs/seed1 --out=results/evaluate \
      --uta_k=3,10,50 --output_k=3,10,50 --ema=0.9,0.99 --span=100 --every=10

Prints a table for the last round, writes scores.csv and, over rounds, accuracy.png:
the mean over runs that differ in their seeds only, with a band of one standard
deviation. For parameters chosen on validation data see `stackoverflow.tune`.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-evaluate`."""
    binaries.run(StackOverflow, "evaluate")


if __name__ == "__main__":
    entry_point()

r"""Trains the next-word model with user-level privacy.

  python -m stackoverflow.train --flagfile=stackoverflow/configs/so_uta_eps18.9.cfg \
      --store=data/stackoverflow --out=runs/uta

Without --store, the data of --source is prepared first (the embedded synthetic data by
default). Run the same command again to go on with a run that was stopped.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-train`."""
    binaries.run(StackOverflow, "train")


if __name__ == "__main__":
    entry_point()

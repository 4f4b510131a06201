r"""Trains the model of conversions with example-level privacy.

  python -m pcvr.train --flagfile=pcvr/configs/pcvr_uta_eps6.cfg \
      --data=clicks.parquet --out=runs/uta
  python -m pcvr.train --synthetic --epsilon=6 --rounds=300 --out=runs/first

Run the same command again to go on with a run that was stopped.
"""

from pcvr.task import Pcvr
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs the binary."""
    binaries.run(Pcvr, "train")


if __name__ == "__main__":
    entry_point()

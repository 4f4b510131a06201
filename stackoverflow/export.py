r"""Exports an aggregate of a run's checkpoints as a Keras model with its vocabulary.

  python -m stackoverflow.export --run=runs/uta --method=uta:100 --out=models/uta

The aggregate is `last`, `uta:k`, `ema:decay` or `pda:gamma`, of the iterates or, with
--name=aggregate, of what was broadcast. The newest ten checkpoints go along: their
spread makes the error bars of `stackoverflow.predict`.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-export`."""
    binaries.run(StackOverflow, "export")


if __name__ == "__main__":
    entry_point()

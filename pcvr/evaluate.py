r"""Evaluates every way to use the checkpoints of runs at inference.

  python -m pcvr.evaluate --runs=runs/seed0,runs/seed1 --out=results/evaluate \
      --uta_k=10,100 --output_k=10,100 --ema=0.9,0.99

By AUC-loss: lower is better. A majority vote does not apply: outputs are chances.
"""

from pcvr.task import Pcvr
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs the binary."""
    binaries.run(Pcvr, "evaluate")


if __name__ == "__main__":
    entry_point()

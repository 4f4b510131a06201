r"""How uncertain are predictions, from one run's checkpoints and from independent runs?

  python -m stackoverflow.uncertainty --runs=runs/seed0,…,runs/seed9 --out=results/un

For every word of the validation sample: the 95 % confidence interval of the highest
mean score over N models, averaged over all words. The models are the final ones of N
runs, or the last N checkpoints of a single run. Prints both for several N with their
ratio, and writes widths.csv and widths.png.
"""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import binaries


def entry_point() -> None:
    """Runs as the console command `tff-agg-uncertainty`."""
    binaries.run(StackOverflow, "uncertainty")


if __name__ == "__main__":
    entry_point()

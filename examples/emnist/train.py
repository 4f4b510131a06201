"""`python -m examples.emnist.train`: see --help."""

from examples.emnist.task import Emnist
from tff_agg.experiment import binaries

if __name__ == "__main__":
    binaries.run(Emnist, "train")

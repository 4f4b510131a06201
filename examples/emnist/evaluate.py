"""`python -m examples.emnist.evaluate`: see --help."""

from examples.emnist.task import Emnist
from tff_agg.experiment import binaries

if __name__ == "__main__":
    binaries.run(Emnist, "evaluate")

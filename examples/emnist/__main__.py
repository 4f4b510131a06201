"""`python -m examples.emnist` lists the commands."""

from examples.emnist.task import Emnist
from tff_agg.experiment import commands

if __name__ == "__main__":
    commands.main(Emnist)

"""`python -m examples.diabetes` lists the commands."""

from examples.diabetes.task import Diabetes
from tff_agg.experiment import commands

if __name__ == "__main__":
    commands.main(Diabetes)

"""CIFAR-10 and -100: `python -m cifar` lists the commands."""

from cifar.task import Cifar
from tff_agg.experiment import commands

MORE = {"features": "cifar.features", "study": "cifar.studies"}

if __name__ == "__main__":
    commands.main(Cifar, MORE)

"""Next words on StackOverflow: `python -m stackoverflow` lists the commands."""

from stackoverflow.task import StackOverflow
from tff_agg.experiment import commands

MORE = {
    "prepare": "stackoverflow.prepare",
    "predict": "stackoverflow.predict",
    "study": "stackoverflow.studies",
}

if __name__ == "__main__":
    commands.main(StackOverflow, MORE)

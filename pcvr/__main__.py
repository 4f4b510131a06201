"""Conversions after clicks: `python -m pcvr` lists the commands."""

from pcvr.task import Pcvr
from tff_agg.experiment import commands

MORE = {"study": "pcvr.studies"}

if __name__ == "__main__":
    commands.main(Pcvr, MORE)

"""Reads the golden figures of a study, and says where others differ from them."""

import csv
import json
import math
import pathlib

HERE = pathlib.Path(__file__).parent
# Sums of single-precision numbers end in other digits on another processor.
_LAST_DIGITS = 1e-6


def golden(name):
    """Returns the figures of a study by (line, seed, split, round, metric)."""
    with open(HERE / f"{name}.csv", newline="") as file:
        return {tuple(row[:5]): row[5] for row in list(csv.reader(file))[1:]}


def differences(figures, wanted):
    """Returns each figure that differs, or is in one of both only.

    On the processor that the golden figures are from every digit counts.
    """
    tolerance = 0.0 if _is_the_same_processor() else _LAST_DIGITS
    keys = {*figures, *wanted}
    return {
        key: (figures.get(key), wanted.get(key))
        for key in sorted(keys)
        if not _alike(figures.get(key), wanted.get(key), tolerance)
    }


def _alike(figure, other, tolerance):
    if figure == other:
        return True
    try:
        return math.isclose(float(figure), float(other), rel_tol=tolerance)
    except (TypeError, ValueError):
        return False


def _is_the_same_processor():
    from tests.golden import trajectories

    with open(HERE / "trajectories.json") as file:
        return json.load(file)["cpu"] == trajectories.cpu()

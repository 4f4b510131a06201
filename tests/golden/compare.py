"""Reads the golden figures of a study, and says where others differ from them."""

import csv
import pathlib

HERE = pathlib.Path(__file__).parent


def golden(name):
    """Returns the figures of a study by (line, seed, split, round, metric)."""
    with open(HERE / f"{name}.csv", newline="") as file:
        return {tuple(row[:5]): row[5] for row in list(csv.reader(file))[1:]}


def differences(figures, wanted):
    """Returns each figure that differs, or is in one of both only."""
    keys = {*figures, *wanted}
    return {
        key: (figures.get(key), wanted.get(key))
        for key in sorted(keys)
        if figures.get(key) != wanted.get(key)
    }

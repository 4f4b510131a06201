"""The paper's tables at a size of seconds."""

import dataclasses

from stackoverflow.paper_tables import SCALES, ReproduceConfig, Scale
from tff_agg.recycling import inference

LEAST = {
    "rounds": 6,
    "clients_per_round": 4,
    "min_separation": 3,
    "embedding_size": 4,
    "lstm_size": 6,
    "evaluate_every": 2,
    "validation_examples": 40,
    "test_examples": 40,
}


def never(*_):
    raise AssertionError("trained again")


def scale() -> Scale:
    """Returns what stands in for the scale 'tiny'."""
    tiny = SCALES["tiny"]
    grid = inference.Grid(uta=(2, 4), outputs=(2,), ema=(0.9,))
    judging = dataclasses.replace(tiny.judging, grid=grid, examples=40, span=2, every=2)
    return dataclasses.replace(
        tiny,
        changes=LEAST,
        judging=judging,
        interval_examples=10,
        separations=(1, 3),
    )


def config(store: str, out: str) -> ReproduceConfig:
    """Returns a table of one row with two trainings."""
    trainings = ("baseline", "UTA_tr")
    return ReproduceConfig("pds", "tiny", 2, store, out, ("18.9",), trainings)

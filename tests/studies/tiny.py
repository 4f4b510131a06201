"""Studies of StackOverflow at a size of seconds."""

import dataclasses

from stackoverflow.studies.scales import SCALES, Scale
from tff_agg.recycling.methods import parse_methods

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


def scale() -> Scale:
    """Returns what stands in for the scale 'tiny'."""
    return dataclasses.replace(
        SCALES["tiny"],
        changes=LEAST,
        uta=parse_methods("uta:2,4"),
        ema=parse_methods("ema:0.9"),
        outputs=(2,),
        examples=40,
        span=2,
        every=2,
        interval_examples=10,
        separations=(1, 3),
    )

"""One aggregate of checkpoints, from its text to its weights."""

import numpy as np
import pytest

from tff_agg import averaging
from tff_agg.recycling.aggregates import Aggregate

MEMBERS = [0, 2, 3, 5, 8, 9]


def load(number):
    return {"w": np.array([number, -2.0 * number], np.float32)}


@pytest.mark.parametrize(
    ("text", "averager"),
    [
        ("last", averaging.last()),
        ("uta:1", averaging.uta(1)),
        ("uta:4", averaging.uta(4)),
        ("ema:0.5", averaging.ema(decay=0.5, warm_up=True)),
        ("pda:1.5", averaging.pda(1.5)),
    ],
)
def test_it_is_what_the_averager_folds_to(text, averager):
    found = Aggregate.parse(text).compute(load, MEMBERS)
    *_, expected = averaging.fold(averager, (load(t) for t in MEMBERS))
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-6)
    assert str(Aggregate.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "mean", "last:3", "uta", "uta:", "uta:2.5", "uta:0", "ema:1.5", "pda:-1"],
)
def test_what_is_no_aggregate_is_refused_by_its_text(text):
    with pytest.raises(ValueError, match=f"aggregate='{text}' must be last, uta:k"):
        Aggregate.parse(text)


def test_more_checkpoints_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"uta:7: there are only 6 checkpoints"):
        Aggregate.parse("uta:7").compute(load, MEMBERS)


def test_it_says_which_rounds_take_part():
    assert Aggregate.parse("last").used(MEMBERS) == [9]
    assert Aggregate.parse("uta:3").used(MEMBERS) == [5, 8, 9]
    assert Aggregate.parse("pda:1").used(MEMBERS) == MEMBERS

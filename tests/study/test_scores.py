"""The table of scores: parts that are whole, in which numbers stay what they are."""

import math

import numpy as np
import pytest

from tff_agg.experiment.study.declare import Question, Score
from tff_agg.experiment.study.scores import Key, Scores
from tff_agg.recycling.methods import parse_methods

KEY = Key("iterate", "last", 9, "test", 30)


def score(value=0.5, metric="accuracy", group="all", **changes):
    return Score(*KEY._replace(**changes), group, metric, value)


def question(methods="last", rounds=(9,), split="test", examples=30, series="iterate"):
    return Question(split, examples, series, parse_methods(methods), rounds)


def test_numbers_come_back_to_the_last_bit(tmp_path):
    bits = np.random.default_rng(1).integers(0, 1 << 63, 500, dtype=np.uint64)
    values = [*map(float, bits.view(np.float64)), math.inf, -0.0, 5e-324]
    rows = [score(value, round=number) for number, value in enumerate(values)]
    Scores(tmp_path).add("run", rows)
    read = Scores(tmp_path)
    found = [read.values("run", KEY._replace(round=n)) for n in range(len(values))]
    assert np.array_equal(
        np.array([one["accuracy"] for one in found]).view(np.uint64),
        np.array(values).view(np.uint64),
    )
    assert read.frame(["run"])["value"].to_list() == pytest.approx(
        values, rel=0, nan_ok=True
    )


def test_missing_is_what_no_part_answers(tmp_path):
    scores = Scores(tmp_path)
    asked = [question("last uta:3", rounds=(8, 9)), question("last", rounds=(9, 10))]
    assert scores.missing(None, asked) == [
        question("last", rounds=(8, 9, 10)),
        question("uta:3", rounds=(8, 9)),
    ]
    scores.add("run", [score(), score(method="uta:3")])
    scores.refresh()
    assert scores.missing("run", asked) == [
        question("last", rounds=(8, 10)),
        question("uta:3", rounds=(8,)),
    ]
    assert scores.missing("run", [question()]) == []


@pytest.mark.parametrize(
    "other",
    [question(split="heldout"), question(examples=29), question(series="aggregate"),
     question("uta:3"), question(rounds=(8,))],
)  # fmt: skip
def test_a_score_of_anything_else_is_no_answer(tmp_path, other):
    scores = Scores(tmp_path)
    scores.add("run", [score()])
    scores.refresh()
    assert scores.missing("run", [other]) == [other]
    assert scores.missing("other run", [question()]) == [question()]


def test_writers_side_by_side_lose_nothing(tmp_path):
    first, second = Scores(tmp_path), Scores(tmp_path)
    first.add("a", [score(0.1)])
    second.add("b", [score(0.2), score(0.3, "loss"), score(0.4, group="questions")])
    second.add("a", [score(0.1)])  # the same again
    read = Scores(tmp_path)
    assert read.values("a", KEY) == {"accuracy": 0.1}
    assert read.values("b", KEY) == {"accuracy": 0.2, "loss": 0.3}
    assert read.values("b", KEY, "questions") == {"accuracy": 0.4}
    assert len(read.rows(["a", "b"])) == len(read.frame(["a", "b"])) == 4
    assert len([*(tmp_path / "scores").iterdir()]) == 2


def test_what_others_write_is_seen_after_a_refresh(tmp_path):
    mine = Scores(tmp_path)
    assert mine.values("run", KEY) is None
    mine.add("other", [score(0.1)])
    mine.refresh()
    Scores(tmp_path).add("run", [score(0.2)])
    mine.refresh()
    assert mine.values("run", KEY) == {"accuracy": 0.2}


@pytest.mark.parametrize("text", ["", "a,b\n", "run,series\nx,y\n", "{header}\nx,y\n"])
def test_a_damaged_part_is_named(tmp_path, text):
    Scores(tmp_path).add("run", [score()])
    (path,) = (tmp_path / "scores").iterdir()
    header = path.read_text().splitlines()[0]
    path.write_text(text.format(header=header))
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        Scores(tmp_path).refresh()

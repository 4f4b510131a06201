"""Ways to use checkpoints: from their text to their weights and their scores."""

import functools
import math

import numpy as np
import pytest

from tff_agg import averaging
from tff_agg.recycling import methods, windows
from tff_agg.recycling.methods import (
    KINDS,
    LAST,
    Kind,
    Method,
    Outputs,
    parse_methods,
)
from tff_agg.recycling.metrics import accuracy_judge
from tff_agg.recycling.outputs import Predictions
from tff_agg.recycling.series import Passing, Stored

MEMBERS = [0, 2, 3, 5, 8, 9]
CLASSES = 6


def load(number):
    return {"w": np.array([number, -2.0 * number], np.float32)}


SERIES = Stored(MEMBERS, load)


@pytest.mark.parametrize(
    ("text", "averager", "title"),
    [
        ("last", averaging.last(), "last"),
        ("uta:1", averaging.uta(1), "UTA_inf 1"),
        ("uta:4", averaging.uta(4), "UTA_inf 4"),
        ("ema:0.5", averaging.ema(decay=0.5, warm_up=True), "EMA_inf 0.5"),
        ("ema_cold:0.75", averaging.ema(decay=0.75), "EMA_inf cold 0.75"),
        ("ema_printed:0.9", averaging.ema(weight=0.9, warm_up=True), None),
        ("ema_weight:0.3", averaging.ema(weight=0.3), "EMA_inf weight 0.3"),
        ("pda:1.5", averaging.pda(1.5), "PDA 1.5"),
    ],
)
def test_it_is_what_the_averager_folds_to(text, averager, title):
    method = Method.parse(text)
    found = methods.aggregate(SERIES, method, 9)
    *_, expected = averaging.fold(averager, (load(t) for t in MEMBERS))
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-6)
    assert str(method) == text
    assert title in (None, method.title)


@pytest.mark.parametrize(
    "text",
    [
        *("", "mean", "last:3", "uta", "uta:", "uta:2.5", "uta:0", "ema:1.5", "pda:-1"),
        *("uta:3@0", "uta:3@", "ema:0.9@2", "opa", "last@3"),
    ],
)
def test_what_is_no_method_is_refused_by_its_text(text):
    with pytest.raises(ValueError, match=f"method='{text}' must be one of last, uta:k"):
        Method.parse(text)


def test_grids_are_read_and_written():
    text = "last uta:10,50@5 ema:0.9999 opa:10"
    grid = parse_methods(f"{text} uta:10 ")
    assert grid == (
        LAST,
        Method("uta", 10),
        Method("uta", 50, 5),
        Method("ema", 0.9999),
        Method("opa", 10),
    )
    assert methods.written(grid) == text
    assert parse_methods("") == ()
    with pytest.raises(ValueError, match="'uta:x'"):
        parse_methods("last uta:3,x")


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.99999, 200, 1e-7])
def test_a_parameter_comes_back_exactly(value):
    assert Method.parse(str(Method("pda", value))).value == value


def test_more_checkpoints_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"uta:7: there are only 6 checkpoints"):
        methods.aggregate(SERIES, Method("uta", 7), 9)
    with pytest.raises(ValueError, match="opa:2 combines the outputs"):
        methods.aggregate(SERIES, Method("opa", 2), 9)


def test_it_says_which_rounds_take_part():
    assert LAST.members(MEMBERS, 9) == [9]
    assert Method("uta", 3).members(MEMBERS, 9) == [5, 8, 9]
    assert Method("uta", 2).members(MEMBERS, 5) == [3, 5]
    assert Method("uta", 3, 3).members(MEMBERS, 9) == [0, 3, 9]
    assert Method("pda", 1).members(MEMBERS, 9) == MEMBERS


def test_checkpoints_can_be_apart():
    found = methods.aggregate(SERIES, Method.parse("uta:3@3"), 9)
    np.testing.assert_array_equal(found["w"], [4, -8])


def by_size(weights):
    return {"all": {"size": float(weights["w"].sum())}}


def walk(rounds, seed=0):
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((rounds, 3)).cumsum(axis=0).astype(np.float32)
    return {t: {"w": made[t]} for t in range(rounds)}


def predicting(rounds, rows=12, seed=1):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.ones(CLASSES), size=(rounds, rows)).astype(np.float32)
    targets = rng.integers(0, CLASSES, rows)
    by_weights = {float(w["w"].sum()): t for t, w in walk(rounds).items()}

    def predict(weights, part):
        t = by_weights[float(weights["w"].sum())]
        return Predictions(scores[t][part], targets[part])

    outputs = Outputs(predict, np.arange(rows), CLASSES, accuracy_judge())
    return outputs, scores, targets


def test_every_method_is_scored_at_every_round():
    steps = walk(25)
    series = Stored(list(steps), steps.__getitem__)
    outputs, scores, targets = predicting(25)
    grid = parse_methods("last uta:2,3 uta:2@5 ema:0.9 pda:1 opa:1,4 omv:1 opa:2@5")
    progress = []
    found = {
        (str(method), number): values
        for method, number, values in methods.evaluate(
            series, grid, [10, 24], by_size, outputs, lambda *a: progress.append(a)
        )
    }
    assert set(found) == {(str(m), n) for m in grid for n in (10, 24)}
    for number in (10, 24):
        for method in grid:
            if method.facts.combine is None:
                own = methods.aggregate(series, method, number)
                assert found[str(method), number] == by_size(own)
    window = scores[[19, 24]].astype(np.float64).sum(axis=0).argmax(axis=1)
    expected = {"all": {"accuracy": np.mean(window == targets)}}
    assert found["opa:2@5", 24] == expected
    assert found["opa:1", 24] == found["omv:1", 24]
    assert [p for p in progress if p[0] == "models"][-1] == ("models", 12, 12)


@pytest.mark.parametrize(("limit", "reads"), [(1 << 28, 20), (5 * 8, 23), (0, 28)])
def test_a_checkpoint_of_several_windows_is_read_once_if_it_fits(
    monkeypatch, limit, reads
):
    read = []

    def counted(number):
        read.append(number)
        return load(number)

    reused = functools.partial(windows.Reused, limit=limit)
    monkeypatch.setattr(windows, "Reused", reused)
    series = Stored(range(20), counted)
    found = methods.evaluate(
        series, parse_methods("uta:3,10"), [7, 13, 19], lambda w: {"all": w["w"][0]}
    )
    means = {(str(m), n): values["all"] for m, n, values in found}
    assert len(read) == reads
    assert means["uta:10", 13] == 8.5 and means["uta:3", 19] == 18


def test_a_run_that_passes_by_gives_what_a_stored_one_does():
    steps = walk(25)
    grid = parse_methods("last uta:2,40 uta:3@5 ema:0.9 pda:1 opa:3 omv:2")
    outputs, *_ = predicting(25)
    stored, passing = Stored(list(steps), steps.__getitem__), Passing(grid)
    for number, weights in steps.items():
        passing.add(number, weights)
        if number in (10, 24):
            both = [
                set(
                    (str(m), tuple(values["all"].items()))
                    for m, _, values in methods.evaluate(
                        series, grid, [number], by_size, outputs
                    )
                )
                for series in (stored, passing)
            ]
            assert both[0] == both[1]
    assert len(passing.rounds) == 25
    short = Passing(parse_methods("uta:3"))
    for number, weights in steps.items():
        short.add(number, weights)
    assert short.rounds == [22, 23, 24]


def test_a_fork_of_what_passes_goes_on_apart():
    one = Passing(parse_methods("uta:2 ema:0.5"))
    one.add(1, load(1))
    other = one.copy()
    one.add(2, load(2))
    other.add(2, load(5))
    for series, expected in ((one, 2), (other, 5)):
        assert series.load(2)["w"][0] == expected
    (first,), (second,) = (
        [m["w"][0] for *_, m in s.folded({Method("ema", 0.5): None}, [2])]
        for s in (one, other)
    )
    assert first < second


def test_outputs_of_a_run_that_diverged_have_no_value():
    """And the scores of its models, and of other rounds, stay."""
    bad = Outputs(
        lambda w, rows: Predictions(np.full((4, 2), np.nan), np.zeros(4, int)),
        np.arange(4),
        2,
        accuracy_judge(),
    )
    grid = parse_methods("last opa:2")
    series = Stored(MEMBERS, load)
    found = dict(
        (str(m), values["all"])
        for m, _, values in methods.evaluate(series, grid, [9], by_size, bad)
    )
    assert math.isnan(found["opa:2"]["accuracy"]) and found["last"]["size"] == -9


def test_what_needs_predictions_says_so():
    with pytest.raises(ValueError, match="opa:2: outputs are needed"):
        list(methods.evaluate(SERIES, parse_methods("opa:2"), [9], by_size))
    with pytest.raises(ValueError, match="round 99"):
        list(methods.evaluate(SERIES, [LAST], [99], by_size))


def test_a_new_method_is_a_line_of_the_registry(monkeypatch):
    squared = Kind("SQ_inf", "p", float, lambda p: averaging.pda(p * p))
    monkeypatch.setitem(KINDS, "sq", squared)
    method = Method.parse("sq:2")
    found = methods.aggregate(SERIES, method, 9)
    expected = methods.aggregate(SERIES, Method("pda", 4.0), 9)
    np.testing.assert_array_equal(found["w"], expected["w"])
    assert method.title == "SQ_inf 2" and str(method) == "sq:2"


def test_votes_are_left_out_where_they_mean_nothing():
    grid = parse_methods("last opa:2 omv:2 uta:50")
    assert methods.applicable(grid, "") == grid
    no_votes = methods.applicable(grid, "ranks")
    assert methods.written(no_votes) == "last opa:2 uta:50"
    few = methods.without_windows_beyond(grid, 9)
    assert methods.written(few) == "last opa:2 omv:2"


def test_the_baseline_is_the_untuned_average_of_earlier_work():
    averager = methods.EMA_BASELINE.averager()
    assert averager.weights is not None
    weights = averager.weights(2000)
    by_hand = np.zeros(2001)
    by_hand[0] = 1.0
    for t in range(1, 2001):
        decay = min(0.9999, (1 + t) / (10 + t))
        by_hand *= decay
        by_hand[t] = 1 - decay
    np.testing.assert_allclose(weights, by_hand, rtol=1e-9, atol=1e-15)


def test_windows_that_are_not_what_k_says_are_told():
    whole = Stored(range(25), load)
    assert methods.warnings(whole, parse_methods("last uta:10"), [24]) == []
    (line,) = methods.warnings(whole, parse_methods("opa:400"), [24])
    assert line == "k = 400 of round 24: there are only 25 checkpoints"
    assert windows.window_warnings(whole.rounds, [24], [25]) == []

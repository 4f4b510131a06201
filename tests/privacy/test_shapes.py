"""Shapes of a run: which are compared, what they leave of the signal, which is best."""

import pytest

from tff_agg.experiment.commands import flags
from tff_agg.privacy import shapes
from tff_agg.shapes import ShapesOptions, answer

# Of plateau runs: 12,507 users, ε = 8.2, BLT for prefix sums.
KNOWN = {
    (1000, 100): 1.0,
    (500, 200): 0.97,
    (250, 400): 0.91,
    (1000, 200): 0.84,
    (1000, 400): 0.72,
    (1000, 800): 0.66,
    (500, 800): 0.71,
    (250, 3200): 0.76,
    (100, 12507): 0.54,
}


def test_ratios_are_those_that_were_computed_on_paper():
    found = {pair: shapes.shape(12_507, *pair, epsilon=8.2).ratio for pair in KNOWN}
    for pair, expected in KNOWN.items():
        assert found[pair] / found[1000, 100] == pytest.approx(expected, abs=0.006)


def test_users_are_as_far_apart_as_they_can_be():
    found = shapes.shape(4381, 300, 100, epsilon=8.0)
    assert (found.separation, found.participations) == (43, 7)
    once = shapes.shape(4381, 10, 100, epsilon=8.0)
    assert once.participations == 1 and once.settings["min_separation"] is None


def test_the_rule_orders_the_runs_that_it_was_fitted_to():
    """docs/first_run.md: losses at 4 sentences, and at 4 to 64 of 100 users."""
    ratio = {p: shapes.shape(12_507, *p, epsilon=8.2, parameters=64_388).ratio
             for p in ((1000, 100), (500, 400), (250, 400), (1000, 400))}  # fmt: skip
    losses = {(1000, 100): 3.897, (500, 400): 3.874, (250, 400): 3.992,
              (1000, 400): 3.821}  # fmt: skip
    by_rule = sorted(losses, key=lambda p: shapes.expected_excess(ratio[p], p[0]))
    assert by_rule == sorted(losses, key=losses.__getitem__)
    more = [shapes.expected_excess(0.0, 1000, n) for n in (4, 16, 64)]
    assert more[0] - more[1] == pytest.approx(3.897 - 3.744, abs=0.05)


def test_few_rounds_cost_more_than_noise_where_time_is_short():
    """docs/shapes.md: ten seconds each on mailing lists, the losses that were found."""
    losses = {(320, 50, 4): 4.084, (190, 100, 4): 4.163, (120, 50, 16): 4.077,
              (62, 100, 16): 4.270, (100, 200, 4): 4.396}  # fmt: skip
    expected = {}
    for key in losses:
        rounds, users, sentences = key
        found = shapes.shape(12_507, rounds, users, epsilon=8.0, parameters=64_388)
        expected[key] = shapes.expected_excess(found.ratio, rounds, sentences)
    by_rule = sorted(losses, key=expected.__getitem__)
    assert {*by_rule[:2]} == {(320, 50, 4), (120, 50, 16)}


def test_what_is_recommended_fits_the_time_and_is_the_best_of_what_fits():
    found = shapes.grid(
        12_507, epsilon=8.2, parameters=64_388, seconds_per_client=0.001,
        rounds=(250, 1000), clients=(100, 400, 20_000),
    )  # fmt: skip
    assert {s.clients for s in found} == {100, 400, 12_507}
    best = {s: shapes.recommend(found, s) for s in (30, 120, 500, 1e9)}
    assert (best[30].rounds, best[30].clients) == (250, 100)
    assert (best[120].rounds, best[120].clients) == (1000, 100)
    assert (best[500].rounds, best[500].clients) == (1000, 400)
    assert (best[1e9].rounds, best[1e9].clients) == (1000, 12_507)
    # Without a time: a run of minutes, not of hours.
    assert (shapes.recommend(found)).rounds * shapes.recommend(found).clients <= 1e5
    with pytest.raises(ValueError, match="the smallest, 250 rounds of 100 users"):
        shapes.recommend(found, 1.0)


def test_the_command_prints_the_grid_and_marks_one():
    (options,) = flags.parse(
        ["--population=4381", "--epsilon=8", "--parameters=157000",
         "--seconds_per_client=0.002", "--minutes=10"],
        ShapesOptions,
    )  # fmt: skip
    text = answer(options)
    (marked,) = (line for line in text.splitlines() if "recommended" in line)
    assert "--min_separation" in text and "rounds" in text.splitlines()[0]
    assert marked.split()[0] in {str(n) for n in shapes.ROUNDS}
    with pytest.raises(ValueError, match="seconds_per_client"):
        flags.parse(["--population=10", "--epsilon=8", "--minutes=1"], ShapesOptions)

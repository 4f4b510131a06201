"""The readings of the averages in training: their arms, and what is said of them."""

import dataclasses

import pytest

from stackoverflow.studies import readings
from stackoverflow.studies.fair import GRIDS
from tests.study.tiny_studies import Told
from tff_agg.experiment.study.declare import BROADCAST
from tff_agg.experiment.study.search import perform
from tff_agg.experiment.study.statistics import gain
from tff_agg.recycling.metrics import ACCURACY
from tff_agg.recycling.series import ALWAYS_THE_SAME


def options(**changes):
    values = {"scale": "small", "store": "x", "seeds": 1, "epsilons": ("8.2",)}
    return readings.Readings(**(values | changes))


def configs(given):
    """Returns by the name of its arm and note, what every training's first run is."""
    return {
        (line.arm.name.rpartition(", ")[0], line.note): dataclasses.replace(
            line.arm.config, **line.arm.grid[0]
        )
        for line in readings.declare(given).lines
    }


def test_every_reading_takes_its_steps_from_the_aggregate_and_from_the_iterate():
    found = configs(options(settings=("published",)))
    ways = {}
    for (name, _), config in found.items():
        averager = config.build_averager()
        share = [round(float(averager.weights(t)[-1]), 3) for t in (1, 1000)]
        ways[name] = (config.step_origin, *share)
    assert ways.pop("baseline") == ("aggregate", 1.0, 1.0)
    shares = {
        "EMA_tr printed": (0.182, 0.95),
        "EMA_tr newest": (0.95, 0.95),
        "EMA_tr old average": (0.818, 0.05),
        "UTA_tr": (0.5, 0.333),
    }
    assert ways == {
        f"{name}, from the {origin}": (origin, *of_newest)
        for name, of_newest in shares.items()
        for origin in ("aggregate", "iterate")
    }


@pytest.mark.parametrize(
    ("shift", "uta", "ema"),
    [
        (False, (0.3, 1.0, 1.0), (1.0, 0.25, 1.0)),
        (True, (0.3, 1.0, 0.5), (1.0, 1.0, 0.5)),
    ],
)
def test_published_settings_are_those_of_the_papers_flag_files(shift, uta, ema):
    found = configs(options(settings=("published",), shift=shift))
    assert len(found) == 9
    for (name, note), config in found.items():
        given = (
            config.clip_norm, config.server_learning_rate, config.client_learning_rate
        )  # fmt: skip
        wanted = {"UTA": uta, "EMA": ema}.get(name[:3], (1.0, 0.25, 1.0))
        assert (given, note) == (wanted, "as published")
        assert config.pds == shift


def test_settings_of_their_own_come_from_grids_of_one_size():
    study = readings.declare(options(settings=("chosen",)))
    assert {len(line.arm.grid) for line in study.lines} == {len(GRIDS["8.2"])}
    assert len({line.arm.name for line in study.lines}) == 9
    assert study.search_seeds and not set(study.search_seeds) & set(study.seeds)


def test_a_part_of_the_readings_can_be_asked_for():
    few = options(readings=("printed",), steps_from=("aggregate",))
    names = {line.arm.name for line in readings.declare(few).lines}
    assert names == {"baseline, tree", "EMA_tr printed, from the aggregate, tree"}
    with pytest.raises(ValueError, match="readings must be at least one"):
        options(readings=())


def test_the_shape_of_rounds_is_what_was_asked_for():
    given = options(sentences=16, users=400, rounds=250)
    for config in configs(given).values():
        assert (config.max_sentences, config.rounds) == (16, 250)
        assert config.clients_per_round == 400
        # As many users between two rounds of one.
        assert config.min_separation == 25


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("rounds", [1, 10, 20, 21])
def test_a_short_run_is_judged_by_rounds_that_it_has(rounds, shift):
    given = options(scale="tiny", rounds=rounds, shift=shift)
    study = readings.declare(given)
    counted = study.rounds(study.lines[0].arm.config)
    assert max(counted) == rounds and min(counted) >= 1


@pytest.mark.parametrize("level", ["18.9", "8.2"])
def test_noise_as_in_the_paper_is_that_of_its_trees_nodes(level):
    given = options(noise="paper", epsilons=(level,))
    paper = given.file(level, "baseline", "full").build_plan()
    for (name, _), config in configs(given).items():
        plan = config.build_plan()
        assert plan.per_node_multiplier == pytest.approx(paper.per_node_multiplier)
        # A user takes part more often than once.
        assert plan.epsilon > paper.epsilon, name


def test_without_noise_there_are_no_published_settings():
    study = readings.declare(options(epsilons=("inf",)))
    assert study.lines and not any(line.note for line in study.lines)


@pytest.mark.parametrize(
    ("values", "said"),
    [([0.3, 0.31, 0.3], "yes"), ([0.1, 0.11, 0.1], "no"), ([0.3, 0.1, 0.2], "open")],
)
def test_a_reading_fits_where_its_gain_is_clear_of_the_spread(values, said):
    assert readings.fits(gain(values, [0.2, 0.2, 0.2]), ACCURACY) == said


VALUES = {"last": 0.10, "uta": 0.12, "ema": 0.11}


@pytest.fixture
def told(token_store, tmp_path):
    """The results of a study whose values are told."""
    given = options(scale="tiny", store=token_store, seeds=3)

    def value(config, series, method, split):
        own = VALUES[config.averager] + 0.01 * (str(method) != "last")
        is_published = (config.clip_norm, config.server_learning_rate) == (1.0, 0.25)
        at_test = split == "test"
        return own - 0.02 * is_published + (config.seed % 100) * 1e-4 * at_test

    study = dataclasses.replace(readings.declare(given), train=Told(value))
    return given, perform(study, tmp_path)


def test_gains_are_over_the_baseline_with_the_same_settings_and_model(told, tmp_path):
    given, found = told
    made = readings.report(given, found)
    table = made.tables["table_eps8.2"]
    column = table.header.index("gain in accuracy % over the baseline")
    labels = {
        (row[0], row[4], row[5].split()[0]): row[column].partition(" %")[0]
        for row in table.rows[:-1]
    }
    assert labels["baseline", "as published", "broadcast"] == ""
    assert labels["baseline", "chosen", "UTA_inf"] == ""
    # 0.11 over 0.10, each less 0.02 with the paper's settings.
    ema = "EMA_tr printed, from the aggregate"
    assert labels[ema, "as published", "broadcast"] == "+12.5"
    assert labels[ema, "chosen", "broadcast"] == "+10.0"
    assert labels[ema, "chosen", "UTA_inf"] == "+9.1"
    made.write(tmp_path)
    for name in ("table_eps8.2.csv", "table_eps8.2.png", "curves_eps8.2.png"):
        assert (tmp_path / name).stat().st_size > 1000
    assert "search_eps8.2" in made.tables


def test_the_pattern_compares_recycled_models_with_the_last_iterate(told):
    given, found = told
    table = readings.report(given, found).tables["pattern_eps8.2"]
    last, *others, always = table.rows
    assert [row[1] for row in (last, *others)] == ["last"] + 8 * ["UTA_inf"]
    assert always[0] == ALWAYS_THE_SAME
    # Of 0.09 to 0.10 or more over 0.08: all gain.
    assert {row[-1] for row in others} <= {"yes", ""}
    column = table.header.index("fits in accuracy % over the baseline")
    assert {row[column] for row in others} == {"yes"}


def test_a_whole_line_of_models_is_judged_by_one_window_for_all():
    for line in readings.declare(options()).lines:
        assert len(line.use.methods) == 1
        assert line.use.series == BROADCAST.series

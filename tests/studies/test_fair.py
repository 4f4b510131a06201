"""The fair comparison: arms, choices, the steps beyond the paper, at a tiny size."""

import dataclasses

import pytest

from stackoverflow.studies import fair
from stackoverflow.studies.scales import EPSILONS, configuration
from tests.golden.compare import differences, golden
from tests.study.tiny_studies import Told
from tff_agg.experiment.study.declare import BROADCAST
from tff_agg.experiment.study.search import perform, results
from tff_agg.recycling.methods import Method
from tff_agg.recycling.series import ALWAYS_THE_SAME


def options(**changes):
    values = {"scale": "small", "store": "x", "seeds": 1, "epsilons": ("18.9",)}
    return fair.Fair(**(values | changes))


def told(store, out, values, level="18.9", seeds=3):
    """Performs the comparison with told values, by (arm, noise, use, speed)."""
    study = fair.declare(
        options(scale="tiny", store=store, epsilons=(level,), seeds=seeds)
    )

    def value(config, series, method, split):
        name = {"last": "baseline", "uta": "UTA_tr", "ema": "EMA_tr"}.get(
            config.averager, "schedule-free"
        )
        noise = "BLT" if config.mechanism == "blt" else "tree"
        if config.mechanism == "identity":
            name, noise = fair.DP_SGD, "independent"
        use = "broadcast" if series == "aggregate" else "UTA_inf"
        pace = fair.trainings(shift=False)[name].pace
        speed = config.clip_norm, config.server_learning_rate / pace
        found = values.get((name, noise, use, speed), 0.01)
        # Seeds swing a little, all in the same way.
        return found + (config.seed % 100) * 1e-4 * (split == "test")

    few = dataclasses.replace(study, train=Told(value))
    return perform(few, out)


@pytest.mark.parametrize("shift", [False, True])
def test_arms_differ_in_aggregation_noise_clip_and_rate_alone(shift):
    base = configuration("small", "18.9", "baseline", shift=shift, store="x")
    assert base.pds == shift
    for line in fair.declare(options(shift=shift)).lines:
        for settings in line.arm.grid:
            own = dataclasses.replace(line.arm.config, **settings)
            changed = {
                field.name
                for field in dataclasses.fields(own)
                if getattr(own, field.name) != getattr(base, field.name)
            }
            name = line.arm.name.split(", ")[0]
            training = fair.trainings(shift=shift)[name].changes
            free = {*training, "mechanism", "clip_norm", "server_learning_rate"}
            assert changed <= free


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_arm_has_the_same_speeds_to_choose_from(epsilon):
    study = fair.declare(options(epsilons=(epsilon,)))
    speeds = {}
    for line in study.lines:
        if line.use == BROADCAST and not line.note:
            name = line.arm.name.split(", ")[0]
            pace = fair.trainings(shift=False)[name].pace
            speeds[line.arm.name] = [
                (s["clip_norm"], s["server_learning_rate"] / pace)
                for s in line.arm.grid
            ]
    ways = fair.trainings(shift=False).values()
    assert len(speeds) == sum(len(fair.noises(epsilon, way)) for way in ways)
    assert all(own == list(fair.GRIDS[epsilon]) for own in speeds.values())


def test_the_papers_own_settings_are_read_from_its_flag_files():
    study = fair.declare(options(epsilons=("inf", "8.2")))
    published = [line for line in study.lines if line.note]
    assert [(x.row, x.arm.name, *x.arm.grid[0].values()) for x in published] == [
        ("8.2", "baseline, tree", 1.0, 0.25),
        ("8.2", "UTA_tr, tree", 0.3, 1.0),
    ]


def test_dp_sgd_has_independent_noise_for_the_same_participation():
    lines = fair.declare(options(arms=("baseline", "DP-SGD"))).lines
    plans = {x.arm.name: x.arm.config.build_plan() for x in lines}
    assert set(plans) == {"baseline, tree", "baseline, BLT", "DP-SGD, independent"}
    own, tree = plans["DP-SGD, independent"], plans["baseline, tree"]
    assert own.mechanism.name == "identity"
    assert own.participation == tree.participation
    # A user takes part ten times, and sampling amplifies none of them.
    assert own.noise_stddev == pytest.approx(
        10**0.5 * own.noise_multiplier * own.clip_norm
    )
    assert own.epsilon == pytest.approx(18.9)


def test_more_local_work_changes_the_sentences_alone():
    def configs(given):
        return [x.arm.config for x in fair.declare(given).lines]

    plain, more = configs(options()), configs(options(sentences=16))
    assert [dataclasses.replace(c, max_sentences=16) for c in plain] == more


VALUES = {
    ("baseline", "tree", "broadcast", (0.3, 0.5)): 0.12,
    ("baseline", "tree", "broadcast", (1.0, 0.5)): 0.10,
    ("baseline", "tree", "UTA_inf", (0.3, 1.0)): 0.13,
    ("baseline", "BLT", "broadcast", (0.3, 1.0)): 0.14,
    ("baseline", "BLT", "UTA_inf", (0.3, 1.0)): 0.15,
    ("schedule-free", "BLT", "broadcast", (0.3, 1.0)): 0.17,
    ("schedule-free", "BLT", "UTA_inf", (0.3, 1.0)): 0.16,
}


def test_the_steps_lead_from_the_papers_recipe_to_the_best_on_validation_data(
    token_store, tmp_path
):
    found = told(token_store, tmp_path, VALUES)
    named = fair.steps(found)
    assert list(named) == [
        fair.RECIPE,
        fair.OWN,
        fair.RECYCLED,
        "BLT noise instead of tree noise, UTA_inf",
        "schedule-free, BLT noise",
    ]
    rates = [found.config(line).server_learning_rate for line in named.values()]
    assert rates == [0.5, 0.5, 1.0, 1.0, 20.0]
    made = fair.report(options(), found)
    *rows, always = made.tables["steps_eps18.9"].rows
    assert always[0] == ALWAYS_THE_SAME
    first, second = (
        [row[i] for row in rows] for i in range(len(rows[0]) - 2, len(rows[0]))
    )
    assert [text.partition(",")[0] for text in first] == [
        "", "+20.0 %", "+30.0 %", "+50.0 %", "+69.9 %",
    ]  # fmt: skip
    assert all("clear" in text for text in first[1:])
    assert second[:3] == ["", "", ""] and "+15.4 %" in second[3]


def test_without_noise_there_is_no_recipe_of_the_papers_to_start_from(
    token_store, tmp_path
):
    found = told(token_store, tmp_path, {}, level="inf")
    assert list(fair.steps(found)) == [fair.OWN, fair.RECYCLED]


def test_tables_pictures_and_values_are_written(token_store, tmp_path):
    found = told(token_store, tmp_path, VALUES)
    fair.report(options(), found).write(tmp_path)
    for name in ("table", "steps"):
        written = (tmp_path / f"{name}_eps18.9.md").read_text()
        assert "| baseline | tree | 0.3 | 0.5 |" in written
    searched = (tmp_path / "search_eps18.9.md").read_text()
    point = "clip_norm=0.3 server_learning_rate=0.5"
    assert f"| baseline, tree | {point} | **12.00** |" in searched
    header, *rows = (tmp_path / "table_eps18.9.csv").read_text().splitlines()
    assert header.endswith(
        "settings,model,seed,accuracy,accuracy_with_oov,loss,perplexity"
    )
    assert len(rows) == 3 * len(found.lines) == 60
    assert rows[0].startswith("baseline,tree,1,0.5,as published,broadcast,0,0.1,")
    for name in ("curves", "table", "steps"):
        assert (tmp_path / f"{name}_eps18.9.png").stat().st_size > 1000


def test_of_an_unfinished_comparison_the_search_is_shown(token_store, tmp_path):
    study = fair.declare(options(scale="tiny", store=token_store))
    asked = dataclasses.replace(
        study, train=Told(lambda *_: 0.1), final=None, lines=study.lines[:4]
    )
    perform(asked, tmp_path)
    found = results(dataclasses.replace(study, train=asked.train), tmp_path)
    made = fair.report(options(), found)
    assert list(made.tables) == ["search_eps18.9"]
    assert len(made.tables["search_eps18.9"].rows) == 4 + 1


def old_name(arm, settings, model):
    """Names a candidate as the old code did."""
    clip, rate = settings["clip_norm"], settings["server_learning_rate"]
    if model == "last":
        model = "broadcast"
    elif ":" in model:
        model = Method.parse(model).title
    return f"{arm.name}, clip {clip:g}, rate {rate:g}: {model}"


@pytest.mark.slow
def test_the_command_searches_tests_and_shows_the_figures_that_it_showed(
    token_store, tiny_scale, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(fair, "noises", lambda level, training: ("tree",))
    monkeypatch.setattr(fair, "GRIDS", {"18.9": ((0.3, 2.0), (1.0, 0.5))})
    given = fair.Fair(
        scale="tiny", seeds=2, store=token_store, out=str(tmp_path),
        epsilons=("18.9",), shift=True, arms=("baseline",),
        # In processes that set TensorFlow up: more threads give other last digits.
        processes=2,
    )  # fmt: skip
    run = fair.command(fair.StackOverflow).run
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert "published" in shown and "UTA_inf" in shown
    found = results(fair.declare(given), tmp_path)
    metrics = [metric.name for metric in found.study.task.metrics]
    figures = {}
    for line in found.lines:
        why = line.note or "chosen"
        chosen = found.chosen[line]
        model = "broadcast" if line.use == BROADCAST else str(chosen.method)
        name = f"chosen {old_name(line.arm, chosen.settings, model)} ({why})"
        for metric in metrics:
            for settings, method, (value,) in found.candidates(line, metric):
                key = old_name(line.arm, settings, method)
                figures[key, "100", "heldout", "mean", metric] = repr(value)
            for seed, value in enumerate(found.values(line, metric)):
                figures[name, str(seed), "test", "mean", metric] = repr(value)
    assert differences(figures, golden("fair")) == {}
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").iterdir()}
    assert before
    assert run(dataclasses.replace(given, report_only=True)) == 0
    assert run(dataclasses.replace(given, dry_run=True)) == 0
    assert "Nothing is left to train" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "scores").iterdir()}

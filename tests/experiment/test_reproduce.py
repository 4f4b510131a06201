"""The paper's tables at a size of seconds: runs, choices, tables, pictures."""

import dataclasses
import functools
import json
import sys

import numpy as np
import pytest

from stackoverflow import (
    beyond,
    fair,
    fair_report,
    paper_tables,
    reproduce,
    table_jobs,
    table_report,
)
from stackoverflow.paper_tables import COLUMNS, EPSILONS, SCALES, ReproduceConfig
from stackoverflow.task import StackOverflow
from tff_agg.experiment import in_memory
from tff_agg.experiment.drivers import train
from tff_agg.experiment.runs import Run
from tff_agg.recycling import inference
from tff_agg.runtime import jobs

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


@pytest.fixture
def config(monkeypatch, token_store, tmp_path):
    """A table of one row that takes seconds."""
    tiny = SCALES["tiny"]
    grid = inference.Grid(uta=(2, 4), outputs=(2,), ema=(0.9,))
    judging = dataclasses.replace(tiny.judging, grid=grid, examples=40, span=2, every=2)
    small = dataclasses.replace(
        tiny,
        changes=LEAST,
        judging=judging,
        interval_examples=10,
        separations=(1, 3),
    )
    monkeypatch.setitem(SCALES, "tiny", small)
    trainings = ("baseline", "UTA_tr")
    return ReproduceConfig(
        "pds", "tiny", 2, token_store, str(tmp_path), ("18.9",), trainings
    )


def test_every_cell_has_a_published_figure():
    for table in paper_tables.TABLES:
        found = paper_tables.published(table)
        assert {row: set(cells) for row, cells in found.items()} == {
            epsilon: set(COLUMNS) for epsilon in EPSILONS
        }
    assert found["8.2"]["UTA_tr"] == "20.81 ± 0.05"


@pytest.mark.parametrize("table", paper_tables.TABLES)
def test_small_twins_train_like_the_files_they_are_twins_of(table):
    """The same averages; noise, clip norm and rate for their own population."""
    twins = ReproduceConfig(table, "small", 1, "x", "y")
    grids = ReproduceConfig("fair", "small", 1, "x", "y", shift=table == "pds")
    for run in twins.runs():
        large, small = (run.config(scale, "x") for scale in ("full", "small"))
        for name in ("averager", "k", "ema_decay", "pds", "delta"):
            assert getattr(small, name) == getattr(large, name), (run, name)
        noise = fair.noises(run.epsilon)[0]
        own = (run.training, noise, small.clip_norm, small.server_learning_rate)
        assert own in fair.points(grids, run.epsilon)
        base = fair.base_config(grids, run.epsilon)
        assert fair.Point(*own).config(base, run.seed) == small
        # It would make the first steps 18 times as long.
        assert run.training != "EMA_tr" or not small.ema_warm_up
        assert small.min_separation == 100
        if run.epsilon == "inf":
            assert small.noise_multiplier == 0
        else:
            assert small.epsilon == float(run.epsilon)
            assert small.insecure_noise_seed is None


@pytest.mark.parametrize(("scale", "period"), [("small", 200), ("tiny", 20)])
def test_under_a_shift_a_whole_period_counts_and_as_many_rounds(scale, period):
    run = paper_tables.Run("pds", "18.9", "baseline", 0)
    assert run.config(scale, "x").pds_period == period
    plain, shifted = (paper_tables.judging(scale, shift=s) for s in (False, True))
    rounds = shifted.span // shifted.every + 1
    assert rounds == plain.span // plain.every + 1
    assert rounds * shifted.every == period


def test_at_full_scale_the_last_round_counts_as_published():
    assert paper_tables.judging("full", shift=True).span == 0


def test_real_data_have_to_be_given():
    config = ReproduceConfig("pds", "small", 1, "", "y")
    with pytest.raises(ValueError, match=r"--scale=small needs --store"):
        reproduce.with_store(config)


@pytest.mark.parametrize(
    "bad",
    [
        {"seeds": 0},
        {"epsilons": ("3",)},
        {"trainings": ("SGD",)},
        {"trainings": ()},
        {"shift": True},
        {"jobs": 0},
        {"jobs": 2, "address": "auto"},
    ],
)
def test_what_cannot_be_is_refused(bad):
    good = {"table": "pds", "scale": "tiny", "seeds": 1, "store": "", "out": "x"}
    with pytest.raises(ValueError, match="must be"):
        ReproduceConfig(**(good | bad))


def test_jobs_share_the_runs_and_results_come_in_order(config, monkeypatch):
    asked = {}

    def spread(function, items, **where):
        asked.update(where)
        for position in reversed(range(len(items))):
            yield jobs.Ended(position, function(items[position]), None)

    monkeypatch.setattr(jobs, "spread", spread)
    config = dataclasses.replace(config, jobs=3)
    assert table_jobs.run_all(config, abs, [-3, 2, -1], "distances") == [3, 2, 1]
    assert asked == {"processes": 3, "address": None}


def test_no_process_is_started_for_what_is_known(config, monkeypatch):
    sent = []

    def spread(function, items, **where):
        sent.append(list(items))
        return (jobs.Ended(i, function(item), None) for i, item in enumerate(items))

    monkeypatch.setattr(jobs, "spread", spread)
    run_all = functools.partial(table_jobs.run_all, config, abs, [-3, 2, -1], "lengths")
    assert run_all(done=lambda item: item > 0) == [3, 2, 1]
    assert sent == [[-3, -1]]
    assert run_all(done=lambda item: True) == [3, 2, 1]
    assert sent == [[-3, -1]]


@pytest.mark.parametrize(
    ("where", "operations"),
    [({}, None), ({"jobs": 2}, 1), ({"address": "auto"}, 1)],
)
def test_runs_side_by_side_leave_each_other_their_cores(
    config, monkeypatch, where, operations
):
    asked = {}
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(
        table_jobs.runtime, "set_up_tensorflow", lambda **given: asked.update(given)
    )
    table_jobs.set_up(dataclasses.replace(config, **where), lanes=1)
    assert asked == {"inter_op": operations}


def test_only_what_is_left_goes_to_other_processes(config, monkeypatch):
    """And every run has been trained when they are back."""
    sent, seen = [], []
    monkeypatch.setattr(
        reproduce, "_done", lambda folder: 6 * ("baseline" in str(folder))
    )
    monkeypatch.setattr(
        table_jobs, "run_all", lambda config, train, runs, stage: sent.extend(runs)
    )
    monkeypatch.setattr(
        reproduce, "_train_alike", lambda config, total, alike: seen.extend(alike)
    )
    reproduce.train_all(dataclasses.replace(config, jobs=2), config.runs())
    assert [(run.training, run.seed) for run in sent] == [("UTA_tr", 0), ("UTA_tr", 1)]
    assert [run for _, run in seen] == config.runs()


def test_what_is_recycled_side_by_side_stands_where_it_belongs(config, monkeypatch):
    def backwards(function, items, **where):
        assert where["processes"] == 2
        for position in reversed(range(len(items))):
            yield jobs.Ended(position, function(items[position]), None)

    monkeypatch.setattr(jobs, "spread", backwards)
    monkeypatch.setattr(table_jobs.runtime, "set_up_tensorflow", lambda **given: None)
    monkeypatch.setattr(table_report, "recycle", lambda config, kind: f"of {kind}")
    found = table_report.recycle_all(dataclasses.replace(config, jobs=2))
    assert list(found) == table_report.kinds(config)
    assert all(value == f"of {kind}" for kind, value in found.items())


@pytest.mark.slow
def test_a_table_from_its_runs_to_its_pictures(config, monkeypatch):
    reproduce.train_all(config, config.runs())
    shown = table_report.report(config)
    assert shown.split()[1:8] == [name for name in COLUMNS if name != "EMA_tr"]
    for name in ("table.md", "table.csv", "all_cells.csv", "accuracy.png"):
        assert (config.results / name).stat().st_size > 50
    header, _, *rows = table_report.widths(config).splitlines()
    assert header.split("  ")[-3:] == ["ratio", "3 rounds apart", "ratio"]
    assert [row.split()[:2] for row in rows] == [
        ["pds_baseline_eps18.9", "2"],
        ["pds_uta_eps18.9", "2"],
    ]
    last, _, apart, _ = rows[0].split()[3:]
    assert last != apart
    assert (config.results / "widths.md").stat().st_size > 50
    # The chosen parameters alone were tested.
    tested = json.loads((config.results / "pds_uta_eps18.9" / "test.json").read_text())
    chosen = [(row["method"], row["parameter"]) for row in tested["rows"]]
    assert len({m for m, _ in chosen}) == len(set(chosen))
    # And nothing is done twice.
    before = {p: p.stat().st_mtime_ns for p in config.results.rglob("*.json")}
    reproduce.train_all(config, config.runs())
    assert table_report.report(config) == shown
    assert before == {p: p.stat().st_mtime_ns for p in config.results.rglob("*.json")}
    assert " 0 s" in reproduce.estimate(config)
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "spread", never)
        assert table_report.report(dataclasses.replace(config, jobs=2)) == shown
    # A column can be had by itself; gains need the baseline.
    alone = table_report.report(dataclasses.replace(config, trainings=("UTA_tr",)))
    assert alone.split()[1] == "UTA_tr" and "%" not in alone
    both, own = (text.splitlines()[2].replace("*", "") for text in (shown, alone))
    assert own.split()[1:] == both.split()[4:7]


def test_what_is_trained_in_memory_is_what_would_be_saved(make_task, cache, tmp_path):
    task = make_task()
    train.run(task, tmp_path / "run", cache=cache)
    run = Run.open(StackOverflow, tmp_path / "run")
    kept = [(n, run.load(n), run.load(n, "aggregate")) for n in run.rounds()[1:]]
    passing = list(in_memory.train(task, cache))
    assert [number for number, *_ in kept] == [number for number, *_ in passing]
    for (_, *one), (_, *other) in zip(kept, passing, strict=True):
        for saved, found in zip(one, other, strict=True):
            assert all(np.array_equal(saved[name], found[name]) for name in saved)


def test_a_candidate_is_trained_once(make_task, cache, tmp_path):
    task = make_task()
    how = in_memory.Judging(ks=(1, 3), rounds=(4, 6))
    models = functools.partial(in_memory.train, task, cache)
    first = in_memory.remembered(task, how, tmp_path, models)
    assert list(first.values) == ["broadcast", "UTA_inf 1", "UTA_inf 3"]
    assert [number for number, _ in first.curve] == [2, 4, 6]
    assert in_memory.remembered(task, how, tmp_path, never) == first
    other = dataclasses.replace(how, rounds=(6,))
    with pytest.raises(AssertionError, match="trained again"):
        in_memory.remembered(task, other, tmp_path, never)


def found(point, broadcast, recycled):
    scores = {"broadcast": broadcast, "UTA_inf 100": recycled}
    return fair.Found(point, {name: {"accuracy": v} for name, v in scores.items()})


def test_every_arm_chooses_for_what_is_used():
    """The rate that is best for the last model need not be UTA_inf's."""
    paper = [fair.Point("baseline", "tree", 1.0, 0.5)]
    scores = {0.5: (0.2, 0.2), 1.0: (0.3, 0.1), 2.0: (0.1, 0.4)}
    points = {r: fair.Point("baseline", "tree", 0.3, r) for r in scores}
    own = [found(points[r], *both) for r, both in scores.items()]
    lines = fair.lines_of([*own, found(paper[0], 0.1, 0.1)], paper)
    assert [(line.point, line.model) for line in lines if line.why == "chosen"] == [
        (points[1.0], "broadcast"),
        (points[2.0], "UTA_inf 100"),
    ]


def test_the_pictures_panels_show_what_each_arm_chose_beside_the_papers():
    paper = fair.Point("baseline", "tree", 1.0, 0.5)
    rates = {0.5: 0.2, 1.0: 0.3}
    every = [fair.Point("baseline", n, 0.3, r) for n in ("tree", "BLT") for r in rates]
    curve = [(50, {"accuracy": 0.1}), (100, {"accuracy": 0.2})]
    scores = [rates[point.rate] for point in every]
    searched = [
        found(point, score, 0.0)._replace(curve=curve)
        for point, score in zip([*every, paper], [*scores, 0.1], strict=True)
    ]
    lines = fair.lines_of(searched, [paper])
    panels = fair_report.curves_of(searched, lines, [paper])
    assert {name: list(curves) for name, curves in panels.items()} == {
        f"noise: {noise}": [
            "baseline, tree, clip 1, rate 0.5 (as published)",
            f"baseline, {noise}, clip 0.3, rate 1",
        ]
        for noise in ("tree", "BLT")
    }
    assert panels["noise: BLT"][str(every[-1])] == ([50, 100], [[0.1, 0.2]])


def test_the_steps_lead_from_the_papers_recipe_to_the_best_on_validation_data():
    paper = fair.Point("baseline", "tree", 1.0, 0.5)
    searched = [
        found(fair.Point("baseline", "tree", 0.3, 0.5), 0.12, 0.11),
        found(fair.Point("baseline", "tree", 0.3, 1.0), 0.11, 0.13),
        found(fair.Point("baseline", "BLT", 0.3, 1.0), 0.14, 0.15),
        found(fair.Point("schedule-free", "BLT", 0.3, 20.0), 0.17, 0.16),
    ]
    lines = fair.lines_of(searched, [paper])
    named = beyond.steps(searched, lines)
    assert list(named) == [
        *beyond.STEPS,
        "BLT noise instead, UTA_inf",
        "schedule-free, BLT noise, broadcast",
    ]
    assert [line.point.rate for line in named.values()] == [0.5, 0.5, 1.0, 1.0, 20.0]
    # On test data the order may be another; the last step is still validation's.
    tested = dict(zip(named.values(), (0.10, 0.12, 0.15, 0.20, 0.18), strict=True))
    scores = {
        line: [
            {"accuracy": tested.get(line, 0.0) + d, "accuracy_with_oov": 0.2, "loss": 4}
            for d in (0.0, 0.001, -0.001)
        ]
        for line in lines
    }
    _, rows = beyond.table(named, scores)
    assert [row[-2] for row in rows] == [
        "",
        "+20.0 %, clear",
        "+50.0 %, clear",
        "+100.0 %, clear",
        "+80.0 %, clear",
    ]
    assert [row[-1] for row in rows] == [""] * 3 + ["+33.3 %, clear", "+20.0 %, clear"]


def test_without_noise_there_is_no_recipe_of_the_papers_to_start_from():
    searched = [found(fair.Point("baseline", "none", 1.0, 1.0), 0.18, 0.19)]
    named = beyond.steps(searched, fair.lines_of(searched, []))
    assert list(named) == [beyond.OWN, beyond.RECYCLED]


@pytest.mark.parametrize("shift", [False, True])
def test_arms_differ_in_aggregation_noise_clip_and_rate_alone(shift):
    config = ReproduceConfig("fair", "small", 1, "x", "y", shift=shift)
    base = fair.base_config(config, "18.9")
    assert base.pds == shift
    arms = fair.arms(shift=shift)
    for point in fair.points(config, "18.9"):
        own = point.config(base, 7)
        changed = {
            field.name
            for field in dataclasses.fields(own)
            if getattr(own, field.name) != getattr(base, field.name)
        }
        settings = arms[point.arm].settings
        free = {*settings, "mechanism", "clip_norm", "server_learning_rate"}
        assert changed <= free | {"seed"}


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_arm_has_the_same_speeds_to_choose_from(epsilon):
    config = ReproduceConfig("fair", "small", 1, "x", "y")
    speeds = {}
    for point in fair.points(config, epsilon):
        pace = fair.arms(shift=False)[point.arm].pace
        speeds.setdefault(point[:2], []).append((point.clip, point.rate / pace))
    assert len(speeds) == len(fair.arms(shift=False)) * len(fair.noises(epsilon))
    assert all(own == list(fair.GRIDS[epsilon]) for own in speeds.values())


@pytest.mark.slow
def test_a_fair_comparison_is_searched_tested_and_not_done_twice(config, monkeypatch):
    monkeypatch.setattr(fair, "arms", lambda shift: {"baseline": fair.Arm({})})
    monkeypatch.setattr(fair, "noises", lambda epsilon: ("tree",))
    monkeypatch.setattr(fair, "PUBLISHED", ("baseline",))
    # The paper's own, so that one compiled training serves both.
    monkeypatch.setattr(fair, "GRIDS", {"18.9": ((1.0, 0.5),)})
    config = dataclasses.replace(config, table="fair", shift=True)
    tables = fair_report.run(config, "18.9")
    header, rows = tables.lines
    assert rows[0][4:6] == ["as published", "broadcast"]
    assert all(len(row) == len(header) for row in rows)
    assert rows[0][-1] == "" and rows[1][-1] == "too few seeds"
    for name in ("search_eps18.9", "table_eps18.9"):
        shown = (config.results / f"{name}.md").read_text()
        assert "baseline | tree | 1.0 | 0.5" in shown
        names, *cells = (config.results / f"{name}.csv").read_text().splitlines()
        assert names.endswith("model,seed,accuracy,accuracy_with_oov,loss,perplexity")
        assert all(row.startswith("baseline,tree,1.0,0.5,") for row in cells)
    assert [row[0] for row in tables.steps[1]] == [*beyond.STEPS]
    assert (config.results / "beyond_eps18.9.md").read_text().count("\n") == 5
    for name in ("search_eps18.9.png", "test_eps18.9.png", "beyond_eps18.9.png"):
        assert (config.results / name).stat().st_size > 1000
    monkeypatch.setattr(in_memory, "train", never)
    monkeypatch.setattr(jobs, "spread", never)
    assert fair_report.run(config, "18.9") == tables
    assert "in all" in reproduce.estimate(config)


def test_the_papers_own_settings_are_read_from_its_flag_files():
    config = ReproduceConfig("fair", "small", 1, "x", "y")
    assert [(p.arm, p.clip, p.rate) for p in fair.published(config, "8.2")] == [
        ("baseline", 1.0, 0.25),
        ("UTA_tr", 0.3, 1.0),
    ]
    assert not fair.published(config, "inf")

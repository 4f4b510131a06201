"""The fair comparison: arms, choices, the steps beyond the paper, at a tiny size."""

import dataclasses
import functools

import numpy as np
import pytest

from stackoverflow import beyond, fair, fair_report, reproduce
from stackoverflow.paper_tables import EPSILONS, ReproduceConfig
from stackoverflow.task import StackOverflow
from tests.experiment.tiny_tables import never
from tff_agg.experiment import in_memory
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run
from tff_agg.runtime import jobs


@pytest.fixture
def config(table_config):
    return table_config


def test_what_is_trained_in_memory_is_what_would_be_saved(make_task, cache, tmp_path):
    task = make_task()
    training.run(task, tmp_path / "run", compiled=cache)
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
        "BLT noise instead of tree noise, UTA_inf",
        "schedule-free, BLT noise",
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

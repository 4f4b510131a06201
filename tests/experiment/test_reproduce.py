"""The paper's tables at a size of seconds: runs, choices, tables, pictures."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from stackoverflow import fair, paper_tables, reproduce
from stackoverflow.paper_tables import COLUMNS, EPSILONS, SCALES, ReproduceConfig, Run
from stackoverflow.task import StackOverflow
from tff_agg.experiment import in_memory
from tff_agg.experiment.drivers import train
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


@pytest.fixture
def config(monkeypatch, token_store, tmp_path):
    """A table of one row that takes seconds."""
    tiny = SCALES["tiny"]
    grid = inference.Grid(uta=(2, 4), outputs=(2,), ema=(0.9,))
    judging = dataclasses.replace(tiny.judging, grid=grid, examples=40, span=2, every=2)
    small = dataclasses.replace(
        tiny, changes=LEAST, judging=judging, interval_examples=10
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


def test_small_twins_train_like_the_files_they_are_twins_of():
    """Noise that is computed for the ε, and the table's own optimisers."""
    for run in ReproduceConfig("pds", "small", 1, "x", "y").runs():
        large, small = (run.config(scale, "x") for scale in ("full", "small"))
        for name in (
            *("clip_norm", "server_learning_rate", "client_learning_rate"),
            *("server_momentum", "averager", "k", "ema_decay", "pds", "delta"),
        ):
            assert getattr(small, name) == getattr(large, name), (run, name)
        assert small.min_separation == 100
        if run.epsilon == "inf":
            assert small.noise_multiplier == 0
        else:
            assert small.epsilon == float(run.epsilon)
            assert small.insecure_noise_seed is None


def test_real_data_have_to_be_given():
    config = ReproduceConfig("pds", "small", 1, "", "y")
    with pytest.raises(ValueError, match=r"--scale=small needs --store"):
        reproduce.with_store(config)


@pytest.mark.parametrize(
    "bad", [{"seeds": 0}, {"epsilons": ("3",)}, {"trainings": ("UTA_tr",)}]
)
def test_what_cannot_be_is_refused(bad):
    good = {"table": "pds", "scale": "tiny", "seeds": 1, "store": "", "out": "x"}
    with pytest.raises(ValueError, match="must be"):
        ReproduceConfig(**(good | bad))


@pytest.mark.slow
def test_a_table_from_its_runs_to_its_pictures(config):
    reproduce.train_all(config, config.runs())
    shown = reproduce.report(config)
    assert shown.split()[1:8] == [name for name in COLUMNS if name != "EMA_tr"]
    for name in ("table.md", "table.csv", "all_cells.csv", "accuracy.png"):
        assert (config.results / name).stat().st_size > 50
    assert "independent runs" in reproduce.widths(config)[0]
    # The chosen parameters alone were tested.
    tested = json.loads((config.results / "pds_uta_eps18.9" / "test.json").read_text())
    chosen = [(row["method"], row["parameter"]) for row in tested["rows"]]
    assert len({m for m, _ in chosen}) == len(set(chosen))
    # And nothing is done twice.
    before = {p: p.stat().st_mtime_ns for p in config.results.rglob("*.json")}
    reproduce.train_all(config, config.runs())
    assert reproduce.report(config) == shown
    assert before == {p: p.stat().st_mtime_ns for p in config.results.rglob("*.json")}
    assert " 0 s" in reproduce.estimate(config)


def test_what_is_trained_in_memory_is_what_would_be_saved(make_task, cache, tmp_path):
    task = make_task()
    train.run(task, tmp_path / "run", cache=cache)
    kept = list(in_memory.saved(StackOverflow, tmp_path / "run"))
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
    return fair.Found(point, {"broadcast": broadcast, "UTA_inf 100": recycled})


def test_every_arm_chooses_for_what_is_used(monkeypatch):
    """The rate that is best for the last model need not be UTA_inf's."""
    monkeypatch.setattr(fair, "ARMS", {"baseline": {}})
    monkeypatch.setattr(fair, "NOISES", {"tree": "honaker"})
    paper = [fair.Point("baseline", "tree", 1.0, 0.5)]
    scores = {0.5: (0.2, 0.2), 1.0: (0.3, 0.1), 2.0: (0.1, 0.4)}
    points = {r: fair.Point("baseline", "tree", 0.3, r) for r in scores}
    own = [found(points[r], *both) for r, both in scores.items()]
    lines = fair.lines_of([*own, found(paper[0], 0.1, 0.1)], paper)
    assert [(line.point, line.model) for line in lines if line.why == "chosen"] == [
        (points[1.0], "broadcast"),
        (points[2.0], "UTA_inf 100"),
    ]


def test_arms_differ_in_aggregation_noise_clip_and_rate_alone():
    base = Run("stackoverflow", "18.9", "baseline", 0).config("small", "x")
    for point in fair.points([]):
        config = point.config(base, 7)
        changed = {
            field.name
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != getattr(base, field.name)
        }
        own = {*fair.ARMS[point.arm], "mechanism", "clip_norm", "server_learning_rate"}
        assert changed <= own | {"seed"}
    free = fair.Point("schedule-free", "BLT", 0.3, 2.0).config(base, 7)
    assert free.server_learning_rate == 40.0


@pytest.mark.slow
def test_a_fair_comparison_is_searched_tested_and_not_done_twice(config, monkeypatch):
    monkeypatch.setattr(fair, "ARMS", {"baseline": fair.ARMS["baseline"]})
    monkeypatch.setattr(fair, "NOISES", {"tree": "honaker"})
    monkeypatch.setattr(fair, "PUBLISHED", ("baseline",))
    monkeypatch.setattr(fair, "GRID", ((1.0, 0.5),))
    config = dataclasses.replace(config, table="fair")
    header, rows = fair.run(config, "18.9")
    assert rows[0][4:6] == ["as published", "broadcast"]
    assert all(len(row) == len(header) for row in rows)
    assert rows[0][-1] == "" and rows[1][-1] == "too few seeds"
    for name in ("search_eps18.9.md", "table_eps18.9.md"):
        assert "baseline | tree | 1.0 | 0.5" in (config.results / name).read_text()
    monkeypatch.setattr(in_memory, "train", never)
    assert fair.run(config, "18.9") == (header, rows)
    assert "in all" in reproduce.estimate(config)


def test_the_papers_points_are_in_every_arms_grid():
    config = ReproduceConfig("fair", "small", 1, "x", "y")
    paper = fair.published(config, "8.2")
    assert [(p.arm, p.clip, p.rate) for p in paper] == [
        ("baseline", 1.0, 0.25),
        ("UTA_tr", 0.3, 1.0),
        ("EMA_tr", 1.0, 0.25),
    ]
    found = fair.points(paper)
    assert len(found) == 5 * len(fair.ARMS) * len(fair.NOISES)
    assert set(paper) <= set(found)

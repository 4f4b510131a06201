"""The paper's tables at a size of seconds: runs, choices, tables, pictures."""

import dataclasses
import functools
import json
import sys

import pytest

from stackoverflow import (
    fair,
    paper_tables,
    reproduce,
    table_jobs,
    table_report,
)
from stackoverflow.paper_tables import COLUMNS, EPSILONS, ReproduceConfig
from tests.experiment.tiny_tables import never
from tff_agg.runtime import jobs


@pytest.fixture
def config(table_config):
    return table_config


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
    monkeypatch.setattr(table_report, "recycle", lambda config, run: f"of {run}")
    found = table_report.recycle_all(dataclasses.replace(config, jobs=2))
    kinds = ["pds_baseline_eps18.9", "pds_uta_eps18.9"]
    assert [run.kind for run in found] == kinds
    assert all(value == f"of {run}" for run, value in found.items())


@pytest.mark.slow
def test_a_table_from_its_runs_to_its_pictures(config, monkeypatch):
    reproduce.train_all(config, config.runs())
    shown = table_report.report(config)
    assert shown.split()[1:8] == [name for name in COLUMNS if name != "EMA_tr"]
    for name in ("table.md", "table.csv", "all_cells.csv", "gains.md", "accuracy.png"):
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
    # The chosen parameters alone were tested, and are drawn.
    for recycled in table_report.recycle_all(config).values():
        drawn = {(row["method"], row["parameter"]) for row in recycled.chosen_rows}
        assert drawn == {(c.method, c.parameter) for c in recycled.chosen.values()}
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

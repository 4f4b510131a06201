"""Sample-level tasks on the experiment layer: runs, resume, recycling, privacy."""

import dataclasses
import json

import numpy as np
import pytest

from tests.experiment.tiny_samples import Tiny, config
from tff_agg import checkpoints
from tff_agg.experiment.build import Compiled, build, rounds
from tff_agg.experiment.commands import audit, evaluate, export, report, uncertainty
from tff_agg.experiment.run import estimate, recording, releasing
from tff_agg.experiment.run import run as training
from tff_agg.experiment.runs import Run
from tff_agg.experiment.study.search import perform
from tff_agg.experiment.task import Exportable
from tff_agg.recycling import series
from tff_agg.recycling.methods import parse_methods
from tff_agg.server import Schedule


class Stop(recording.Observer):
    """Ends the process, as a kill would, while a round is reported."""

    def __init__(self, last):
        self._last = last

    def on_round(self, done, facts):
        if done == self._last:
            raise KeyboardInterrupt


def weights_of(folder):
    store = checkpoints.CheckpointStore(folder / "checkpoints")
    return {
        (name, t): {n: w.tobytes() for n, w in value.items()}
        for name in ("iterate", "aggregate")
        for t, value in store.iterate(name)
    }


ARMS = [
    {"averager": "uta", "k": 3, "start_round": 4, "insecure_noise_seed": 7},
    {"pds": True, "pds_period": 6, "momentum": 0.5, "insecure_noise_seed": 7},
]


@pytest.mark.parametrize("arm", ARMS, ids=["uta", "pds"])
def test_killed_and_resumed_it_comes_to_the_same_bits(arm, cache, tmp_path):
    task = Tiny(config(**arm))
    training.run(task, tmp_path / "whole", compiled=cache)
    for last in (1, 5, 11):
        with pytest.raises(KeyboardInterrupt):
            training.run(task, tmp_path / "killed", Stop(last), compiled=cache)
    training.run(task, tmp_path / "killed", compiled=cache)
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "killed")
    for name in ("metrics.csv", "validation.csv", "test.csv"):
        whole, killed = (tmp_path / f / name for f in ("whole", "killed"))
        assert whole.read_text() == killed.read_text()


def test_a_secret_seed_draws_batches_and_noise_and_is_dropped(cache, tmp_path):
    task = Tiny(config())
    for name in ("first", "second"):
        training.run(task, tmp_path / name, compiled=cache)
    first, second = (
        [
            json.loads(line)["entry"].get("cohort")
            for line in (tmp_path / name / "ledger.jsonl").read_text().splitlines()
        ]
        for name in ("first", "second")
    )
    # One public --seed, two secrets: other batches.
    assert len(set(first) & set(second) - {None}) == 0
    store = checkpoints.CheckpointStore(tmp_path / "first" / "checkpoints")
    assert store.rounds("state") == [12]
    built = build(task, cache)
    template = built.initialize()
    restored = store.load(12, "state")
    assert len(restored) == len(releasing.stored_items(template)["state"])
    seeds = [x for x in restored if x.dtype == np.uint32]
    assert [x.tolist() for x in seeds] == [[0] * 8]


def test_other_data_are_refused(cache, tmp_path):
    task = Tiny(config(insecure_noise_seed=1))
    with pytest.raises(KeyboardInterrupt):
        training.run(task, tmp_path, Stop(3), compiled=cache)
    other = Tiny(task.config)
    other.data[0][0][5] += 1
    with pytest.raises(Exception, match="data_fingerprint"):
        training.run(other, tmp_path)


def test_runs_are_recycled_reported_and_measured(cache, tmp_path):
    folders = [str(tmp_path / f"seed{seed}") for seed in range(2)]
    for seed, folder in enumerate(folders):
        training.run(Tiny(config(seed=seed)), folder, compiled=cache)
    options = evaluate.EvaluateOptions(
        runs=tuple(folders),
        out=str(tmp_path / "evaluated"),
        methods=parse_methods("uta:3 opa:3 omv:3 ema:0.9"),
    )
    results = perform(evaluate.declare(Tiny, options), options.out)
    assert len(results.lines) == 5
    values = [value for line in results.lines for value in results.values(line)]
    assert len(values) == 10 and min(values) > 0.5
    widths = uncertainty.compare(
        Tiny,
        uncertainty.UncertaintyConfig(
            runs=tuple(folders), out=str(tmp_path), sizes=(2,), examples=50
        ),
    )
    assert widths
    words = (tmp_path / "seed0" / "privacy_report.md").read_text()
    assert "example level, DP-SGD" in words
    assert "add or remove" in words
    page = report.write(Tiny, report.ReportConfig(run=folders[0], examples=50))
    assert "Example-level differential privacy" in page.read_text()


def plan_of(task):
    return build(task, Compiled()).plan


def test_epsilon_finds_noise_or_steps():
    # A small ε has a short grid.
    by_steps = Tiny(config(rounds=0, noise_multiplier=8.0, epsilon=0.5))
    steps = by_steps.config.rounds
    assert plan_of(by_steps).epsilon <= 0.5
    longer = Tiny(config(rounds=steps + 1, noise_multiplier=8.0))
    assert plan_of(longer).epsilon > 0.5
    by_noise = Tiny(config(rounds=10, noise_multiplier=None, epsilon=0.5))
    assert 0.495 < plan_of(by_noise).epsilon <= 0.5
    with pytest.raises(ValueError, match="above claimed_epsilon=1"):
        plan_of(Tiny(config(epsilon=1.0)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds or epsilon is needed beside noise_mul"),
        ({"noise_multiplier": None}, "epsilon or noise_multiplier"),
        ({"rounds": 0, "epsilon": 1.0, "pds": True}, "pds moves the batches"),
        (
            {"averager": "schedule_free", "momentum": 0.5, "step_from": "iterate"},
            "momentum=0; got",
        ),
    ],
)
def test_it_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_a_rate_falls_as_its_schedule_says():
    assert config(learning_rate=2.0).rate == 2.0
    falling = config(learning_rate=2.0, rate_schedule="cosine", rounds=8)
    assert falling.rate == Schedule(2.0, 8, "cosine")
    step = build(Tiny(falling), Compiled()).process.step
    theta = {"w": np.zeros(1, "f")}
    state, moved = step.init(theta), []
    for number in range(8):
        before = theta["w"][0]
        state, theta = step.next(state, theta, {"w": np.ones(1, "f")}, number)
        moved.append(before - theta["w"][0])
    np.testing.assert_allclose(moved, 1 + np.cos(np.pi * np.arange(8) / 8), rtol=1e-4)


def test_a_dry_run_draws_no_batch_of_the_run(tmp_path):
    found = estimate.estimate(Tiny(config()), str(tmp_path / "run"))
    assert found.disk.models == 1
    assert not (tmp_path / "run").exists()


def test_a_task_on_examples_has_nothing_that_it_would_have_to_refuse(tmp_path):
    task = Tiny(config())
    for name in ("client", "model", "dataset", "group", "group_size", "to_keras"):
        assert not hasattr(task, name)
    assert not isinstance(task, Exportable)
    training.run(task, tmp_path / "run")
    with pytest.raises(ValueError, match="no model in Keras' form"):
        wanted = export.ExportConfig(run=str(tmp_path / "run"), out=str(tmp_path))
        export.export(Tiny, wanted)
    with pytest.raises(ValueError, match="canaries take part in DP-FTRL rounds only"):
        audit.audit_run(Run.open(Tiny, tmp_path / "run"), audit.AuditConfig())


def test_data_are_opened_again_only_where_the_tasks_own_fields_differ():
    task = Tiny(config())
    task.fingerprint  # noqa: B018  Computed once for all of them.
    other = task.with_config(dataclasses.replace(task.config, clip_norm=0.5, seed=1))
    assert other.data is task.data and other.config.clip_norm == 0.5
    assert other.example_digests is task.example_digests
    fewer = task.with_config(dataclasses.replace(task.config, examples=20))
    assert fewer.population_size == 20 and fewer.fingerprint != task.fingerprint


@pytest.mark.parametrize("arm", ARMS, ids=["uta", "pds"])
def test_in_memory_it_is_the_run_that_would_be_saved(arm, cache, tmp_path):
    task = Tiny(config(**arm))
    training.run(task, tmp_path / "run", compiled=cache)
    store = checkpoints.CheckpointStore(tmp_path / "run" / "checkpoints")
    passed = list(rounds(build(task, cache)))
    assert [p.round for p in passed] == list(range(1, 13))
    for number, *both in passed:
        for name, weights in zip(series.NAMES, both, strict=True):
            saved = store.load(number, name)
            assert {k: v.tobytes() for k, v in saved.items()} == {
                k: v.tobytes() for k, v in weights.items()
            }

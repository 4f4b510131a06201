"""Sample-level tasks on the experiment layer: runs, resume, recycling, privacy."""

import json

import numpy as np
import pytest

from tests.experiment.tiny_samples import Tiny, config
from tff_agg import checkpoints
from tff_agg.experiment import dry_run
from tff_agg.experiment.commands import evaluate, report, train, uncertainty
from tff_agg.experiment.run import loop, recording
from tff_agg.recycling import inference


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
    train.run(task, tmp_path / "whole", cache=cache)
    for last in (1, 5, 11):
        with pytest.raises(KeyboardInterrupt):
            train.run(task, tmp_path / "killed", Stop(last), cache=cache)
    train.run(task, tmp_path / "killed", cache=cache)
    assert weights_of(tmp_path / "whole") == weights_of(tmp_path / "killed")
    for name in ("metrics.csv", "validation.csv", "test.csv"):
        whole, killed = (tmp_path / f / name for f in ("whole", "killed"))
        assert whole.read_text() == killed.read_text()


def test_a_secret_seed_draws_batches_and_noise_and_is_dropped(cache, tmp_path):
    task = Tiny(config())
    for name in ("first", "second"):
        train.run(task, tmp_path / name, cache=cache)
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
    process = task.build_process(task.build_plan())
    template = process.initialize(task.initial_weights())
    restored = store.load(12, "state")
    assert len(restored) == len(loop.stored_items(process, template)["state"])
    seeds = [x for x in restored if x.dtype == np.uint32]
    assert [x.tolist() for x in seeds] == [[0, 0, 0, 0]]


def test_other_data_are_refused(cache, tmp_path):
    task = Tiny(config(insecure_noise_seed=1))
    with pytest.raises(KeyboardInterrupt):
        train.run(task, tmp_path, Stop(3), cache=cache)
    other = Tiny(task.config)
    other._splits[0][0][5] += 1
    with pytest.raises(Exception, match="data_fingerprint"):
        train.run(other, tmp_path)


def test_runs_are_recycled_reported_and_measured(cache, tmp_path):
    folders = [str(tmp_path / f"seed{seed}") for seed in range(2)]
    for seed, folder in enumerate(folders):
        train.run(Tiny(config(seed=seed)), folder, cache=cache)
    rows = evaluate.evaluate_runs(
        Tiny,
        evaluate.EvaluateConfig(
            runs=tuple(folders),
            out=str(tmp_path),
            grid=inference.Grid(uta=(3,), outputs=(3,), ema=(0.9,)),
        ),
    )
    assert {row["method"] for row in rows} == {
        *("last", "UTA_inf", "EMA_inf", "EMA_baseline", "OPA", "OMV")
    }
    assert all(row["accuracy"] > 0.5 for row in rows)
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
    page = report.write(Tiny, report.ReportConfig(folders[0], examples=50))
    assert "Example-level differential privacy" in page.read_text()


def test_epsilon_finds_noise_or_steps():
    by_steps = Tiny(config(rounds=0, noise_multiplier=2.0, epsilon=3.0))
    steps = by_steps.config.rounds
    assert by_steps.build_plan().epsilon <= 3.0
    longer = Tiny(config(rounds=steps + 1, noise_multiplier=2.0))
    assert longer.build_plan().epsilon > 3.0
    by_noise = Tiny(config(rounds=40, noise_multiplier=None, epsilon=3.0))
    assert 2.97 < by_noise.build_plan().epsilon <= 3.0
    with pytest.raises(ValueError, match="above claimed_epsilon=1"):
        Tiny(config(epsilon=1.0)).build_plan()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds and epsilon are not given"),
        ({"noise_multiplier": None}, "noise_multiplier and epsilon are not given"),
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


def test_a_dry_run_draws_no_batch_of_the_run(tmp_path):
    found = dry_run.estimate(Tiny(config()), str(tmp_path / "run"))
    assert found.disk.models == 1
    assert not (tmp_path / "run").exists()


def test_what_is_for_users_says_so():
    task = Tiny(config())
    with pytest.raises(ValueError, match="DP-SGD on examples"):
        task.model()

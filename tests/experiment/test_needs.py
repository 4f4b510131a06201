"""What a run takes, before it begins: disk, time, users; what is kept by default."""

import dataclasses
import itertools

import numpy as np
import pytest
import tree

from pds import sampler
from tests.experiment import train_binary
from tff_agg import averaging, checkpoints
from tff_agg.experiment import terminal
from tff_agg.experiment.build import build, cohorts, dp_ftrl, needs
from tff_agg.experiment.config import TrainConfig
from tff_agg.experiment.run import estimate, run_folder
from tff_agg.experiment.run import run as training
from tff_agg.experiment.study import show

FULL_MODEL = 16_202_992  # bytes of θ with 10,000 words


def config_of(**changes):
    return TrainConfig(**({"noise_multiplier": 1.0} | changes))


@pytest.mark.parametrize(
    ("rounds", "last", "every"),
    [(30, 7, 5), (30, 7, 0), (30, 0, 0), (30, 0, 5), (30, 100, 5), (3, 1, 1)],
)
def test_the_rounds_foreseen_are_those_that_the_store_keeps(
    tmp_path, rounds, last, every
):
    config = config_of(rounds=rounds, keep_last=last, keep_every=every)
    store = checkpoints.CheckpointStore(tmp_path, **run_folder.retention(last, every))
    for number in range(rounds + 1):
        store.save(number, {"iterate": np.arange(3.0) + number})
    assert needs.kept_rounds(config) == store.rounds("iterate")


def test_the_defaults_keep_what_recycling_uses_in_a_fraction_of_the_room():
    config = config_of(rounds=2000)
    kept = needs.kept_rounds(config)
    assert set(range(1801, 2001)) <= set(kept)  # UTA, OPA and OMV up to k = 200
    assert set(range(0, 2001, 10)) <= set(kept)  # EMA and PDA reach back to the start
    everything = needs.kept_rounds(dataclasses.replace(config, keep_last=0))
    assert len(everything) == 2001 and len(kept) == 381
    assert 2 * len(kept) * FULL_MODEL < 13e9 < 60e9 < 2 * 2001 * FULL_MODEL


def test_short_runs_keep_everything():
    assert needs.kept_rounds(config_of(rounds=199)) == list(range(200))


def test_what_is_written_already_is_not_asked_of_the_disk_again(
    make_task, cache, tmp_path, monkeypatch
):
    """A disk on which a run just fits is large enough for it in its middle, too."""
    task, folder = make_task(), tmp_path / "run"
    built = build(task, cache)
    with built.running():
        before = needs.disk(built, folder)
        training.run(task, folder, compiled=cache)
        after = needs.disk(built, folder)
    assert before.there == 0 and before.left == before.total == after.total
    written = [p for p in (folder / "checkpoints").rglob("*") if p.is_file()]
    assert after.there == sum(p.stat().st_size for p in written) > before.total / 4
    just = before._replace(free=before.total)
    assert just.fits
    assert after._replace(free=before.total - after.there).fits
    assert not before._replace(free=before.total - 1).fits


def test_a_state_is_as_large_as_foreseen(make_task, cache, tmp_path):
    task = make_task()
    built = build(task, cache)
    with built.running():
        state = built.initialize()
        disk = needs.disk(built, tmp_path / "not" / "there")
    actual = sum(np.asarray(leaf).nbytes for leaf in tree.flatten(state))
    assert disk.state_bytes == actual
    assert (disk.rounds, disk.models, disk.free > 0) == (7, 2, True)
    assert disk.model_bytes == sum(w.nbytes for w in task.initial_weights().values())


def listing(folder):
    return sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))


def test_a_dry_run_measures_without_writing_or_the_runs_noise(
    make_task, tmp_path, monkeypatch
):
    task, seconds = make_task(evaluate_every=4), itertools.count()
    seeds, first_state = [], dp_ftrl.first_state

    def watched(process, weights, known_seed):
        seeds.append(known_seed)
        return first_state(process, weights, known_seed)

    monkeypatch.setattr(dp_ftrl, "first_state", watched)
    plans, before = [], listing(tmp_path)
    found = estimate.estimate(
        task,
        str(tmp_path / "run"),
        clock=lambda: next(seconds),
        on_plan=plans.append,
    )
    assert listing(tmp_path) == before
    assert seeds == [None], "the run's own seed was used"
    assert plans == [found.plan]
    assert found.plan.noise_stddev == task.config.build_plan().noise_stddev > 0
    assert (found.done, found.first_round, found.later_round) == (0, 1, 1)
    # Rounds 4 and 6 validate θ and θ^AGG.
    assert (found.validations, found.validation) == (2, 2)
    assert found.seconds == 6 + 2 * 2
    text = show.render(show.Table(["dry run", ""], found.lines()))
    assert "6 to do, 0 done" in text and "10 s: a round 1.00 s" in text
    assert max(map(len, text.splitlines())) <= show.WIDTH


def test_a_dry_run_shows_the_plan_and_then_that_users_are_too_few(make_task, tmp_path):
    task, plans = make_task(rounds=500, participation="at_most_once"), []
    with pytest.raises(sampler.ExhaustedError, match="users"):
        estimate.estimate(task, str(tmp_path / "run"), on_plan=plans.append)
    (plan,) = plans
    assert plan.rounds == 500 and list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_what_is_done(make_task, cache, tmp_path, monkeypatch):
    # Measuring, which compiles all anew, is the test above's.
    monkeypatch.setattr(estimate, "time_rounds", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(estimate, "_time_validation", lambda *_: 0.0)
    task = make_task()
    training.run(task, tmp_path / "run", compiled=cache)
    found = estimate.estimate(task, str(tmp_path / "run"))
    assert (found.done, found.validations, found.seconds) == (6, 0, 0)


def test_the_plan_fits_on_a_terminal(make_config):
    plan = make_config().build_plan()
    shown = terminal.plan_table(plan)
    assert max(map(len, shown.splitlines())) <= show.WIDTH
    assert len(plan.adjacency) > show.WIDTH
    assert " ".join(plan.adjacency.split()) in " ".join(shown.split())


@pytest.mark.slow
def test_the_binary_shows_it_and_leaves_no_folder(token_store, tmp_path):
    done = train_binary.run_forked(token_store, tmp_path / "run", "--dry_run")
    assert done.returncode == 0, done.stderr
    assert "ε at δ" in done.stdout and "rounds with too few users" in done.stdout
    assert "--embedding_size=96 --lstm_size=192" in " ".join(done.stdout.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "or --on_exhausted=smaller_cohort"),
        ({"pds": True, "pds_period": 4}, "or --on_exhausted=fill_from_other, or"),
    ],
)
def test_too_few_users_are_told_in_terms_of_the_flags(make_task, changes, words):
    task = make_task(rounds=500, participation="at_most_once", **changes)
    with pytest.raises(sampler.ExhaustedError) as caught:
        cohorts.build_sampler(task)
    text = str(caught.value)
    assert "--rounds=500 with --clients_per_round=4" in text and words in text
    # Rounds count from 1, as in every table; the names of the library stay inside.
    assert f"round {caught.value.shortage.round + 1} finds" in text
    for name in ("when_exhausted", "AtMostOnce", "cohort_size"):
        assert name not in text


def test_the_error_names_the_most_that_would_fit(make_task):
    task = make_task(rounds=60, participation="at_most_once")
    users = task.population_size
    with pytest.raises(sampler.ExhaustedError) as caught:
        cohorts.build_sampler(task)
    text = str(caught.value)
    most = {"rounds": users // 4, "clients_per_round": users // 60}
    most["min_separation"] = users // 4
    for name, value in most.items():
        assert f"--{name} of at most {value}" in text
        rest = {} if name == "min_separation" else {"participation": "at_most_once"}
        cohorts.build_sampler(make_task(**({"rounds": 60} | rest | {name: value})))
        with pytest.raises(sampler.ExhaustedError):
            more = {name: value + 1}
            cohorts.build_sampler(make_task(**({"rounds": 60} | rest | more)))


def test_a_moving_average_over_what_is_kept_is_the_one_over_all_rounds():
    """Up to a decay of 0.95, as docs/files.md says."""
    kept = needs.kept_rounds(config_of(rounds=2000))
    average = averaging.ema(decay=0.95, warm_up=True)
    thinned = np.zeros(2001)
    thinned[kept] = average.weights(len(kept) - 1)
    difference = np.abs(thinned - average.weights(2000)).sum()
    assert 0 < difference <= 2 * 0.95**200

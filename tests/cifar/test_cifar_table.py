"""The table's runs side by side, what its arms may choose from and do choose."""

import json
import pathlib

import numpy as np
import pytest
from absl import flags

from benchmarks import cifar10_reduced, cifar_lanes, cifar_table, cifar_uncertainty
from benchmarks import cifar_arms as arms
from cifar.task import Cifar, CifarConfig
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.recycling import inference

CONFIGS = pathlib.Path(cifar_table.__file__).parent.parent / "cifar" / "configs"
PLAIN, AVERAGED = arms.plain(1.0), arms.uta(1.0, 3, 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lanes")
    changes = {"synthetic": True, "batch_size": 256, "rounds": 8, "pds_period": 4}
    changes |= {"noise_multiplier": 0.5}
    config = arms.base("eps1", arms.SHIFT, "", seed=3) | changes
    made = cifar_lanes.Bundle(CifarConfig(**config), [PLAIN, AVERAGED], folder)
    grid = inference.Grid(uta=(2, 3), outputs=(2,), ema=(0.5,))
    wanted = cifar_lanes.Wanted(
        grid, ("test",), curve=(4, 8), curve_k=2, checkpoints=(2, *range(4, 9))
    )
    made.run(wanted, lambda text: None)
    return made, wanted


def accuracy(weights):
    task = Cifar(
        CifarConfig(dataset="cifar100", synthetic=True, rounds=1, noise_multiplier=1.0)
    )
    rows = task.flat_sample(task.fixed_sample("test", 1 << 30))
    found = task.predictor()(weights, rows)
    return np.mean(found.scores.argmax(axis=1) == found.targets)


def mean(checkpoints, steps):
    names = checkpoints[steps[0]]
    return {n: np.mean([checkpoints[s][n] for s in steps], axis=0) for n in names}


def test_a_run_is_judged_by_its_own_checkpoints(bundle):
    made, _ = bundle
    plain = made.checkpoints(PLAIN)
    assert sorted(plain) == [2, 4, 5, 6, 7, 8]
    scores = made.scores(PLAIN)["scores"]["test"]
    assert scores["trained"] == scores["last"] == accuracy(plain[8])
    assert scores["UTA_inf 3"] == accuracy(mean(plain, [6, 7, 8]))
    averaged = made.checkpoints(AVERAGED)
    scores = made.scores(AVERAGED)["scores"]["test"]
    assert scores["last"] == accuracy(averaged[8])
    # From the aggregate: the mean of the last three iterates.
    assert scores["trained"] == accuracy(mean(averaged, [6, 7, 8]))
    # The same run until the average is used; another one from there.
    np.testing.assert_array_equal(plain[5]["kernel"], averaged[5]["kernel"])
    assert np.abs(plain[6]["kernel"] - averaged[6]["kernel"]).max() > 1e-4
    assert [point[0] for point in made.scores(PLAIN)["curve"]] == [4, 8]


def test_what_is_there_is_not_computed_again(bundle, monkeypatch):
    made, wanted = bundle
    monkeypatch.setattr(cifar_lanes, "Lockstep", None)
    made.run(wanted)
    made.path(PLAIN).rename(made.path(PLAIN).with_suffix(".away"))
    with pytest.raises(TypeError):
        made.run(wanted)
    made.path(PLAIN).with_suffix(".away").rename(made.path(PLAIN))


def row(name):
    (config,) = flag_fields.parse([f"--flagfile={CONFIGS / name}.cfg"], CifarConfig)
    return config


@pytest.mark.parametrize("task", [arms.ORIGINAL, arms.SHIFT])
@pytest.mark.parametrize("level", arms.LEVELS)
def test_arms_choose_from_as_many_and_the_papers_is_the_first(level, task):
    several = arms.CANDIDATES[level, task]
    assert len({len(candidates) for candidates in several.values()}) == 1
    prefix = "c100_pds" if task == arms.SHIFT else "c100"
    for arm, name in (
        (arms.BASELINE, "baseline"),
        (arms.EMA, "ema"),
        (arms.UTA, "uta"),
    ):
        names = [cifar_lanes.name_of(one) for one in several[arm]]
        assert len(set(names)) == len(names)
        ours = CifarConfig(**arms.base(level, task, "", 0) | several[arm][0])
        wanted = row(f"{prefix}_{name}_{level}")
        for field in ("learning_rate", "averager", "k", "ema_decay", "start_round"):
            assert getattr(ours, field) == getattr(wanted, field), (arm, field)
        for field in ("rounds", "noise_multiplier", "batch_size", "clip_norm", "pds"):
            assert getattr(ours, field) == getattr(wanted, field), (arm, field)


def test_last_and_recycled_have_a_choice_each():
    def scores(trained, mean_of_5, mean_of_20):
        rest = {"EMA_inf 0.9": 0.1, "OPA 5": 0.1, "OPA 20": 0.2, "OMV 5": 0.1}
        tail = {"UTA_inf 5": mean_of_5, "UTA_inf 20": mean_of_20}
        return {"trained": trained, "last": trained, **tail, **rest}

    found = [
        (arms.plain(1.0), scores(0.5, 0.5, 0.4)),
        (arms.plain(4.0), scores(0.4, 0.5, 0.6)),
    ]
    last = cifar_table.choose(found, cifar_table.TRAINED)
    recycled = cifar_table.choose(found, arms.RECYCLED)
    assert last.settings == arms.plain(1.0)
    assert last.parameters["UTA_inf"] == 5
    assert recycled.settings == arms.plain(4.0)
    assert recycled.parameters["UTA_inf"] == 20
    assert recycled.parameters["OPA"] == 20
    # Of equals the same one in any order.
    tie = {"EMA_inf 0.8": 0.5, "EMA_inf 0.6": 0.5, "EMA_inf 0.95": 0.5}
    turned = dict(reversed(tie.items()))
    best = cifar_table.best_parameter(tie, "EMA_inf")
    assert best == cifar_table.best_parameter(turned, "EMA_inf")


def test_gains_are_those_on_the_last_iterate_of_the_same_seeds():
    def line(by):
        values = [[v + by for v in (0.40, 0.50, 0.60)] for _ in cifar_table.COLUMNS]
        cells = zip(cifar_table.COLUMNS, values, strict=True)
        made = {c: {"parameter": None, "test": found} for c, found in cells}
        return {"settings": arms.plain(1.0), "cells": made}

    lines = {f"{arms.BASELINE}, last": line(0.0), arms.UTA: line(0.02)}
    # Seed by seed it is clear, whatever the spread over seeds.
    assert "+2.00 ± 0.00*" in cifar_table.gains(lines)
    assert "52.00 ± 10.00" in cifar_table.table(lines)


def test_checkpoints_that_vary_like_runs_have_a_ratio_of_one():
    generator = np.random.default_rng(0)
    centre = generator.dirichlet(np.ones(4), size=200)
    separations, last = (1, 10), 50

    def run():
        # A walk: ten steps apart is √10 times as far as one.
        noise = 0.001 * generator.standard_normal((last + 1, 200, 4)).cumsum(axis=0)
        # Far apart from other runs by ten times a single step.
        start = 0.01 * generator.standard_normal((200, 4))
        return {step: centre + start + noise[step] for step in range(last + 1)}

    found = cifar_uncertainty.of_scores([run() for _ in range(5)], last, separations)
    assert found["sizes"] == [2, 3, 4, 5]
    assert found["ratio"][1][0] > 2 * found["ratio"][10][0] > 2
    independent = [
        {s: centre + 0.01 * generator.standard_normal((200, 4)) for s in range(51)}
        for _ in range(5)
    ]
    found = cifar_uncertainty.of_scores(independent, last, [1])
    np.testing.assert_allclose(found["ratio"][1], 1, atol=0.2)


def test_a_walk_is_told_from_what_is_pulled_back():
    generator = np.random.default_rng(0)
    steps = 0.1 * generator.standard_normal((50, 2000))
    free, pulled = {0: {"w": np.zeros(2000)}}, {0: {"w": np.zeros(2000)}}
    for number, step in enumerate(steps, 1):
        free[number] = {"w": free[number - 1]["w"] + step}
        pulled[number] = {"w": 0.5 * pulled[number - 1]["w"] + step}
    found = cifar_uncertainty.walk(free, 0.01)
    np.testing.assert_allclose([found[1], found[49]], 1, atol=0.15)
    assert cifar_uncertainty.walk(pulled, 0.01)[49] < 0.1
    level = arms.Level(10, 3.0, (), ())
    assert level.step_variance(2.0) == pytest.approx((6 / arms.BATCH) ** 2)


@pytest.mark.parametrize("task", [arms.ORIGINAL, arms.SHIFT])
def test_the_small_runs_have_the_papers_averages(task):
    prefix = "c10_pds" if task == arms.SHIFT else "c10"
    several = arms.CANDIDATES[arms.REDUCED, task]
    rates = {arm: {one["learning_rate"] for one in several[arm]} for arm in several}
    assert len({frozenset(found) for found in rates.values()}) == 1
    for arm, name in (
        (arms.BASELINE, "baseline"),
        (arms.EMA, "ema"),
        (arms.UTA, "uta"),
    ):
        # The paper's rate comes first.
        config = arms.base(arms.REDUCED, task, "", seed=7) | dict(several[arm][0])
        ours, wanted = CifarConfig(**config), row(f"{prefix}_{name}_eps8")
        for field in ("learning_rate", "averager", "k", "ema_decay", "pds"):
            assert getattr(ours, field) == getattr(wanted, field), (arm, field)
        assert (ours.seed, ours.insecure_noise_seed, ours.epsilon) == (7, 7, 8.0)


def test_a_level_whose_candidates_have_not_been_run_has_no_seeds(tmp_path):
    study = cifar_table.Study(tmp_path, "", seeds=[0])
    assert not study.is_tuned("eps8", arms.ORIGINAL)
    assert study.done("eps8", arms.ORIGINAL) == []


def test_the_small_table_is_printed_from_what_is_there(tmp_path, capsys):
    grid = arms.ALL_LEVELS[arms.REDUCED].grid
    scores = {cifar_lanes.key_of(*method): 0.3 for method in grid.methods()}
    scores |= {"trained": 0.3, "last": 0.3}
    folder = tmp_path / f"{arms.REDUCED}_{arms.ORIGINAL}"
    for several in arms.CANDIDATES[arms.REDUCED, arms.ORIGINAL].values():
        for one in several:
            # Rate 2 is the best one on validation data.
            better = 0.1 * (one["learning_rate"] == 2.0)
            found = {key: value + better for key, value in scores.items()}
            for seed in (cifar_table.TUNING_SEED, 0, 1):
                path = folder / f"{cifar_lanes.name_of(one)}-seed{seed}.json"
                path.parent.mkdir(exist_ok=True)
                both = {"heldout": found, "test": found}
                path.write_text(json.dumps({"scores": both}))
    values = flags.FlagValues()
    cifar10_reduced.define_flags(values)
    values(["", f"--out={tmp_path}", "--seeds=2", f"--tasks={arms.ORIGINAL}"])
    assert cifar10_reduced.main(values) == 0
    printed = capsys.readouterr().out
    assert "η=2 k=2 τ=40" in printed
    assert "40.00 ± 0.00" in printed
    assert "+0.00 ± 0.00" in printed
    lines = json.loads((tmp_path / "table.json").read_text())[arms.ORIGINAL]
    assert len(lines) == 4

"""A configuration is complete, frozen and refuses what cannot be meant."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from stackoverflow import config as configs

CONFIGS = sorted(pathlib.Path(configs.__file__).parent.glob("configs/*.cfg"))


def make(**changes):
    return configs.TrainConfig(**({"noise_multiplier": 0.5} | changes))


def test_it_survives_json():
    config = make(averager="uta", k=5)
    assert configs.TrainConfig(**json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "last"),
        ({"averager": "uta", "k": 5}, "uta(k=5)"),
        (
            {"averager": "ema", "ema_weight": 0.5, "ema_warm_up": False},
            "ema(weight=0.5)",
        ),
        ({"averager": "ema", "ema_decay": 0.9}, "ema(decay=0.9, warm_up)"),
        ({"averager": "pda", "gamma": 2.0}, "pda(gamma=2)"),
        (
            {
                "averager": "schedule_free",
                "beta": 0.8,
                "gamma": 2.0,
                "step_from": "iterate",
                "server_momentum": 0.0,
            },
            "schedule_free(beta=0.8, gamma=2)",
        ),
        ({"averager": "uta", "start_round": 7}, "uta(k=3) from step 7"),
    ],
)
def test_it_builds_the_averager(changes, name):
    assert make(**changes).build_averager().name == name


@pytest.mark.parametrize("mechanism", configs.MECHANISMS)
def test_it_builds_a_plan_with_every_mechanism(mechanism):
    config = make(mechanism=mechanism, rounds=24, bands=4, buffers=2)
    plan = config.build_plan()
    assert plan.rho == pytest.approx(2.0)
    assert plan.noise_stddev > 0


def test_epsilon_becomes_noise():
    config = make(noise_multiplier=None, epsilon=8.0, rounds=24)
    plan = config.build_plan()
    assert plan.epsilon == pytest.approx(8.0, rel=1e-4)


def test_restarts_cost_noise():
    once = make(rounds=64).build_plan()
    often = make(rounds=64, restart_every=16).build_plan()
    assert often.mechanism.name != once.mechanism.name
    assert often.rho == once.rho


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": None}, "exactly one of noise_multiplier and epsilon"),
        ({"epsilon": 1.0}, "exactly one of noise_multiplier and epsilon"),
        ({"averager": "mean"}, "averager must be one of last, uta, ema, pda"),
        ({"averager": "ema"}, "exactly one of ema_weight"),
        (
            {"averager": "schedule_free", "step_from": "iterate"},
            "step_from=iterate and server_momentum=0; got step_from=iterate and "
            "server_momentum=0.95",
        ),
        (
            {"averager": "schedule_free", "server_momentum": 0.0},
            "got step_from=aggregate",
        ),
        ({"beta": 1.5}, "beta must be at most 1; got 1.5"),
        ({"rounds": 0}, "rounds must be at least 1; got 0"),
        ({"clip_norm": float("nan")}, "clip_norm must not be negative; got nan"),
        ({"noise_multiplier": -0.1}, "noise_multiplier must not be negative"),
        ({"max_participations": 3}, "max_participations=3 needs min_separation"),
        ({"keep_last": 0}, "keep_last must be at least 1"),
    ],
)
def test_it_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_users_of_small_models_are_grouped():
    assert make().group_size(configs.GROUP_PARAMETERS) == configs.GROUP_USERS
    assert make().group_size(configs.GROUP_PARAMETERS + 1) == 1
    assert make(group_users=7).group_size(10**9) == 7
    with pytest.raises(ValueError, match="group_users must be at least 1; got 0"):
        make(group_users=0)


def test_a_change_is_told_field_by_field():
    one = make().to_json()
    other = make(k=9, server_momentum=0.5).to_json()
    assert configs.differences(one, one) == []
    assert configs.differences(one, other) == [
        "k: was 3, is now 9",
        "server_momentum: was 0.95, is now 0.5",
    ]


def test_every_row_of_the_tables_has_a_flag_file():
    names = {path.stem for path in CONFIGS}
    assert names == {
        f"{task}_{method}_{privacy}"
        for task in ("so", "pds")
        for method in ("baseline", "uta", "ema")
        for privacy in ("inf", "eps18.9", "eps8.2")
    }


def test_flag_files_give_valid_configurations():
    """All of them in one fresh interpreter, through the binary's own flags."""
    program = """
import sys
from absl import flags
from stackoverflow import train, config as configs
import dataclasses, json
found = {}
for path in sys.argv[1:]:
    values = flags.FlagValues()
    train.define_config_flags(values)
    values(["x", "--flagfile=" + path])
    found[path] = {
        f.name: getattr(values, f.name) for f in dataclasses.fields(configs.TrainConfig)
    }
    configs.TrainConfig(**found[path])
print(json.dumps(found))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, *map(str, CONFIGS)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    found = {pathlib.Path(k).stem: v for k, v in json.loads(run.stdout).items()}
    assert found["so_uta_eps8.2"]["noise_multiplier"] == 0.682
    assert found["so_uta_eps8.2"]["clip_norm"] == 0.3
    assert found["pds_uta_eps18.9"]["k"] == 5 and found["pds_uta_eps18.9"]["pds"]
    assert found["so_ema_inf"]["ema_decay"] == 0.95


def test_every_field_says_what_it_is():
    for field in dataclasses.fields(configs.TrainConfig):
        assert field.metadata["help"]

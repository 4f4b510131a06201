"""A configuration is complete, frozen and refuses what cannot be meant."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

import stackoverflow
from tff_agg.experiment import config as configs
from tff_agg.privacy import recipe

CONFIGS = sorted(pathlib.Path(stackoverflow.__file__).parent.glob("configs/*.cfg"))


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
        ({"averager": "uta", "start_round": 7}, "uta(k=3) from step 7"),
    ],
)
def test_it_builds_the_averager(changes, name):
    assert make(**changes).build_averager().name == name


@pytest.mark.parametrize("mechanism", recipe.MECHANISMS)
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
        ({"noise_multiplier": None}, "exactly one of noise_multiplier, .*got none"),
        ({"epsilon": 1.0}, "exactly one of .*noise_multiplier=0.5, epsilon=1.0"),
        ({"averager": "mean"}, "averager must be one of last, uta, ema, pda"),
        ({"averager": "ema"}, "exactly one of ema_weight"),
        ({"rounds": 0}, "rounds must be at least 1; got 0"),
        ({"clip_norm": float("nan")}, "clip_norm must not be negative; got nan"),
        ({"noise_multiplier": -0.1}, "noise_multiplier must not be negative"),
        ({"max_participations": 3}, "max_participations=3 needs participation="),
        ({"delta": 1.0}, "delta must be strictly between 0 and 1, got 1.0"),
        ({"delta": 0.0}, "delta must be strictly between 0 and 1, got 0.0"),
        ({"server_momentum": 1.5}, "server_momentum must be below 1; got 1.5"),
        ({"keep_last": 0}, "keep_last must be at least 1"),
    ],
)
def test_it_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_change_is_told_field_by_field():
    one = make().to_json()
    other = make(k=9, server_momentum=0.5).to_json()
    assert configs.differences(one, one) == []
    assert configs.differences(one, other) == [
        "k: was 3, is now 9",
        "server_momentum: was 0.95, is now 0.5",
    ]


# What runs were saved with before some fields were added.
ADDED_LATER = ("participation", "epoch_length", "per_node_multiplier", "completion")


def test_a_configuration_from_before_a_field_was_added_is_read():
    config = make(min_separation=5, max_participations=2, rounds=24)
    old = {k: v for k, v in config.to_json().items() if k not in ADDED_LATER}
    saved = old | {"store_fingerprint": "1234"}
    assert configs.TrainConfig.from_json(saved) == config
    # Runs from before and after are of one kind.
    assert configs.with_defaults(saved) | {"store": ""} == (
        config.to_json() | {"store_fingerprint": "1234"}
    )
    # Such a run goes on: what it did is what the defaults of the new fields mean.
    assert configs.differences(old, config.to_json()) == []
    changed = make(epoch_length=8, min_separation=None, max_participations=2, rounds=24)
    assert configs.differences(old, changed.to_json()) == [
        "epoch_length: was None, is now 8",
        "min_separation: was 5, is now None",
    ]


def test_a_configuration_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match="not known here: warp_factor"):
        configs.TrainConfig.from_json(make().to_json() | {"warp_factor": 9})


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
from stackoverflow import train
from tff_agg.experiment import config as configs
from tff_agg.experiment import flag_fields
import json
found = {}
for path in sys.argv[1:]:
    values = flags.FlagValues()
    train.define_config_flags(values)
    values(["x", "--flagfile=" + path])
    found[path] = flag_fields.read(configs.TrainConfig, values)
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

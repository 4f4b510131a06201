"""The account command: figures for people and machines, without TensorFlow."""

import json
import math
import subprocess
import sys

import pytest
from absl.flags import UnrecognizedFlagError

from tff_agg import account
from tff_agg.experiment.commands import flags


def run(tmp_path, **given):
    """Returns what the command would print for these flags."""
    arguments = [f"--{name}={value}" for name, value in given.items()]
    arguments.append(f"--noise_cache={tmp_path}")
    return account.answer(*flags.parse(arguments, account.AccountOptions))


@pytest.mark.parametrize("mechanism", ["identity", "tree", "honaker", "blt", "banded"])
def test_every_mechanism_gives_the_same_rho(tmp_path, mechanism):
    out = run(tmp_path, mechanism=mechanism, noise_multiplier=0.341, json=True)
    got = json.loads(out)
    assert got["rho"] == pytest.approx(4.30, abs=0.005)
    assert got["epsilon"] == pytest.approx(17.65, abs=0.01)
    assert got["delta"] == 1e-6 and got["noise_multiplier"] == 0.341
    assert got["sensitivity"] >= 1
    assert got["participation"] == {"schema": "at_most_once"}


def test_epsilon_gives_the_noise(tmp_path):
    out = run(
        tmp_path,
        mechanism="square_root",
        epsilon=8.2,
        rounds=2000,
        min_separation=342,
        max_participations=6,
        bands=200,
        json=True,
    )
    got = json.loads(out)
    assert got["epsilon"] == pytest.approx(8.2, abs=1e-5)
    one = run(
        tmp_path,
        mechanism="square_root",
        epsilon=8.2,
        bands=200,
        rounds=2000,
        json=True,
    )
    ratio = got["sensitivity"] / json.loads(one)["sensitivity"]
    assert ratio == pytest.approx(math.sqrt(6))


def test_table_shows_both_readings(tmp_path):
    out = run(tmp_path, mechanism="tree", noise_multiplier=0.341, rounds=2000)
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line)
    assert lines["rho"].startswith("4.29993")
    assert lines["rho_if_read_as_per_node_multiplier"].startswith("47.29")
    out = run(
        tmp_path, mechanism="tree", per_node_multiplier=0.341, rounds=2000, json=True
    )
    assert json.loads(out)["rho"] == pytest.approx(47.3, abs=0.05)


def test_fixed_order_and_restart(tmp_path):
    out = run(
        tmp_path,
        mechanism="honaker",
        rounds=40,
        restart_every=10,
        completion=True,
        epoch_length=10,
        noise_multiplier=1.0,
        json=True,
    )
    got = json.loads(out)
    assert got["sensitivity"] > 2
    assert got["participation"]["schema"] == "fixed_epoch_order"


SGD = {
    "mechanism": "dp_sgd",
    "batch_size": 50,
    "population": 1000,
    "delta": 1e-5,
    "json": True,
}


def test_dp_sgd_takes_two_of_noise_epsilon_and_steps(tmp_path):
    forward = json.loads(run(tmp_path, rounds=100, noise_multiplier=2.0, **SGD))
    conversions = forward["epsilon_by_conversion"]
    assert 0 < forward["epsilon"] == conversions["tight"] < conversions["rdp"]
    assert forward["sampling_probability"] == 0.05
    noise = json.loads(run(tmp_path, rounds=100, epsilon=forward["epsilon"], **SGD))
    assert noise["noise_multiplier"] == pytest.approx(2.0, abs=1e-5)
    asked = forward["epsilon"] + 1e-9
    steps = json.loads(run(tmp_path, noise_multiplier=2.0, epsilon=asked, **SGD))
    assert steps["rounds"] == 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "exactly one of"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "delta": 1.0}, "delta must be strictly"),
        ({"noise_multiplier": 1.0, "delta": 0.0}, "delta must be strictly"),
        ({"epsilon": -3.0}, "epsilon"),
        ({"noise_multiplier": 1.0, "max_participations": 3}, "needs participation="),
        ({"per_node_multiplier": 1.0, "mechanism": "blt", "rounds": 9}, "tree"),
        ({"noise_multiplier": 1.0, "batch_size": 3}, "needs mechanism=dp_sgd"),
        (
            {"noise_multiplier": 1.0, "min_separation": 500, "max_participations": 6},
            "do not fit into rounds=1000",
        ),
        ({"noise_multiplier": 1.0, "mechanism": "dp_sgd"}, "needs batch_size"),
        ({**SGD}, "needs noise_multiplier or epsilon"),
        ({**SGD, "delta": 1.0, "noise_multiplier": 1.0}, "delta must be strictly"),
        ({**SGD, "noise_multiplier": 1.0, "min_separation": 3}, "no min_separation"),
        ({**SGD, "per_node_multiplier": 1.0}, "takes no per_node_multiplier"),
        (
            {**SGD, "noise_multiplier": 1.0, "epsilon": 1.0, "rounds": 5},
            "one too many",
        ),
        ({**SGD, "noise_multiplier": 2.0, "epsilon": 1e-3}, "allows no step"),
    ],
)
def test_bad_flags_are_named(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **given)


@pytest.mark.parametrize(
    "name", ["separation", "cohort_size", "momentum_decay", "cache"]
)
def test_there_is_one_set_of_flags(tmp_path, name):
    with pytest.raises(UnrecognizedFlagError):
        run(tmp_path, noise_multiplier=1.0, **{name: 3})


def command(*arguments):
    """Runs the command as a program, as a user would."""
    code = (
        "import sys\n"
        "from tff_agg import __main__\n"
        "sys.argv.insert(1, 'account')\n"
        "try:\n"
        "    __main__.main()\n"
        "finally:\n"
        "    heavy = {'tensorflow', 'tensorflow_privacy', 'jax'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_program_needs_neither_tensorflow_nor_jax(tmp_path):
    done = command(
        "--noise_multiplier=0.5", "--rounds=50", "--json", f"--noise_cache={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rho"] == pytest.approx(2.0)


def test_the_program_warns_of_a_delta_of_one_user_on_stderr():
    given = ("--mechanism=tree", "--noise_multiplier=2", "--delta=0.5", "--json")
    done = command(*given, "--population=1000")
    assert done.returncode == 0 and json.loads(done.stdout)["delta"] == 0.5
    assert done.stderr.startswith("warning: delta=0.5 is not below 1/1000")
    least = command(*given, "--clients_per_round=50").stderr
    assert least.startswith("warning: delta=0.5 is not below 1/50 ")
    assert not command(*given, "--delta=1e-6").stderr


def test_the_program_names_what_is_wrong_on_stderr():
    done = command("--mechanism=tree", "--noise_multiplier=-2")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("\nerror: noise_multiplier must be at least 0")

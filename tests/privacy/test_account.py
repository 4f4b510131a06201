"""The account command: figures for people and machines, without TensorFlow."""

import json
import math
import subprocess
import sys

import pytest
from absl.testing import flagsaver

from tff_agg import account


def run(capsys, tmp_path, **flags):
    """Runs the command's main in this process and returns what it printed."""
    with flagsaver.flagsaver(cache=str(tmp_path), **flags):
        account.main(["account"])
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def parsed():
    if not account.flags.FLAGS.is_parsed():
        account.flags.FLAGS(["account"])


@pytest.mark.parametrize("mechanism", ["identity", "tree", "honaker", "blt", "banded"])
def test_every_mechanism_gives_the_same_rho(capsys, tmp_path, mechanism):
    out = run(capsys, tmp_path, mechanism=mechanism, noise_multiplier=0.341, json=True)
    got = json.loads(out)
    assert got["rho"] == pytest.approx(4.30, abs=0.005)
    assert got["epsilon"] == pytest.approx(17.65, abs=0.01)
    assert got["delta"] == 1e-6 and got["noise_multiplier"] == 0.341
    assert got["sensitivity"] >= 1
    assert got["participation"] == {"schema": "at_most_once"}


def test_epsilon_gives_the_noise(capsys, tmp_path):
    out = run(
        capsys,
        tmp_path,
        mechanism="square_root",
        epsilon=8.2,
        participation="min_separation",
        separation=342,
        max_participations=6,
        bands=200,
        json=True,
    )
    got = json.loads(out)
    assert got["epsilon"] == pytest.approx(8.2, abs=1e-5)
    one = run(
        capsys, tmp_path, mechanism="square_root", epsilon=8.2, bands=200, json=True
    )
    ratio = got["sensitivity"] / json.loads(one)["sensitivity"]
    assert ratio == pytest.approx(math.sqrt(6))


def test_table_shows_both_readings(capsys, tmp_path):
    out = run(capsys, tmp_path, mechanism="tree", noise_multiplier=0.341)
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line)
    assert lines["rho"].startswith("4.29993")
    assert lines["rho_if_read_as_per_node_multiplier"].startswith("47.29")
    out = run(capsys, tmp_path, mechanism="tree", per_node_multiplier=0.341, json=True)
    assert json.loads(out)["rho"] == pytest.approx(47.3, abs=0.05)


def test_fixed_order_restart_and_dp_sgd(capsys, tmp_path):
    out = run(
        capsys,
        tmp_path,
        mechanism="honaker",
        rounds=40,
        restart_every=10,
        completion=True,
        participation="fixed_epoch_order",
        epoch_length=10,
        noise_multiplier=1.0,
        json=True,
    )
    assert json.loads(out)["sensitivity"] > 2
    out = run(
        capsys,
        tmp_path,
        mechanism="dp_sgd",
        rounds=100,
        sampling_probability=0.05,
        noise_multiplier=2.0,
        delta=1e-5,
        json=True,
    )
    got = json.loads(out)
    conversions = got["epsilon_by_conversion"]
    assert 0 < got["epsilon"] == conversions["pld"] < conversions["rdp"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "exactly one of"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "exactly one of"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "delta": 1.0}, "delta"),
        ({"epsilon": -3.0}, "epsilon"),
        ({"noise_multiplier": 1.0, "separation": 3}, "--participation"),
        ({"noise_multiplier": 1.0, "max_participations": 3}, "contradicts"),
        ({"noise_multiplier": 1.0, "participation": "min_separation"}, "--separation"),
        ({"noise_multiplier": 1.0, "mechanism": "dp_sgd"}, "--sampling_probability"),
        ({"per_node_multiplier": 1.0, "mechanism": "blt", "rounds": 9}, "tree"),
        (
            {
                "noise_multiplier": 1.0,
                "participation": "min_separation",
                "separation": 500,
                "max_participations": 6,
            },
            "do not fit into rounds=2000",
        ),
    ],
)
def test_bad_flags_are_named(capsys, tmp_path, flags, message):
    with pytest.raises(SystemExit) as stop:
        run(capsys, tmp_path, **flags)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_needs_neither_tensorflow_nor_jax(tmp_path):
    code = (
        "import sys\n"
        "from tff_agg import account\n"
        "from absl import flags\n"
        "flags.FLAGS(['account', '--noise_multiplier=0.5', '--rounds=50', '--json',"
        f" '--cache={tmp_path}'])\n"
        "account.main(['account'])\n"
        "heavy = {'tensorflow', 'tensorflow_federated', 'jax', 'tensorflow_privacy'}\n"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules)"
        " else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rho"] == pytest.approx(2.0)

"""Processes compute what they always computed: see `trajectories.py`."""

import functools
import json
import pathlib

import numpy as np
import pytest

from tests.golden import trajectories
from tff_agg import runtime


@pytest.fixture(autouse=True, scope="module")
def _local_runtime():
    with runtime.running_on("local", lanes=1):
        yield


@functools.cache
def golden():
    path = pathlib.Path(__file__).with_name("trajectories.json")
    return json.loads(path.read_text("utf-8"))


def compare(found, wanted):
    """Bit by bit on the type of processor they were recorded on."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one["metrics"].keys() == other["metrics"].keys()
        for name, value in other.items():
            ours = one[name]
            if name == "metrics":
                value = list(value.values())
                ours = [ours[key] for key in other[name]]
            np.testing.assert_allclose(ours, value, rtol=1e-6, atol=1e-6)
            if golden()["cpu"] == trajectories.cpu():
                assert np.array_equal(ours, value), f"{name}: {ours} are not {value}"


@pytest.mark.parametrize("case", trajectories.process_cases(), ids=trajectories.name_of)
def test_rounds_of_a_process(case):
    wanted = golden()["process"][trajectories.name_of(case)]
    compare(trajectories.of_process(case), wanted)


def test_rounds_in_groups():
    compare(trajectories.of_groups(), golden()["groups"])


@pytest.mark.parametrize("case", trajectories.sample_cases(), ids=trajectories.name_of)
def test_steps_on_samples(case):
    wanted = golden()["samples"][trajectories.name_of(case)]
    compare(trajectories.of_samples(case), wanted)


def test_groups_are_formed_alike():
    assert trajectories.of_grouping() == golden()["grouping"]

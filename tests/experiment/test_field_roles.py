"""A field says what it decides where it is declared; everything else follows."""

import dataclasses
import pathlib
import re

import pytest

from cifar.task import CifarConfig
from examples.emnist.task import EmnistConfig
from pcvr.task import PcvrConfig
from stackoverflow.task import StackOverflow, StackOverflowConfig
from tests.recycling import written_runs
from tff_agg import fields
from tff_agg.experiment import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = (StackOverflowConfig, CifarConfig, PcvrConfig, EmnistConfig)


@pytest.fixture
def kinds(token_store, tmp_path):
    """Returns the kinds of runs that differ in what is given."""

    def get(*changes):
        folders = [
            written_runs.write_run(
                tmp_path / str(i), token_store, **{"seed": 0} | changed
            )
            for i, changed in enumerate(changes)
        ]
        return runs.kinds(StackOverflow, folders)

    return get


@pytest.mark.parametrize(
    "changed",
    [{"lanes": 2}, {"noise_cache": "there"}, {"seed": 3}, {"insecure_noise_seed": 4}],
)
def test_runs_are_of_one_kind_wherever_they_ran(kinds, changed):
    (kind,) = kinds({}, changed)
    assert kind.own == {} and len(kind.folders) == 2


@pytest.mark.parametrize(
    "changed", [{"clip_norm": 2.0}, {"max_sentences": 9}, {"keep_last": 5}]
)
def test_runs_of_different_kinds_are_told_apart(kinds, changed):
    _, other = kinds({}, changed)
    assert other.own == changed


def test_places_are_those_of_the_page():
    page = (ROOT / "docs" / "runs.md").read_text()
    (listed,) = re.findall(
        r"resumes only under the same one \((.*?) may change\)", page
    )
    places = fields.names(StackOverflowConfig, "place")
    assert set(re.findall(r"`(\w+)`", listed)) == set(places)


@pytest.mark.parametrize("config", CONFIGS)
def test_no_more_than_one_field_says_where_the_data_lie(config):
    expected = {StackOverflowConfig: "store", CifarConfig: "data_dir"}
    expected |= {PcvrConfig: "data", EmnistConfig: None}
    assert fields.data_field(config) == expected[config]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_has_one_role(config):
    found = [name for role in fields.ROLES for name in fields.names(config, role)]
    assert sorted(found) == sorted(f.name for f in dataclasses.fields(config))


def test_a_role_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"role must be one of .*, place; got 'plce'"):
        fields.described(1, "where it lies", role="plce")


def test_only_a_place_can_be_where_the_data_lie():
    with pytest.raises(ValueError, match="role='seed'"):
        fields.described(1, "the data", role="seed", data=True)

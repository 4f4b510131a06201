"""One recipe: what `account` prints is what training does."""

import dataclasses
import json

import numpy as np
import pytest

from stackoverflow.task import StackOverflow
from tff_agg import account, privacy
from tff_agg.experiment.commands import flags
from tff_agg.noise import workloads
from tff_agg.privacy import PrivacyRecipe, recipe

EXAMPLE = {
    "mechanism": "blt",
    "rounds": 200,
    "min_separation": 20,
    "max_participations": 4,
    "restart_every": 100,
    "server_momentum": 0.95,
    "noise_multiplier": 1.0,
}


def parsed(options, given):
    arguments = [f"--{name}={value}" for name, value in given.items()]
    (read,) = flags.parse(arguments, options)
    return read


def plan_of_account(given):
    return parsed(account.AccountOptions, given).plan()


def plan_of_training(given):
    # Any averager goes with momentum, which what is fitted may be made for.
    return parsed(StackOverflow.Config, {"averager": "last"} | given).build_plan()


def rmse(plan, decay):
    """The error of the momentum workload, by the explicit matrices."""
    workload = workloads.momentum(decay).matrix(plan.rounds)
    rows = workload @ np.linalg.inv(plan.mechanism.matrix(plan.rounds))
    return float(np.sqrt(np.square(rows).sum() / plan.rounds)) * plan.sensitivity.value


def test_a_restarted_mechanism_is_made_for_all_participations_in_a_stretch():
    made = plan_of_training(EXAMPLE)
    fitted = made.mechanism.parameters["optimised_for"]
    # All four fit into one stretch of 100 rounds, and that is the worst user.
    assert (fitted["rounds"], fitted["separation"], fitted["participations"]) == (
        100,
        20,
        4,
    )
    columns = made.mechanism.matrix(200)
    together = np.linalg.norm(columns[:, [0, 20, 40, 60]].sum(axis=1))
    apart = np.linalg.norm(columns[:, [0, 20, 100, 120]].sum(axis=1))
    assert apart < together <= made.sensitivity.value
    # Made for one participation in a stretch it would be 179.
    assert rmse(made, 0.95) <= 128


def test_a_stretch_holds_what_fits_and_no_more():
    made = PrivacyRecipe(**(EXAMPLE | {"min_separation": 40}))
    assert made.stretch == (100, 40, 3)
    assert PrivacyRecipe(**(EXAMPLE | {"restart_every": 10})).stretch == (10, 10, 1)
    assert PrivacyRecipe(**(EXAMPLE | {"restart_every": None})).stretch == (200, 20, 4)
    # A restart after the end never happens.
    assert PrivacyRecipe(**(EXAMPLE | {"restart_every": 300})).stretch == (200, 20, 4)


SCHEMAS: tuple[dict[str, object], ...] = (
    {},
    {"min_separation": 5, "max_participations": 2},
    {"participation": "min_separation", "min_separation": 7},
    {"epoch_length": 8},
    {"participation": "fixed_epoch_order", "epoch_length": 8, "max_participations": 2},
)


def facts(plan):
    """All that a plan's figures follow from."""
    whole = {
        field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)
    }
    made = whole.pop("mechanism")
    return whole | {
        "mechanism": json.dumps([made.name, made.parameters]),
        "matrix": made.matrix(plan.rounds).tolist(),
        "noise_stddev": plan.noise_stddev,
    }


OWN_SIZES = {
    "banded": {"bands": 4},
    "square_root": {"bands": 4},
    "blt": {"buffers": 2},
}


@pytest.mark.parametrize("restart", [{}, {"restart_every": 10}, {"restart_every": 24}])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("mechanism", recipe.MECHANISMS)
def test_account_and_training_have_the_same_plan(tmp_path, mechanism, schema, restart):
    given = {"rounds": 24, "mechanism": mechanism}
    given |= OWN_SIZES.get(mechanism, {})
    given |= {"noise_cache": tmp_path, "clip_norm": 0.3, "clients_per_round": 7}
    given |= {"server_momentum": 0.9} | schema | restart
    given |= {"noise_multiplier": 0.7, "delta": 1e-5}
    assert facts(plan_of_account(given)) == facts(plan_of_training(given))


@pytest.mark.parametrize(
    "given",
    [
        EXAMPLE,
        {"noise_multiplier": 0.341},
        {"per_node_multiplier": 0.341, "mechanism": "honaker", "completion": True},
        {"epsilon": 8.2, "mechanism": "blt", "min_separation": 342},
    ],
)
def test_account_and_training_agree_on_defaults_and_long_runs(given):
    assert plan_of_account(given).to_json() == plan_of_training(given).to_json()


def test_account_has_the_flags_of_the_recipe_and_training_has_all_of_them():
    names = {field.name for field in dataclasses.fields(PrivacyRecipe)}
    of_account = {field.name for field in dataclasses.fields(account.AccountOptions)}
    assert of_account == names | {"json", "population", "batch_size"}
    assert names <= {field.name for field in dataclasses.fields(StackOverflow.Config)}
    for field in dataclasses.fields(PrivacyRecipe):
        assert field.metadata["help"]


def test_a_plan_takes_claims_as_well():
    made = PrivacyRecipe(noise_multiplier=0.341)
    assert made.build_plan(claimed_epsilon=17.7).claimed_epsilon == 17.7
    with pytest.raises(ValueError, match="above claimed_epsilon=10"):
        made.build_plan(claimed_epsilon=10.0)


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({}, privacy.AtMostOnce()),
        ({"participation": "at_most_once"}, privacy.AtMostOnce()),
        ({"min_separation": 5}, privacy.MinSeparation(5)),
        (
            {"participation": "min_separation", "min_separation": 5},
            privacy.MinSeparation(5),
        ),
        (
            {"epoch_length": 5, "max_participations": 2},
            privacy.FixedEpochOrder(5, epochs=2),
        ),
    ],
)
def test_the_schema_follows_from_what_is_given(given, schema):
    made = PrivacyRecipe(noise_multiplier=1.0, rounds=20, **given)
    assert made.build_participation() == schema
    assert made.build_plan().participation == schema


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"participation": "often"}, "participation must be one of at_most_once, min_"),
        ({"participation": "min_separation"}, "min_separation needs min_separation"),
        ({"participation": "fixed_epoch_order"}, "needs epoch_length"),
        (
            {"participation": "at_most_once", "min_separation": 3},
            "min_separation=3 needs participation=min_separation; it is at_most_once",
        ),
        ({"min_separation": 3, "epoch_length": 3}, "epoch_length=3 needs participat"),
        ({"min_separation": 0}, "min_separation must be at least 1; got 0"),
        ({"max_participations": 2}, "needs participation=min_separation or fixed_epo"),
        ({"mechanism": "magic"}, "mechanism must be one of identity, tree"),
        ({"mechanism": "blt", "completion": True}, "completion needs mechanism=tree"),
        ({"buffers": 0}, "buffers must be at least 1"),
        ({"clip_norm": float("nan")}, "clip_norm must be at least 0; got nan"),
        ({"per_node_multiplier": 1.0}, "exactly one of noise_multiplier, per_node_m"),
        ({"noise_multiplier": None}, "got none"),
        ({"delta": 1.0}, "delta must be strictly between 0 and 1"),
        ({"delta": 0.0}, "delta must be strictly between 0 and 1"),
    ],
)
def test_contradictions_are_refused_before_anything_is_built(changes, message):
    with pytest.raises(ValueError, match=message):
        PrivacyRecipe(**({"noise_multiplier": 1.0} | changes))

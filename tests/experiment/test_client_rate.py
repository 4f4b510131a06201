"""The clients' learning rate that --dry_run proposes, by held-out losses."""

import math

import pytest

from examples.diabetes.task import Diabetes, DiabetesConfig
from examples.emnist.task import Emnist, EmnistConfig
from tff_agg.experiment.run import client_rate
from tff_agg.experiment.run.client_rate import Tried
from tff_agg.experiment.task import PrivacyFacts

SMALL = {"noise_multiplier": 1.0, "clients_per_round": 4}


def digits(**settings):
    return Emnist(EmnistConfig(**SMALL, writers=20, **settings))


def patients(**settings):
    return Diabetes(DiabetesConfig(**SMALL, doctors=20, **settings))


@pytest.mark.parametrize(("task", "rate"), [(digits, 0.3), (patients, 0.1)])
def test_it_is_what_local_steps_of_held_out_data_like_best(task, rate):
    found = client_rate.tried(task())
    assert client_rate.proposed(found) == rate
    assert [t.rate for t in found] == [*client_rate.RATES[: len(found)]]
    # Of patients the largest diverges.
    assert (task is patients) == (not found[0].change < 100)


def test_what_diverges_is_never_chosen():
    found = [Tried(1.0, math.nan), Tried(0.3, math.inf)]
    assert client_rate.proposed([*found, Tried(0.1, 0.5)]) == 0.1
    assert client_rate.proposed(found) == client_rate.RATES[-1]


def test_nothing_is_tried_where_nobody_or_users_of_training_are_held_out(monkeypatch):
    monkeypatch.setattr(Diabetes, "heldout_clients", lambda self, number: ())
    assert client_rate.tried(patients()) == []
    facts = PrivacyFacts(shared_users={"heldout": 1, "test": 0})
    monkeypatch.setattr(Emnist, "privacy_facts", lambda self: facts)
    assert client_rate.tried(digits()) == []


def test_held_out_clients_of_text_are_other_users(make_task):
    task = make_task()
    held_out = task.data.users("heldout")
    found = task.heldout_clients(3)
    names = {task.data.user_name(int(user)) for user in held_out}
    assert len(found) == 3 and {client.name for client in found} <= names
    assert len(task.heldout_clients(10_000)) == len(held_out)

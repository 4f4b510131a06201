"""A tiny data set and a tiny run that all training tests share."""

import contextlib
import dataclasses

import pytest

from stackoverflow import config as configs
from stackoverflow import stores, training
from tff_agg import runtime


@pytest.fixture(scope="session")
def token_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return stores.ensure_store(
        "synthetic", None, folder, users=250, words=40, workers=1
    )


@pytest.fixture
def make_config(token_store):
    def make(**changes):
        values = {
            "store": token_store,
            "rounds": 6,
            "clients_per_round": 4,
            "max_sentences": 20,
            "embedding_size": 4,
            "lstm_size": 6,
            "averager": "uta",
            "k": 2,
            "noise_multiplier": 0.5,
            "insecure_noise_seed": 7,
            "evaluate_every": 2,
            "validation_sentences": 60,
            "test_sentences": 60,
            "state_every": 2,
        }
        return configs.TrainConfig(**(values | changes))

    return make


@pytest.fixture(scope="session")
def _compiled():
    """Processes by configuration, and the one context that has compiled them."""
    return {}, runtime.create("local")


@pytest.fixture
def compiled_once(monkeypatch, _compiled):
    """Lets runs with the same configuration share a compiled process, to save time.

    Nothing else is shared: state, tables and checkpoints are a run's own.
    """
    made, context = _compiled
    build = training.build_process

    def build_once(config, sizes, plan):
        key = dataclasses.replace(config, store="")
        if key not in made:
            made[key] = build(config, sizes, plan)
        return made[key]

    @contextlib.contextmanager
    def running_on(name, **options):
        import tensorflow_federated as tff

        assert name == "local" and not options
        with tff.framework.get_context_stack().install(context):
            yield context

    monkeypatch.setattr(training, "build_process", build_once)
    monkeypatch.setattr(runtime, "running_on", running_on)

"""`train --minutes=` measures rounds and chooses the shape that fits the time."""

import dataclasses
import itertools
import json

import pytest

from stackoverflow.task import StackOverflow
from tests import command_lines
from tff_agg.experiment.commands import train
from tff_agg.experiment.run import sizing
from tff_agg.privacy import shapes


def ticking(step):
    """A clock that has moved on by `step` seconds whenever it is asked."""
    numbers = itertools.count()
    return lambda: step * next(numbers)


@pytest.fixture
def few(monkeypatch):
    """Shapes of a small population."""
    monkeypatch.setattr(shapes, "ROUNDS", (10, 20))
    monkeypatch.setattr(shapes, "CLIENTS", (5, 10))
    monkeypatch.setattr(shapes.grid, "__kwdefaults__", {
        **shapes.grid.__kwdefaults__, "rounds": (10, 20), "clients": (5, 10),
    })  # fmt: skip


@pytest.fixture
def private(make_task):
    return make_task(noise_multiplier=None, epsilon=8.0, insecure_noise_seed=None)


def test_more_examples_first_then_more_rounds_and_users(private, few, monkeypatch):
    # Every measured round takes a second: a hundredth for each of its 100 clients.
    measured = list(sizing._options(private, ticking(1.0)))
    monkeypatch.setattr(sizing, "_options", lambda task, clock: measured)
    chosen = {m: sizing.choose(private, m) for m in (0.015, 0.03, 10)}
    users = [c.shape.rounds * c.shape.clients for c in chosen.values()]
    assert users == sorted(users) and len(set(users)) > 1
    most = chosen[10]
    assert (most.shape.rounds, most.shape.clients) == (20, 10)
    assert most.settings["max_sentences"] == 64 and most.shape.examples == 64
    for minutes, choice in chosen.items():
        assert choice.shape.seconds <= 60 * sizing.SHARE * minutes
    with pytest.raises(ValueError, match="no shape fits the time"):
        sizing.choose(private, 0.001)


def test_what_cannot_be_sized_is_refused(make_task):
    with pytest.raises(ValueError, match="minutes=3 needs epsilon"):
        sizing.choose(make_task(), 3.0)


def test_train_takes_the_shape_and_a_run_that_is_there_keeps_its_own(
    token_store, few, monkeypatch, tmp_path, capsys
):
    seen = []

    def shown(task, out):
        seen.append(task.config)
        return 0

    monkeypatch.setattr(train, "_dry_run", shown)
    monkeypatch.setattr(
        sizing, "choose",
        lambda task, minutes: sizing.Choice(
            shapes.Shape(20, 10, 5, 4, 0.1, 30.0, 16),
            {"rounds": 20, "clients_per_round": 10, "min_separation": 5,
             "max_sentences": 16}, 0.01,
        ),
    )  # fmt: skip
    given = (
        f"--store={token_store}", f"--out={tmp_path}", "--epsilon=8", "--minutes=1",
        "--dry_run",
    )  # fmt: skip
    command_lines.run(StackOverflow, "train", *given)
    assert (seen[0].rounds, seen[0].clients_per_round) == (20, 10)
    assert "--max_sentences=16" in capsys.readouterr().out
    saved = seen[0].to_json() | {"rounds": 30, "min_separation": 7}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    command_lines.run(StackOverflow, "train", *given)
    assert (seen[1].rounds, seen[1].min_separation) == (30, 7)
    assert "10.0 ms" not in capsys.readouterr().out


def test_sizes_of_the_model_are_compared_by_time_and_noise(private, monkeypatch):
    monkeypatch.setattr(sizing.estimate, "time_rounds", lambda built, clock: (3.0, 2.0))
    task = private.with_config(
        dataclasses.replace(private.config, rounds=10, min_separation=5)
    )
    found = list(sizing.sizes(task))
    assert [s.settings for s in found] == list(StackOverflow.model_sizes)
    assert all((s.round, s.run) == (2.0, 21.0) for s in found)
    parameters = [s.parameters for s in found]
    assert parameters == sorted(parameters) and len(set(parameters)) == len(found)
    # Noise grows as the root of the number of parameters.
    for one, other in itertools.pairwise(found):
        growth = (other.parameters / one.parameters) ** 0.5
        assert other.ratio / one.ratio == pytest.approx(growth)
    assert "--lstm_size=48" in found[0].line()[0]
    assert found[-1]._replace(ratio=0.2).line()[-1] == "20 %: too much to learn"

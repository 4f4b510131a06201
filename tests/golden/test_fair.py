"""The fair comparison gives the figures that it gave before there was one study."""

import dataclasses

import pytest

from stackoverflow.studies import fair
from tests.golden.compare import differences, golden
from tff_agg.experiment.study.declare import BROADCAST, validated
from tff_agg.experiment.study.search import perform
from tff_agg.recycling.methods import Method


def old_name(arm, settings, model):
    """Names a candidate as the old code did."""
    clip, rate = settings["clip_norm"], settings["server_learning_rate"]
    if model == "last":
        model = "broadcast"
    elif ":" in model:
        model = Method.parse(model).title
    return f"{arm.name}, clip {clip:g}, rate {rate:g}: {model}"


@pytest.fixture
def tiny(monkeypatch, tiny_scale, token_store, tmp_path):
    whole = fair.trainings(shift=True)
    few = {name: whole[name] for name in ("baseline", "UTA_tr")}
    monkeypatch.setattr(fair, "trainings", lambda shift: few)
    monkeypatch.setattr(fair, "GRIDS", {"18.9": ((0.3, 2.0), (1.0, 0.5))})
    return fair.Fair(
        scale="tiny", seeds=2, store=token_store, out=str(tmp_path),
        epsilons=("18.9",), shift=True,
    )  # fmt: skip


@pytest.mark.slow
def test_figures(tiny, tmp_path):
    study = fair.declare(tiny)
    found = perform(study, tmp_path)
    metrics = [metric.name for metric in study.task.metrics]
    figures = {}
    for line in found.lines:
        why = line.note or "chosen"
        chosen = found.chosen[line]
        model = "broadcast" if line.use == BROADCAST else str(chosen.method)
        name = f"chosen {old_name(line.arm, chosen.settings, model)} ({why})"
        for metric in metrics:
            for settings, method, (value,) in found.candidates(line, metric):
                key = old_name(line.arm, settings, method)
                figures[key, "100", "heldout", "mean", metric] = repr(value)
            for seed, value in enumerate(found.values(line, metric)):
                figures[name, str(seed), "test", "mean", metric] = repr(value)
    for name, line in fair.steps(found).items():
        chosen = found.chosen[line]
        model = "broadcast" if line.use == BROADCAST else str(chosen.method)
        is_line = old_name(line.arm, chosen.settings, model)
        figures[f"step {name}", "0", "", "", "is"] = is_line
    # The curves of the search: the same runs, asked at more rounds.
    curves = dataclasses.replace(
        study, rounds=validated, lines=[x for x in study.lines if x.use == BROADCAST],
        final=None, also=lambda *_: (),
    )  # fmt: skip
    more = perform(curves, tmp_path)
    scores = more.frame.filter(more.frame["split"] == "heldout")
    for row in scores.iter_rows(named=True):
        if row["seed"] == 100 and row["metric"] in ("accuracy", "loss"):
            if row["group"] == "all" and row["series"] == "aggregate":
                words = dict(part.split("=") for part in row["settings"].split())
                settings = {name: float(value) for name, value in words.items()}
                (arm,) = {
                    x.arm
                    for x in study.lines
                    if x.arm.name == row["arm"] and not x.note
                }
                key = old_name(arm, settings, "last")
                number = str(row["round"])
                figures[key, "100", "heldout", number, row["metric"]] = repr(
                    row["value"]
                )
    wanted = golden("fair")
    assert differences(figures, wanted) == {}

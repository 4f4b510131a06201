r"""The paper's CIFAR-100 table from runs of one's own: tunes, trains, judges, prints.

    python -m benchmarks.cifar_table --data_dir=../shared/data --out=results/cifar

All arms of a level have equally many candidates (`cifar_arms`): five at ε = 1, three at
ε = 8, whose runs are eight times as long. They are chosen from on validation data with
seed 100; the last iterate and what is recycled have a choice each. The chosen ones are
trained with seeds 0, 1, … and judged on test data; inference parameters are those that
were best in tuning. All seeds are known, so that the figures can be had again, and all
runs of a seed share batches and noise: such runs have no guarantee. Writes table.json,
uncertainty.json and curves.png to --out; goes on where it stopped.
"""

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks import cifar_arms as arms
from benchmarks import cifar_uncertainty
from benchmarks.cifar_lanes import (
    TRAINED,
    Bundle,
    Settings,
    Wanted,
    key_of,
    name_of,
)
from cifar.task import CifarConfig
from tff_agg import files
from tff_agg.experiment import binaries
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.study import figures, show
from tff_agg.experiment.study.statistics import gain
from tff_agg.experiment.study.statistics import std as spread_of
from tff_agg.recycling import inference

TUNING_SEED = 100
RECYCLED_METHODS = ("EMA_inf", "UTA_inf", "OPA", "OMV")
COLUMNS = (TRAINED, "last", "EMA_baseline", *RECYCLED_METHODS)


# The baseline's lines of the table, and by what their candidates are chosen.
_BASELINES = {
    f"{arms.BASELINE}, last": TRAINED,
    f"{arms.BASELINE}, recycled": arms.RECYCLED,
}


class Choice(NamedTuple):
    """What an arm has chosen.

    Attributes:
      settings: The run's.
      parameters: By method, that of inference; None where there is none to choose.
    """

    settings: Settings
    parameters: Mapping[str, float | None]


def best_parameter(scores: Mapping[str, float], method: str) -> tuple[float, str]:
    """Returns the best score of a method and the key it stands under.

    Example:
      >>> best_parameter({'OPA 5': 0.4, 'OPA 20': 0.5, 'OMV 5': 0.6}, 'OPA')
      (0.5, 'OPA 20')
    """
    keys = [key for key in scores if key.partition(" ")[0] == method]
    # Of equals always the same one, whatever the order in a file.
    best = max(keys, key=lambda key: (scores[key], -len(key), key))
    return scores[best], best


def choose(found: Sequence[tuple[Settings, Mapping[str, float]]], by: str) -> Choice:
    """Chooses the best of an arm's candidates.

    Args:
      found: Candidates with their validation scores.
      by: 'trained': what training went on from; 'recycled': the best that inference
        makes of a run's checkpoints.
    """

    def value(scores: Mapping[str, float]) -> float:
        if by == TRAINED:
            return scores[TRAINED]
        return max(best_parameter(scores, method)[0] for method in RECYCLED_METHODS)

    settings, scores = max(found, key=lambda pair: value(pair[1]))
    parameters: dict[str, float | None] = {"last": None, "EMA_baseline": None}
    for method in RECYCLED_METHODS:
        _, key = best_parameter(scores, method)
        parameters[method] = float(key.partition(" ")[2])
    return Choice(settings, parameters)


class Study:
    """All runs of the table in one folder."""

    def __init__(self, out: pathlib.Path, data_dir: str, seeds: Sequence[int]):
        """Takes the folder, where the data are, and the seeds that are judged."""
        self._out, self._data_dir, self.seeds = out, data_dir, tuple(seeds)

    def bundle(
        self, level: str, task: str, settings: Sequence[Settings], seed: int
    ) -> Bundle:
        """Returns the runs of a seed."""
        config = CifarConfig(**arms.base(level, task, self._data_dir, seed))
        return Bundle(config, settings, self._out / f"{level}_{task}")

    def choices(self, level: str, task: str) -> dict[str, Choice]:
        """Returns what each line of the table has chosen; runs what it takes."""
        candidates = arms.CANDIDATES[level, task]
        every = [one for several in candidates.values() for one in several]
        tuned = self.bundle(level, task, every, TUNING_SEED)
        tuned.run(Wanted(arms.ALL_LEVELS[level].grid), say)
        found = {
            arm: [(one, tuned.scores(one)["scores"]["heldout"]) for one in several]
            for arm, several in candidates.items()
        }
        return {
            **{
                line: choose(found[arms.BASELINE], by)
                for line, by in _BASELINES.items()
            },
            arms.EMA: choose(found[arms.EMA], TRAINED),
            arms.UTA: choose(found[arms.UTA], TRAINED),
        }

    def is_tuned(self, level: str, task: str) -> bool:
        """Says whether all candidates have been run."""
        every = [
            o for several in arms.CANDIDATES[level, task].values() for o in several
        ]
        tuned = self.bundle(level, task, every, TUNING_SEED)
        return all(tuned.path(one).exists() for one in every)

    def judged(self, level: str, task: str, seed: int) -> Bundle:
        """Returns the chosen runs of a seed, trained and judged."""
        choices = self.choices(level, task)
        bundle = self.bundle(level, task, _distinct(choices), seed)
        bundle.run(_wanted(level, choices, with_curve=seed == self.seeds[0]), say)
        return bundle

    def lines(self, level: str, task: str, seeds: Sequence[int]) -> dict[str, Any]:
        """Returns the table's lines: for each cell the accuracies by seed."""
        choices = self.choices(level, task)
        bundles = [self.judged(level, task, seed) for seed in seeds]
        found: dict[str, Any] = {}
        for line, choice in choices.items():
            tests = [b.scores(choice.settings)["scores"]["test"] for b in bundles]
            cells = {}
            for method in COLUMNS:
                at = choice.parameters.get(method)
                key = key_of(method, at)
                cells[method] = {"parameter": at, "test": [t[key] for t in tests]}
            found[line] = {"settings": dict(choice.settings), "cells": cells}
        return found

    def probes(self) -> None:
        """Runs what is not for the table but for its explanation, and prints it."""
        for name, (level, changes, settings) in arms.PROBES.items():
            shared = arms.base(level, arms.ORIGINAL, self._data_dir, TUNING_SEED)
            folder = self._out / f"probe_{name}"
            bundle = Bundle(CifarConfig(**{**shared, **changes}), settings, folder)
            facts = arms.LEVELS[level]
            bundle.run(Wanted(facts.grid, curve=facts.curve), say)
            for one in settings:
                found = bundle.scores(one)["scores"]["heldout"]
                best = [best_parameter(found, m) for m in ("last", "UTA_inf")]
                say(f"{name}: {name_of(one)}: {found[TRAINED]:.4f}, {best}")

    def done(self, level: str, task: str) -> list[int]:
        """Returns the seeds whose runs are all there; none where nothing is tuned."""
        if not self.is_tuned(level, task):
            return []
        choices = _distinct(self.choices(level, task))
        return [
            seed
            for seed in self.seeds
            if all(
                self.bundle(level, task, choices, seed).path(one).exists()
                for one in choices
            )
        ]


def _distinct(choices: Mapping[str, Choice]) -> list[Settings]:
    """Returns the settings of all lines, each once."""
    found: list[Settings] = []
    for choice in choices.values():
        if choice.settings not in found:
            found.append(choice.settings)
    return found


def _wanted(level: str, choices: Mapping[str, Choice], with_curve: bool) -> Wanted:
    """Returns what is kept of the chosen runs: the test data see nothing else."""

    def values(*methods: str) -> tuple[Any, ...]:
        chosen = {c.parameters[method] for c in choices.values() for method in methods}
        return tuple(sorted(value for value in chosen if value is not None))

    facts = arms.ALL_LEVELS[level]
    return Wanted(
        inference.Grid(
            uta=tuple(int(k) for k in values("UTA_inf")),
            outputs=tuple(int(k) for k in values("OPA", "OMV")),
            ema=values("EMA_inf"),
        ),
        splits=("test",),
        curve=facts.curve if with_curve else (),
        checkpoints=cifar_uncertainty.steps(facts.steps, facts.separations),
    )


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def table(lines: Mapping[str, Any]) -> str:
    """Lays the lines out: mean ± standard deviation in percent (parameter)."""

    def cell(found: Mapping[str, Any]) -> str:
        mean, spread = statistics.fmean(found["test"]), spread_of(found["test"])
        text = f"{100 * mean:.2f} ± {100 * spread:.2f}"
        at = found["parameter"]
        return text if at is None else f"{text} ({at:g})"

    rows = [
        [line, _words(facts["settings"])] + [cell(facts["cells"][c]) for c in COLUMNS]
        for line, facts in lines.items()
    ]
    return show.render(show.Table(["line", "chosen", *COLUMNS], rows))


def gains(lines: Mapping[str, Any]) -> str:
    """Lays out what each cell gains on the baseline's last iterate, seed by seed.

    In points, ± the standard error; a star where it stands clear of the spread.
    """
    reference = lines[next(iter(_BASELINES))]["cells"][TRAINED]["test"]

    def cell(values: Sequence[float]) -> str:
        found = gain(values, reference)
        star = "*" if found.clear else ""
        return f"{100 * found.mean:+.2f} ± {100 * found.error:.2f}{star}"

    rows = [
        [line, *(cell(facts["cells"][column]["test"]) for column in COLUMNS)]
        for line, facts in lines.items()
    ]
    return show.render(show.Table(["gain", *COLUMNS], rows))


def _words(settings: Settings) -> str:
    """Says a run's settings in a few words."""
    words = [f"η={settings['learning_rate']:g}"]
    if "k" in settings:
        words.append(f"k={settings['k']}")
    if "ema_decay" in settings:
        words.append(f"β={settings['ema_decay']:g}")
    if "start_round" in settings:
        words.append(f"τ={settings['start_round']}")
    return " ".join(words)


def draw(curves: Mapping[str, Sequence[Sequence[float]]], path: pathlib.Path) -> None:
    """Draws the last iterate and the mean of its last 50 over the steps."""
    panels = {}
    for title, points in curves.items():
        steps, last, mean = zip(*points, strict=True)
        panels[title] = {
            "last iterate": figures.Curve(steps, [last]),
            "mean of the last 50": figures.Curve(steps, [mean]),
        }
    figures.curves(path, panels)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flag_fields.define_one(
        values, "string", "data_dir", "../shared/data", "folder with cifar100/"
    )
    flag_fields.define_one(values, "string", "out", "results/cifar", "folder")
    flag_fields.define_one(
        values, "list", "levels", list(arms.LEVELS), "levels of privacy"
    )
    flag_fields.define_one(values, "integer", "seeds", 5, "runs of each line")
    flag_fields.define_one(
        values, "boolean", "probes", False, "run what explains the table, too"
    )
    flag_fields.define_one(
        values, "boolean", "only_print", False, "train nothing; print what is there"
    )


def main(values: flags.FlagValues) -> int:
    """Trains what is missing and prints the table."""
    study = Study(pathlib.Path(values.out), values.data_dir, range(values.seeds))
    tasks = (arms.ORIGINAL, arms.SHIFT)
    for level in values.levels if not values.only_print else ():
        for seed in study.seeds:
            for task in tasks:
                study.judged(level, task, seed)
    if values.probes:
        study.probes()
    found, widths, curves = {}, {}, {}
    for level in values.levels:
        for task in tasks:
            if not (seeds := study.done(level, task)):
                continue
            name = f"{level} {task}"
            found[name] = study.lines(level, task, seeds)
            say(f"\n{name}, seeds {seeds}\n{table(found[name])}")
            if len(seeds) > 1:
                say(gains(found[name]))
            for line, facts in found[name].items():
                several = [study.judged(level, task, seed) for seed in seeds]
                if seeds[0] == study.seeds[0] and line.startswith(arms.BASELINE):
                    points = several[0].scores(facts["settings"])["curve"]
                    title = f"{level.replace('eps', 'ε = ')}, {task}"
                    curves[f"{title}, {_words(facts['settings'])}"] = points
                if len(seeds) > 1:
                    widths[f"{name}: {line}"] = cifar_uncertainty.compare(
                        several, facts["settings"], arms.LEVELS[level], values.data_dir
                    )
    out = pathlib.Path(values.out)
    files.write_text(out / "table.json", json.dumps(found, indent=1) + "\n")
    files.write_text(out / "uncertainty.json", json.dumps(widths, indent=1) + "\n")
    say("\n" + cifar_uncertainty.table(widths))
    if curves:
        draw(curves, out / "curves.png")
    return 0


if __name__ == "__main__":
    binaries.run_main(define_flags, main, needs_tensorflow=False)

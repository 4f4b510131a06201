"""Exports an aggregate of a run's checkpoints as a Keras model.

Writes a folder with the model, what its user needs (such as the vocabulary), the
guarantee it was trained under, and checkpoints, from whose spread error bars of its
predictions follow: as far apart as it takes to count as independent, which validation
data tell. All of it is post-processing and costs no privacy.
"""

import dataclasses
import functools
from typing import Any

from tff_agg.experiment import error_bars, exported, runs
from tff_agg.experiment.commands import Command
from tff_agg.experiment.commands.of_runs import OfRun
from tff_agg.experiment.task import Exportable, Task
from tff_agg.fields import described
from tff_agg.recycling import methods, series
from tff_agg.recycling.methods import LAST, Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(OfRun):
    """What to export."""

    out: str = described("", "the folder to write; must not be there")
    method: Method = described(
        LAST, "what is made of the checkpoints: last, uta:100, ema:0.95, pda:8"
    )
    series: str = described(
        series.BROADCAST, "checkpoints: θ^AGG, as broadcast, or the iterates θ",
        series.NAMES,
    )  # fmt: skip
    checkpoints: int = described(
        10, "how many go along, for error bars; fewer, where there are not so many",
        at_least=2,
    )  # fmt: skip
    examples: int = described(
        200, "validation examples that tell how far apart they have to be", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.out:
            raise ValueError("--out must name a folder; it is empty")
        if self.method.facts.combine is not None:
            raise ValueError(
                f"method={self.method} combines the outputs of several models: there "
                "is none to export; last, uta, ema and pda make one"
            )


def export(task_class: type[Task], config: ExportConfig) -> dict[str, Any]:
    """Exports a model and returns what model.json says of it."""
    run = runs.Run.open(task_class, config.run, config.data)
    task = run.task
    if not isinstance(task, Exportable):
        raise ValueError(f"the task {task_class.package!r} has no model in Keras' form")
    members = run.rounds(config.series)
    load = run.loader(config.series)
    stored = series.Stored(members, load)
    weights = methods.aggregate(stored, config.method, members[-1])
    if len(members) < 2:
        raise ValueError(f"{config.run} has {len(members)} checkpoint; 2 are needed")
    sample = task.flat_sample(task.fixed_sample("heldout", config.examples))
    bars = error_bars.of_run(run, [sample], config.series)
    for_bars = bars.checkpoints(min(config.checkpoints, bars.most))
    used = config.method.members(members, members[-1])
    facts = {
        "task": task_class.package,
        "run": run.folder.name,
        "method": str(config.method),
        "checkpoints": config.series,
        "rounds_averaged": [used[0], used[-1], len(used)],
        "rounds_of_run": run.config.rounds,
        "rounds_for_error_bars": for_bars,
        "error_bars_times": bars.widening(for_bars),
        "error_bars": bars.in_words(),
        "data_fingerprint": task.fingerprint,
        "guarantee": run.opened.report().get("guarantee"),
        **task.export_facts(),
    }
    exported.write(
        config.out,
        task.to_keras(weights),
        facts,
        [list(load(number).values()) for number in for_bars],
        task.export_texts(),
    )
    return facts


def run(task_class: type[Task], config: ExportConfig) -> int:
    """Exports a model and says what it is."""
    facts = export(task_class, config)
    first, last, count = facts["rounds_averaged"]
    whose = series.IN_WORDS[config.series]
    print(
        f"{facts['method']}: {count} checkpoints of {whose}, rounds {first} to {last}"
    )
    print(facts["error_bars"])
    if facts["guarantee"]:
        print(facts["guarantee"]["statement"])
    print(f"Everything is in {config.out}")
    return 0


def command(task: type[Task]) -> Command:
    """Returns the command of a task."""
    return Command(functools.partial(run, task), (ExportConfig,))

"""Exports an aggregate of a run's checkpoints as a Keras model.

Writes a folder with the model, what its user needs (such as the vocabulary), the
guarantee it was trained under, and the newest checkpoints, from whose spread error bars
of its predictions follow. All of it is post-processing and costs no privacy.
"""

import dataclasses
import functools
import json
from typing import Any

from absl import flags

from tff_agg import fields
from tff_agg.aliases import JsonObject
from tff_agg.experiment import exported, runs
from tff_agg.experiment.commands import evaluate
from tff_agg.experiment.commands import flags as flag_fields
from tff_agg.experiment.task import Exportable, Task
from tff_agg.recycling import methods
from tff_agg.recycling.methods import LAST, Method
from tff_agg.recycling.series import Stored


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """What to export.

    Attributes:
      run: The run's folder.
      out: The folder to write; must not be there.
      method: What is made of the checkpoints; one model.
      name: Which checkpoints: 'iterate' (θ_t) or 'aggregate' (θ^AGG_t).
      checkpoints: How many of the newest checkpoints go along, for error bars.
      data: Where the data are, if they are not where the run found them.
    """

    run: str
    out: str
    method: Method = LAST
    name: str = "iterate"
    checkpoints: int = 10
    data: str | None = None

    def __post_init__(self):
        for flag in ("run", "out"):
            if not getattr(self, flag):
                raise ValueError(f"--{flag} must name a folder; it is empty")
        if self.method.facts.combine is not None:
            raise ValueError(
                f"method={self.method} combines the outputs of several models: there "
                "is none to export; last, uta, ema and pda make one"
            )
        if self.checkpoints < 2:
            raise ValueError(
                f"checkpoints={self.checkpoints}: error bars need at least 2"
            )


def export(task_class: type[Task], config: ExportConfig) -> dict[str, Any]:
    """Exports a model and returns what model.json says of it."""
    run = runs.Run.open(task_class, config.run, config.data)
    task = run.task
    if not isinstance(task, Exportable):
        raise ValueError(f"the task {task_class.package!r} has no model in Keras' form")
    members = run.rounds(config.name)
    load = run.loader(config.name)
    series = Stored(members, load)
    weights = methods.aggregate(series, config.method, members[-1])
    newest = members[-config.checkpoints :]
    if len(newest) < 2:
        raise ValueError(f"{config.run} has {len(newest)} checkpoint; 2 are needed")
    used = config.method.members(members, members[-1])
    facts = {
        "task": task_class.package,
        "run": run.folder.name,
        "method": str(config.method),
        "checkpoints": config.name,
        "rounds_averaged": [used[0], used[-1], len(used)],
        "rounds_of_run": run.config.rounds,
        "rounds_for_error_bars": newest,
        "data_fingerprint": task.fingerprint,
        "guarantee": _guarantee(run),
        **task.export_facts(),
    }
    exported.write(
        config.out,
        task.to_keras(weights),
        facts,
        [list(load(number).values()) for number in newest],
        task.export_texts(),
    )
    return facts


def _guarantee(run: runs.Run) -> JsonObject | None:
    """Returns what the run's privacy report says; None where it has none."""
    path = run.folder / "privacy_report.json"
    if not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8")).get("guarantee")


def define_flags(task_class: type[Task], flag_values: flags.FlagValues) -> None:
    """Defines the flags of this driver."""
    define = functools.partial(flag_fields.define_one, flag_values)
    define("string", "run", None, "the run's folder")
    define("string", "out", None, "the folder to write; must not be there")
    text = "what is made of the checkpoints: last, uta:100, ema:0.95, pda:8"
    define("string", "method", str(LAST), text)
    define("enum", "name", "iterate", list(evaluate.NAMES), "checkpoints: θ or θ^AGG")
    text = "how many of the newest go along, for error bars"
    define("integer", "checkpoints", ExportConfig.checkpoints, text)
    if (field := fields.data_field(task_class.Config)) is not None:
        define("string", field, None, "where the data are, if they were moved")


def main(task_class: type[Task], values: flags.FlagValues) -> int:
    """Exports what the flags describe."""
    config = ExportConfig(
        run=values.run,
        out=values.out,
        method=Method.parse(values.method),
        name=values.name,
        checkpoints=values.checkpoints,
        data=evaluate.data_from_flags(task_class, values),
    )
    facts = export(task_class, config)
    first, last, count = facts["rounds_averaged"]
    print(f"{facts['method']} of {count} checkpoints, rounds {first} to {last}")
    if facts["guarantee"]:
        print(facts["guarantee"]["statement"])
    print(f"Everything is in {config.out}")
    return 0

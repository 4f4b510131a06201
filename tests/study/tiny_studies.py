"""Studies of a task whose steps take milliseconds, or are not taken at all."""

import dataclasses

from tests.experiment import tiny_samples
from tests.experiment.tiny_samples import Tiny
from tff_agg.experiment.study import declare
from tff_agg.experiment.study.declare import Arm, Line, Study, Train, Use
from tff_agg.experiment.study.scores import Key, digest, rows_of
from tff_agg.experiment.study.train import in_memory
from tff_agg.recycling.methods import parse_methods


@dataclasses.dataclass
class Told(Train):
    """Trains nothing: the values are told, and what was asked for is noted.

    Attributes:
      value: Returns the value of (config, series, method, split).
      asked: Every (config, question) that was answered.
      metric: Of which metric.
    """

    value: object
    asked: list = dataclasses.field(default_factory=list)
    keeps: bool = False
    together: bool = False
    metric: str = "accuracy"

    def run(self, trial, place):
        return digest({"config": trial.config.to_json()})

    def answer(self, jobs, place):
        for trial, questions in jobs:
            rows = []
            for question in questions:
                self.asked.append((trial.config, question))
                split, examples, series, methods, rounds = question
                for method in methods:
                    value = self.value(trial.config, series, str(method), split)
                    for number in rounds:
                        key = Key(series, str(method), number, split, examples)
                        rows += rows_of(key, {"all": {self.metric: value}})
            yield trial, rows


def use(text, series="iterate"):
    return Use(parse_methods(text), series)


def arm(name, *rates, **changes):
    grid = tuple({"learning_rate": rate} for rate in rates) or ({},)
    return Arm(name, tiny_samples.config(**changes), grid)


def study(*lines, train=None, **changes):
    values = {
        "seeds": (0, 1),
        "search_seeds": (100,),
        "seeding": declare.known(1000),
        "examples": {"heldout": 30, "test": 30},
        "train": train or in_memory(),
    }
    return Study(Tiny, lines, **(values | changes))


__all__ = ["Line", "Told", "arm", "study", "use"]

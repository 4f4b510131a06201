"""The demo: what do averaged checkpoints gain at the noise of one ε? `make demo`.

Generates the embedded data and trains DP-FTRL and schedule-free training until noise,
not time, limits them, over several seeds. Then it recycles the baseline's checkpoints:
the mean of the last ones (UTA_inf), at no privacy cost. `make demo-full` does so with
and without a periodic shift between questions and answers. Prints one table and draws
one picture. Every run is a folder that resumes: stop the demo and start it again.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Self

from stackoverflow.task import StackOverflow, StackOverflowConfig
from tff_agg.experiment.commands import Command, study
from tff_agg.experiment.config import RunConfig
from tff_agg.experiment.study import show
from tff_agg.experiment.study.declare import (
    BROADCAST,
    Arm,
    Line,
    Study,
    Use,
    distinct,
    known,
    validated,
)
from tff_agg.experiment.study.options import StudyOptions
from tff_agg.experiment.study.report import Report
from tff_agg.experiment.study.results import Results
from tff_agg.experiment.study.statistics import FEWEST_SEEDS, gain
from tff_agg.experiment.study.train import saved
from tff_agg.fields import described
from tff_agg.privacy import Plan
from tff_agg.recycling.methods import Method

METRIC = StackOverflow.metrics[0]
PERIOD = 100
# One period of the shift: each phase counts the same.
UTA_INF = Use((Method("uta", PERIOD),))
EXAMPLES: Mapping[str, int] = {"heldout": 1000, "test": 3000}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "original": {},
    "periodic shift": {"pds": True, "pds_period": PERIOD},
}
LAST: Mapping[str, Any] = {"averager": "last"}
SCHEDULE_FREE: Mapping[str, Any] = {
    "averager": "schedule_free",
    "step_from": "iterate",
    "server_momentum": 0.0,
}


def _last(momentum: float, rate: float) -> dict[str, Any]:
    return {**LAST, "server_momentum": momentum, "server_learning_rate": rate}


def _schedule_free(rate: float, gamma: float) -> dict[str, Any]:
    return {**SCHEDULE_FREE, "server_learning_rate": rate, "gamma": gamma}


# By setting and name. Each is the best of six candidates on the validation sample, with
# seeds that the demo has not: `study demo_search`, docs/demo_search.csv. 'for UTA_inf'
# is the baseline again, chosen by what UTA_inf makes of its checkpoints.
TRAININGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "original": {
        "baseline": _last(0.95, 0.125),
        "for UTA_inf": _last(0.95, 0.25),
        "schedule-free": _schedule_free(4.0, 6.0),
    },
    "periodic shift": {
        "baseline": _last(0.9, 0.25),
        "for UTA_inf": _last(0.9, 0.5),
        "schedule-free": _schedule_free(4.0, 2.0),
    },
}
#: The lines of each setting: the training, and what is judged of it.
LINES: Mapping[str, tuple[str, Use]] = {
    "DP-FTRL, last iterate": ("baseline", BROADCAST),
    "UTA_inf, same checkpoints": ("baseline", UTA_INF),
    "UTA_inf, rate chosen for it": ("for UTA_inf", UTA_INF),
    "schedule-free training": ("schedule-free", BROADCAST),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes(StudyOptions):
    """What the demo and its search have in common."""

    settings: tuple[str, ...] = described(
        tuple(SETTINGS), "the settings", tuple(SETTINGS)
    )
    rounds: int = described(600, "rounds of each run", at_least=1)
    users: int = described(30_000, "users in the embedded data", at_least=1)
    words: int = described(48, "different words in them", at_least=1)
    store: str = described("", "a token store to train on instead of embedded data")
    epsilon: float = described(8.0, "ε that the noise is made for (known seeds)")

    def prepared(self) -> Self:
        """Returns the options with a token store; made-up data where none is given."""
        if self.store:
            return self
        from stackoverflow.data import preparation

        store = preparation.ensure_store(
            "synthetic",
            None,
            os.path.join(self.out, "data"),
            users=self.users,
            words=self.words,
        )
        return dataclasses.replace(self, store=store)

    def config(self, setting: str, **changes: Any) -> StackOverflowConfig:
        """Returns what all runs of a setting have in common, but for the changes."""
        common: dict[str, Any] = {
            "store": self.store,
            "rounds": self.rounds,
            "clients_per_round": 25,
            "participation": "at_most_once",
            "mechanism": "tree",
            "averager": "last",
            "max_sentences": 8,
            "batch_size": 8,
            "embedding_size": 16,
            "lstm_size": 32,
            "client_learning_rate": 2.0,
            "clip_norm": 0.5,
            "epsilon": self.epsilon,
            "evaluate_every": 20,
            "validation_examples": EXAMPLES["heldout"],
            # UTA_inf is of the checkpoints of all rounds.
            "keep_last": 0,
            # One lane: the same sums, to the last bit, on any number of cores.
            "lanes": 1,
        }
        return StackOverflowConfig(**{**common, **SETTINGS[setting], **changes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo(Sizes):
    """The sizes of the demo."""

    out: str = described("results/demo", "where everything goes")
    seeds: int = described(3, "seeds of each training, from 0 on", at_least=1)
    # Rounds of so small a model keep one core busy, not two.
    processes: int = described(2, "runs side by side on this machine", at_least=1)


def in_last_period(config: RunConfig) -> tuple[int, ...]:
    """Returns the rounds that a run is judged by: the validations of the last period.

    Under the shift the last round alone would show one phase of it.
    """
    return tuple(n for n in validated(config) if n > config.rounds - PERIOD)


def declare(options: Demo) -> Study:
    """Returns the study: four lines for each setting, or fewer if some are the same.

    The noise seeds are known, so that the table is the same wherever it is made. The
    data are made up: there is nobody to protect.
    """
    lines = []
    for setting in options.settings:
        arms = {
            name: Arm(name, options.config(setting), (training,))
            for name, training in TRAININGS[setting].items()
        }
        lines += [Line(setting, n, arms[arm], use) for n, (arm, use) in LINES.items()]

    return Study(
        StackOverflow,
        distinct(lines),
        seeds=tuple(range(options.seeds)),
        train=saved(),
        seeding=known(1000),
        rounds=in_last_period,
        examples=EXAMPLES,
        drawn=lambda line, config: validated(config),
    )


def command(task: type[StackOverflow]) -> Command:
    """Returns the command of the demo."""
    return study.command(Demo, declare, report)


# What it shows.


def report(options: Demo, results: Results) -> Report:
    """Returns the table with gains over the last iterate, the picture, and words."""
    page, count = Report(), len(results.seeds)
    look = {
        "gain ± standard error": show.in_points,
        "seeds better": lambda gain, _: f"{gain.seeds_better} of {count}",
    }
    page.add_lines(
        "table", results, ("setting", "method"), lambda line: line.key, gains=look
    )
    if not count:
        return page
    config = results.config(results.lines[0])
    assert isinstance(config, StackOverflowConfig)
    plan = config.build_plan()
    assert isinstance(plan, Plan)
    curves = [value for line in results.lines for value in results.curve(line).values]
    page.add_curves(
        "accuracy",
        results,
        results.rows(),
        title=f"{noise_in_words(plan)}; mean and standard deviation over {count} "
        "seeds; shaded: what the table is about",
        shaded=(max(0, options.rounds - PERIOD), options.rounds),
        # The climb is not what it is about.
        bottom=METRIC.scale
        * min(max(map(max, curves)) / 2, *(curve[-1] for curve in curves)),
    )
    page.text = "\n".join([
        f"Test accuracy: mean over the last {PERIOD} rounds, ± over seeds; UTA_inf: "
        f"mean of the last {PERIOD} checkpoints; gains in points over the last "
        "iterate, * where they stand clear of the spread.",
        f"{noise_in_words(plan)}: {plan.no_guarantee or 'guaranteed'}",
        "",
        *verdicts(results),
        "",
        f"The runs, with their privacy reports, are in {results.out / 'runs'}; "
        f"{results.out / 'trials.csv'} says which is which.",
    ])  # fmt: skip
    return page


def verdicts(results: Results) -> list[str]:
    """Returns for each line whether its gain stands clear of the seeds' spread."""
    if (count := len(results.seeds)) < FEWEST_SEEDS:
        return [f"{row}: {count} seeds are too few to tell." for row in results.rows()]
    sentences = []
    for line, baseline in results.over_first().items():
        change = gain(results.values(line), results.values(baseline), METRIC)
        place = "stands clear of" if change.clear else "is within"
        sentences.append(
            f"{line.row}: {line.name} changes the test accuracy by "
            f"{METRIC.scale * change.mean:+.2f} points (standard error "
            f"{METRIC.scale * change.error:.2f}, same seeds and clients), which "
            f"{place} the spread."
        )
    return sentences


def noise_in_words(plan: Plan) -> str:
    """Returns in words how much noise there is; of privacy only where there is some."""
    if plan.noise_seed_is_known:
        return f"noise of ε = {plan.nominal_epsilon:.3g}, known seed"
    if plan.no_guarantee:
        return f"privacy: {plan.no_guarantee}"
    return f"user-level ε = {plan.epsilon:.3g} at δ = {plan.delta:g}"

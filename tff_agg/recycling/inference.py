"""Inference aggregation: several checkpoints of one run make one prediction.

Either their parameters are averaged (EMA, UTA, PDA: one model to run) or their outputs
are combined: OPA averages the predicted distributions of the last k checkpoints, OMV
takes the majority of their predicted labels. All of it is post-processing of what
private training has released, and costs no privacy.

Nothing here knows the model. `load(round)` gives a checkpoint's weights (for example
`functools.partial(store.load, name='iterate')`), `predict(weights, examples)` gives
scores. "The last k checkpoints" are the last k that the store has.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tff_agg import averaging, checks
from tff_agg.recycling.metrics import OutputJudge, Values
from tff_agg.recycling.outputs import (
    Examples,
    Load,
    Model,
    OutputScores,
    Predict,
    Predictions,
    aggregate_outputs,
)
from tff_agg.recycling.windows import (
    fold_averagers,
    position_of,
    tail_means,
    window_warnings,
)

__all__ = [
    "Grid",
    "OutputScores",
    "Predictions",
    "Score",
    "aggregate_outputs",
    "ema_baseline",
    "fold_averagers",
    "score_grid",
    "tail_means",
    "window_warnings",
]

Key = TypeVar("Key", bound=Hashable)
Progress = Callable[[str, int, int], None]


class Score(NamedTuple):
    """How one method with one parameter does at one round.

    Attributes:
      method: 'last', 'EMA_baseline', 'EMA_inf', 'UTA_inf', 'PDA', 'OPA' or 'OMV', or
        the name of an averager of your own.
      parameter: β, k or γ; None where there is none.
      round: The newest checkpoint that was used.
      values: The values of the metrics by name.
    """

    method: str
    parameter: float | int | None
    round: int
    values: Values


@dataclasses.dataclass(frozen=True)
class Grid:
    """Which methods to evaluate, with which parameters.

    Attributes:
      uta: The k of UTA_inf.
      outputs: The k of OPA and OMV, which share their forward passes.
      votes: Whether OMV applies: not where outputs are no labels.
      ema: The β of EMA_inf.
      ema_convention: What β means: 'decay' is the weight of the old average (as the
        customary 0.9999 does), 'weight' is that of the newest checkpoint.
      ema_warm_up: Whether β is at most (1 + t) / (10 + t) in step t.
      pda: The γ of PDA.
      baseline: Whether to include EMA_baseline: β = 0.9999, untuned.
      averagers: Further averagers, by name.

    Example:
      >>> Grid(uta=(3, 5), ema=(0.95,)).methods()
      [('UTA_inf', 3), ('UTA_inf', 5), ('EMA_inf', 0.95), ('EMA_baseline', None)]
    """

    uta: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    votes: bool = True
    ema: tuple[float, ...] = ()
    ema_convention: str = "decay"
    ema_warm_up: bool = True
    pda: tuple[float, ...] = ()
    baseline: bool = True
    averagers: Mapping[str, averaging.Averager] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self):
        for name in ("uta", "outputs"):
            for k in getattr(self, name):
                checks.whole(name, k)
        checks.choice("ema_convention", self.ema_convention, ("decay", "weight"))

    def methods(self) -> list[tuple[str, float | int | None]]:
        """Lists (method, parameter), without the last checkpoint itself."""
        found: list[tuple[str, float | int | None]] = [("UTA_inf", k) for k in self.uta]
        for method in ("OPA", "OMV") if self.votes else ("OPA",):
            found += [(method, k) for k in self.outputs]
        return found + list(self.folded())

    def folded(self) -> dict[tuple[str, float | int | None], averaging.Averager]:
        """Returns what is folded over all checkpoints, by (method, parameter)."""
        found: dict[tuple[str, float | int | None], averaging.Averager] = {}
        for beta in self.ema:
            weight = {self.ema_convention: beta}
            found["EMA_inf", beta] = averaging.ema(**weight, warm_up=self.ema_warm_up)
        if self.baseline:
            found["EMA_baseline", None] = ema_baseline()
        for gamma in self.pda:
            found["PDA", gamma] = averaging.pda(gamma)
        for name, averager in self.averagers.items():
            found[name, None] = averager
        return found


def ema_baseline() -> averaging.Averager:
    """Returns the moving average of earlier work: decay 0.9999, warmed up, not tuned.

    Example:
      >>> ema_baseline().name
      'ema(decay=0.9999, warm_up)'
    """
    return averaging.ema(decay=0.9999, warm_up=True)


def score_grid(
    load: Load[Model],
    members: Sequence[int],
    rounds: Sequence[int],
    grid: Grid,
    *,
    score: Callable[[Model], Values],
    judge: OutputJudge | None = None,
    predict: Predict[Model] | None = None,
    examples: Examples = (),
    classes: int = 0,
    positions_per_example: int = 1,
    memory_budget: int = 1 << 30,
    on_progress: Progress | None = None,
) -> list[Score]:
    """Scores the last checkpoint and every method of a grid, at any rounds.

    Args:
      load: Returns a round's weights.
      members: The rounds that have a checkpoint, in order.
      rounds: Where to score; each one of `members`.
      grid: The methods and their parameters.
      score: `score(weights)` runs one model on all examples: values by name.
      judge: For OPA and OMV, see `aggregate_outputs`; so are the next five.
      predict: Gives a model's scores and the targets.
      examples: The examples for `predict`.
      classes: The number of classes.
      positions_per_example: The most predictions that one example asks for.
      memory_budget: In bytes, for OPA and OMV.
      on_progress: Called with a stage's name, the steps done and the steps in all.

    Returns:
      One score for each method, parameter and round, the last checkpoint first.
    """
    rounds = sorted(set(rounds))
    for number in rounds:
        position_of(members, number)
    report = on_progress or (lambda stage, done, total: None)
    scores = []
    folded = grid.folded()
    total = len(rounds) * (1 + len(grid.uta) + len(folded))
    done = 0

    def run(method: str, parameter: float | None, number: int, weights: Model) -> None:
        nonlocal done
        scores.append(Score(method, parameter, number, score(weights)))
        done += 1
        report("models", done, total)

    for number in rounds:
        run("last", None, number, load(number))
        for k, mean in tail_means(load, members, number, grid.uta):
            run("UTA_inf", k, number, mean)
    if folded and rounds:
        stream = ((m, load(m)) for m in members)
        for number, (method, parameter), mean in fold_averagers(folded, stream, rounds):
            run(method, parameter, number, mean)
    if grid.outputs and rounds:
        if predict is None:
            raise ValueError("predict is needed for OPA and OMV (grid.outputs).")
        found = aggregate_outputs(
            load,
            members,
            rounds,
            grid.outputs,
            predict,
            examples,
            classes=classes,
            judge=judge,
            positions_per_example=positions_per_example,
            memory_budget=memory_budget,
            on_progress=lambda done, total: report("outputs", done, total),
        )
        scores += [
            Score(method, k, number, values)
            for (method, number, k), values in found.values.items()
            if method != "OMV" or grid.votes
        ]
    return scores

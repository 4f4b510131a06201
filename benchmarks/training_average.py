"""When does averaging checkpoints in training help? Noise and stability.

On a quadratic loss of curvature h, a server whose steps start from an average of
checkpoints is a linear filter of the updates, and everything about it is known:

- the noise that is left in the broadcast model, for tree noise;
- the largest rate times curvature at which training is stable;
- the loss that a run ends with, of the start and of the noise.

Windows (UTA_tr) are compared at equal effective learning rate: a step from the mean of
k moves 2 / (k + 1) as far in the end, and momentum 1 / (1 − β) times as far. The
readings of the paper's EMA are compared at the baseline's rate, as the paper does.

    python -m benchmarks.training_average --out=results/training_average

What runs show is in `stackoverflow.studies.readings` and `demo_search`.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_agg import averaging, noise, server
from tff_agg.averaging import Averager
from tff_agg.experiment import commands
from tff_agg.fields import described

MOMENTA = (0.0, 0.5, 0.9, 0.95)
WINDOWS = (1, 3, 5, 10)
CURVATURES = (0.0, 0.1)
RECYCLED = 10
# For the largest stable rate: how many rounds a run has to turn.
_TURNING = 3000
#: The paper's momentum, and the readings of its averages in training.
MOMENTUM = 0.95
READINGS: Mapping[str, Averager] = {
    "EMA_tr printed": averaging.ema(weight=0.95, warm_up=True),
    "EMA_tr newest": averaging.ema(weight=0.95),
    "EMA_tr old average": averaging.ema(decay=0.95, warm_up=True),
    "UTA_tr, k = 3": averaging.uta(3),
}
#: The steepest and flattest curvatures of losses; the baseline's effective rate is 1.
STEEPEST, FLATTEST, _DIRECTIONS = (1.0, 0.05), 1e-3, 5
# Of the last rounds, over which a loss is the mean: tree noise differs from round to
# round.
_TAIL = 64


def window(k: int, momentum: float) -> server.ServerStep:
    """Returns the step from the mean of the last k, at effective rate 1."""
    rate = (1 - momentum) * (k + 1) / 2
    return server.server_step(
        server.momentum(momentum), averaging.uta(k), learning_rate=rate
    )


def responses(
    step: server.ServerStep, curvature: float, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how much of the start and of each round's noise models carry.

    Args:
      step: The server's.
      curvature: h, so that the gradient at θ is h·θ.
      rounds: How many.

    Returns:
      Two matrices [rounds, 1 + rounds]: row t is how θ_{t+1}, and the model that is
      broadcast, depend on the start and on the noise of each round.
    """
    aggregate, *noises = np.eye(1 + rounds)
    state = step.init(aggregate)
    iterates, aggregates = [], []
    for t, own_noise in enumerate(noises):
        state, aggregate = step.next(
            state, aggregate, curvature * aggregate + own_noise, t
        )
        iterates.append(state["iterate"])
        aggregates.append(aggregate)
    return np.array(iterates), np.array(aggregates)


def _tails(models: np.ndarray, window: int) -> np.ndarray:
    """Returns the means of the last models up to each."""
    if window == 1:
        return models
    ends = range(1, len(models) + 1)
    return np.array([models[max(0, t - window) : t].mean(0) for t in ends])


@functools.cache
def _correlation(rounds: int) -> np.ndarray:
    return np.linalg.inv(noise.tree().matrix(rounds))


def noise_left(
    step: server.ServerStep, curvature: float, rounds: int, recycled: int = 1
) -> float:
    """Returns the RMS of tree noise in the model, over the second half of a run.

    Args:
      step: As in `responses`.
      curvature: As in `responses`.
      rounds: As in `responses`.
      recycled: How many stored iterates are averaged afterwards; 1 looks at the
        broadcast model itself.
    """
    iterates, models = responses(step, curvature, rounds)
    if recycled > 1:
        models = _tails(iterates, recycled)
    squares = np.square(models[:, 1:] @ _correlation(rounds)).sum(axis=1)
    return float(np.sqrt(squares[rounds // 2 :].mean()))


def stability_limit(step: server.ServerStep) -> float:
    """Returns the least curvature at which training diverges.

    A run of every curvature of a grid is looked at in the middle and at its end.
    """
    grid = np.geomspace(0.02, 5000.0, 5500)
    aggregate = np.ones_like(grid)
    state = step.init(aggregate)
    largest = []
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(_TURNING):
            state, aggregate = step.next(state, aggregate, grid * aggregate, t)
            largest.append(np.abs(aggregate))
        some = _TURNING // 10
        middle = np.max(largest[_TURNING // 2 - some : _TURNING // 2], axis=0)
        falls = np.max(largest[-some:], axis=0) < middle
    # A run that has come down to nothing falls no more.
    return float(grid[~(falls | (middle < 1e-200))][0])


def analyse(rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each momentum and window."""
    rows = []
    for momentum, k in itertools.product(MOMENTA, WINDOWS):
        row: dict[str, Any] = {"momentum": momentum, "k": k}
        for curvature in CURVATURES:
            without = window(1, momentum)
            plain = noise_left(without, curvature, rounds)
            own = noise_left(window(k, momentum), curvature, rounds)
            after = noise_left(without, curvature, rounds, RECYCLED)
            row[f"noise at h={curvature:g}"] = own / plain
            row[f"UTA_inf at h={curvature:g}"] = after / plain
        row["stable up to"] = stability_limit(window(k, momentum))
        rows.append(row)
    return rows


def reading(averager: Averager, step_from: str, rate: float = 1.0) -> server.ServerStep:
    """Returns the step of an average in training at the baseline's rate."""
    return server.server_step(
        server.momentum(MOMENTUM),
        averager,
        learning_rate=rate * (1 - MOMENTUM),
        step_from=step_from,
    )


def parts_of_loss(
    step: server.ServerStep, rounds: int, steepest: float, recycled: int = 1
) -> tuple[float, float]:
    """Returns the loss that is left of a unit start, and that of unit tree noise.

    Both are sums over some curvatures, and means over the last rounds.

    Args:
      step: The server's.
      rounds: How many.
      steepest: The largest curvature.
      recycled: How many broadcast models are averaged afterwards.
    """
    of_start = of_noise = 0.0
    for curvature in np.geomspace(FLATTEST, steepest, _DIRECTIONS):
        _, models = responses(step, curvature, rounds)
        models = _tails(models, recycled)[-_TAIL:]
        noises = models[:, 1:] @ _correlation(rounds)
        of_start += curvature * np.square(models[:, 0]).mean()
        of_noise += curvature * np.square(noises).sum(axis=1).mean()
    return float(of_start), float(of_noise)


def start_of_best_rate(rounds: int, steepest: float) -> float:
    """Returns the start, squared, from which the baseline's rate is its best.

    There its loss does not change with the rate, to first order.
    """
    low, high = (
        parts_of_loss(reading(averaging.last(), "aggregate", rate), rounds, steepest)
        for rate in (0.95, 1.05)
    )
    return (high[1] - low[1]) / (low[0] - high[0])


def analyse_readings(rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each reading: what it ends with at the baseline's best rate."""
    baseline = reading(averaging.last(), "aggregate")
    ways = {("baseline", "aggregate"): baseline} | {
        (name, origin): reading(averager, origin)
        for name, averager in READINGS.items()
        for origin in ("aggregate", "iterate")
    }
    rows: list[dict[str, Any]] = [
        {"training": name, "steps from": origin} for name, origin in ways
    ]
    for steepest in STEEPEST:
        start = start_of_best_rate(rounds, steepest)
        losses = []
        for row, step in zip(rows, ways.values(), strict=True):
            for model, recycled in (("loss", 1), ("with UTA_inf", RECYCLED)):
                of_both = parts_of_loss(step, rounds, steepest, recycled)
                losses.append(start * of_both[0] + of_both[1])
                row[f"{model}, h to {steepest:g}"] = losses[-1] / losses[0]
    for row, step in zip(rows, ways.values(), strict=True):
        row["stable up to"] = stability_limit(step)
    return rows


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws both findings on windows over the momentum."""
    from tff_agg.experiment.study import figures

    figure, axes = figures.new_figure(2, share_y=False)
    column = f"noise at h={CURVATURES[-1]:g}"
    places = range(len(MOMENTA))
    for k in WINDOWS:
        own = [row for row in rows if row["k"] == k]
        name = "no averaging" if k == 1 else f"UTA_tr, k = {k}"
        axes[0].plot(places, [row[column] for row in own], "o-", label=name)
        axes[1].plot(places, [row["stable up to"] for row in own], "o-", label=name)
    first = [row for row in rows if row["k"] == 1]
    axes[0].plot(
        places,
        [row[f"UTA_inf at h={CURVATURES[-1]:g}"] for row in first],
        "s--", color="black", label=f"UTA_inf, k = {RECYCLED}",
    )  # fmt: skip
    axes[0].set_ylabel("noise in the model, relative to no averaging")
    axes[1].set_ylabel("largest stable rate × curvature")
    axes[1].set_yscale("log")
    for axis in axes:
        axis.set_xticks(places, [f"{momentum:g}" for momentum in MOMENTA])
        axis.set_xlabel("server momentum")
        axis.grid(alpha=0.3)
    figures.legends(figure, axes)
    figures.save(figure, path)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is analysed."""

    out: str = described("results/training_average", "where everything goes")
    rounds: int = described(128, "rounds of the run with windows", at_least=1)
    readings_rounds: int = described(
        1024, "rounds of the runs with the readings", at_least=4 * _TAIL
    )


def main(options: Options) -> int:
    """Prints the tables; writes JSON and the picture."""
    from tff_agg.experiment.study import show

    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = analyse(options.rounds)
    draw(rows, out / "training_average.png")
    readings = analyse_readings(options.readings_rounds)
    for table in (rows, readings):
        cells = [
            [v if isinstance(v, str) else f"{v:.3g}" for v in row.values()]
            for row in table
        ]
        print(show.render(show.Table(list(table[0]), cells)), end="\n\n")
    report = {"options": dataclasses.asdict(options), "filter": rows}
    (out / "training_average.json").write_text(
        json.dumps({**report, "readings": readings}, indent=2)
    )
    return 0


if __name__ == "__main__":
    commands.run(
        "python -m benchmarks.training_average",
        __doc__ or "",
        commands.Command(main, (Options,), tensorflow=False),
        sys.argv[1:],
    )

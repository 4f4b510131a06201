"""When does averaging checkpoints in training help? Noise and stability.

A server step from the mean of the last k checkpoints, with momentum β, is a linear
filter of the updates. For a quadratic loss of curvature h everything about it is known:

- the noise that is left in the broadcast model, for tree noise, at equal effective
  learning rate (a step from the mean of k moves 2 / (k + 1) as far in the end, and
  momentum 1 / (1 − β) times as far);
- the largest effective learning rate times curvature at which training is stable.

    python -m benchmarks.training_average --out=results/training_average

What runs show, with and without momentum, is in `stackoverflow.studies.demo_search`.
"""

import dataclasses
import itertools
import json
import pathlib
import sys
from typing import Any

import numpy as np

from tff_agg import noise
from tff_agg.experiment import commands
from tff_agg.fields import described

MOMENTA = (0.0, 0.5, 0.9, 0.95)
WINDOWS = (1, 3, 5, 10)
CURVATURES = (0.0, 0.1)
RECYCLED = 10


def responses(
    k: int, momentum: float, curvature: float, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how much of each round's noise iterates and broadcasts carry.

    Args:
      k: How many checkpoints are averaged in training; 1 for none.
      momentum: β of the server.
      curvature: h, so that the gradient at θ is h·θ.
      rounds: How many.

    Returns:
      Two matrices [rounds, rounds]: row t is how θ_{t+1}, and the mean that is
      broadcast, depend on the noise of each round, at effective learning rate 1.
    """
    rate = (1 - momentum) * (k + 1) / 2
    iterates = [np.zeros(rounds)]
    means, velocity = [np.zeros(rounds)], np.zeros(rounds)
    for own_noise in np.eye(rounds):
        velocity = momentum * velocity + curvature * means[-1] + own_noise
        iterates.append(means[-1] - rate * velocity)
        means.append(np.mean(iterates[-k:], axis=0))
    return np.array(iterates[1:]), np.array(means[1:])


def noise_left(
    k: int, momentum: float, curvature: float, rounds: int, recycled: int = 1
) -> float:
    """Returns the RMS of tree noise in the model, over the second half of a run.

    Args:
      k: As in `responses`.
      momentum: As in `responses`.
      curvature: As in `responses`.
      rounds: As in `responses`.
      recycled: How many stored iterates are averaged afterwards; 1 looks at the
        broadcast model itself.
    """
    iterates, means = responses(k, momentum, curvature, rounds)
    if recycled > 1:
        means = np.array(
            [iterates[max(0, t - recycled + 1) : t + 1].mean(0) for t in range(rounds)]
        )
    correlation = np.linalg.inv(noise.tree().matrix(rounds))
    squares = np.square(means @ correlation).sum(axis=1)
    return float(np.sqrt(squares[rounds // 2 :].mean()))


def is_stable(k: int, momentum: float, product: float) -> bool:
    """Returns whether training converges at this effective rate times curvature."""
    rate = product * (1 - momentum) * (k + 1) / 2
    mean = np.append(np.full(k, 1 / k), 0.0)
    velocity = mean + momentum * np.eye(k + 1)[k]
    moves = np.zeros((k + 1, k + 1))
    moves[0] = mean - rate * velocity
    moves[1:k, : k - 1] = np.eye(k - 1)
    moves[k] = velocity
    return float(np.abs(np.linalg.eigvals(moves)).max()) < 1


def stability_limit(k: int, momentum: float) -> float:
    """Returns the least effective rate times curvature at which training diverges."""
    grid = np.geomspace(0.05, 500.0, 4000)
    return float(next(x for x in grid if not is_stable(k, momentum, x)))


def analyse(rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each momentum and window."""
    rows = []
    for momentum, k in itertools.product(MOMENTA, WINDOWS):
        row: dict[str, Any] = {"momentum": momentum, "k": k}
        for curvature in CURVATURES:
            plain = noise_left(1, momentum, curvature, rounds)
            own = noise_left(k, momentum, curvature, rounds)
            after = noise_left(1, momentum, curvature, rounds, RECYCLED)
            row[f"noise at h={curvature:g}"] = own / plain
            row[f"UTA_inf at h={curvature:g}"] = after / plain
        row["stable up to"] = stability_limit(k, momentum)
        rows.append(row)
    return rows


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws both findings over the momentum."""
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
    rounds: int = described(128, "rounds of the analysed run", at_least=1)


def main(options: Options) -> int:
    """Prints the tables; writes JSON and the picture."""
    from tff_agg.experiment.study import show

    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = analyse(options.rounds)
    cells = [[f"{value:.3g}" for value in row.values()] for row in rows]
    print(show.render(show.Table(list(rows[0]), cells)))
    draw(rows, out / "training_average.png")
    report = {"rounds": options.rounds, "filter": rows}
    (out / "training_average.json").write_text(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    commands.run(
        "python -m benchmarks.training_average",
        __doc__ or "",
        commands.Command(main, (Options,), tensorflow=False),
        sys.argv[1:],
    )

"""Error bars from one run's checkpoints, where the truth is exact: on quadratics.

Noisy gradient descent with momentum on ½hθ², with the noise of each mechanism. Every
iterate is then a linear function of the mechanism's normals, so that the standard
deviation of the last one is known exactly. Beside it stands what checkpoints of a
single run say: the last ten as they follow each other, and ten as far apart as
`tff_agg.recycling.separation` takes them, with its widening. A run is `--predictions`
such problems with their own noise, each beginning with a climb. h is given as the share
of θ that a round forgets; 'mixed' predictions are sums of 1e-4, 1e-3, 0.01 and 0.1.

    python -m benchmarks.error_bars
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from benchmarks import programs
from tff_agg import noise
from tff_agg.fields import described
from tff_agg.noise import workloads
from tff_agg.noise.mechanism import Mechanism
from tff_agg.recycling import separation

MIXED = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """How a run is trained.

    Attributes:
      name: Of the mechanism.
      mechanism: Its noise.
      momentum: Of the server.
    """

    name: str
    mechanism: Mechanism
    momentum: float


class Bars(NamedTuple):
    """Standard deviations of ten checkpoints over the exact one of the last iterate.

    Attributes:
      consecutive: Of the last ten.
      apart: Of ten that are `separation` rounds apart.
      widened: The same, widened.
      separation: In rounds.
    """

    consecutive: float
    apart: float
    widened: float
    separation: int


def settings(rounds: int) -> list[Setting]:
    """Returns the mechanisms, each with momentum 0 and 0.95."""
    return [
        Setting(name, mechanism, momentum)
        for momentum in (0.0, 0.95)
        for name, mechanism in (
            ("identity", noise.identity()),
            ("tree", noise.tree("honaker", rounds)),
            ("blt", noise.blt(rounds, 3, workload=workloads.momentum(momentum))),
        )
    ]


def iterates_of(setting: Setting, curvature: float, rounds: int) -> np.ndarray:
    """Returns the matrix from a mechanism's normals to θ_1, …, θ_rounds."""
    response = np.zeros(rounds)
    theta = velocity = 0.0
    for t in range(rounds):
        gradient = (1.0 - setting.momentum) * curvature * theta
        velocity = setting.momentum * velocity + gradient + (t == 0)
        theta -= velocity
        response[t] = theta
    lag = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    workload = np.where(lag >= 0, response[np.abs(lag)], 0.0)
    return workload @ _inverse(setting, rounds)


@functools.lru_cache
def _inverse(setting: Setting, rounds: int) -> np.ndarray:
    """Returns C⁻¹, which takes longer than all else, once for all curvatures."""
    return np.linalg.inv(setting.mechanism.matrix(rounds))


def run(
    setting: Setting,
    curvatures: tuple[float, ...],
    rounds: int,
    predictions: int,
    *,
    climb: float = 1.0,
    seed: int = 0,
) -> Bars:
    """Trains once and compares the bars with the exact standard deviation.

    Args:
      setting: How.
      curvatures: What a prediction is the sum of, all of the same variance.
      rounds: How long.
      predictions: How many.
      climb: Of every prediction over the logarithm of the rounds, in units of its
        standard deviation in the last round.
      seed: Of the noise.
    """
    rng = np.random.default_rng(seed)
    values = np.zeros((rounds, predictions))
    for curvature in curvatures:
        matrix = iterates_of(setting, curvature, rounds)
        exact = np.sqrt((matrix[-1] ** 2).sum() * len(curvatures))
        values += matrix @ rng.standard_normal((rounds, predictions)) / exact
    towards = climb * rng.standard_normal(predictions)
    values += np.log(np.arange(1, rounds + 1))[:, None] * towards
    # Rounds count from 1, as checkpoints do.
    compared = separation.rounds_to_compare(range(1, rounds + 1))
    rows = np.array(compared) - 1
    memory = separation.memory_of(values[rows], compared, total=rounds)
    assert memory is not None
    apart = values[np.array(memory.checkpoints(10)) - 1]

    def deviation(checkpoints: np.ndarray) -> float:
        return float(np.sqrt(checkpoints.var(axis=0, ddof=1).mean()))

    spread = deviation(apart)
    return Bars(
        deviation(values[-10:]),
        spread,
        memory.widening(apart) * spread,
        memory.separation,
    )


@dataclasses.dataclass(frozen=True)
class Options:
    """What is simulated."""

    rounds: int = described(1000, "rounds of a run", at_least=100)
    predictions: int = described(300, "predictions", at_least=2)
    runs: int = described(
        1, "runs of each kind; figures are means, ± the standard deviation", at_least=1
    )
    forgotten: tuple[float, ...] = described(
        (0.0, *MIXED), "the shares of θ that a round forgets; 0 is a random walk"
    )


def main(options: Options) -> None:
    """Simulates and prints."""
    rounds = options.rounds
    curvatures: list[tuple[float, ...]] = [(share,) for share in options.forgotten]
    if set(MIXED) <= set(options.forgotten):
        curvatures.append(MIXED)

    def several(setting: Setting, of: tuple[float, ...]) -> np.ndarray:
        seeds = range(options.runs)
        return np.array(
            [run(setting, of, rounds, options.predictions, seed=s) for s in seeds]
        )

    programs.tell(
        "noise | momentum | forgotten | last ten | apart | by | widened",
        "{of} | {mean[0]:.2f} | {mean[1]:.2f} | {mean[3]:.0f} | {mean[2]:.2f}{spread}",
        (
            {
                "of": f"{setting.name} | {setting.momentum} | "
                + ("mixed" if len(of) > 1 else f"{of[0]:g}"),
                "mean": bars.mean(axis=0),
                "spread": f" ± {bars[:, 2].std():.2f}" if options.runs > 1 else "",
            }
            for setting in settings(rounds)
            for of in curvatures
            for bars in [several(setting, of)]
        ),
        f"{rounds} rounds; standard deviations over the exact one",
    )


if __name__ == "__main__":
    programs.start(__spec__, __doc__, main, Options)

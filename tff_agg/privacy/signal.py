"""How much noise a run has, against all that its clients can contribute.

One round's mean nearly always has more noise than signal; what counts is the sum over
rounds, in which correlated noise cancels and updates add up. `Signal.ratio` compares
the two: the norm of the noise in the model, a mean over all rounds, with how far the
model would be moved if all clients pulled one way in every round, each as far as its
clip norm lets it.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg

from tff_agg.noise.mechanism import Mechanism
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.recipe import PrivacyRecipe

#: Above it no run that we know of has learnt what is worth having: on the mailing lists
#: and on a chat archive, models of 64,000 to 157,000 parameters learnt well at 0.02 and
#: 0.07, little at 0.12, and ended below always the most frequent word at 0.16.
HOPELESS = 0.1
# Matrices of more rounds take long, and say nothing new.
_MOST_ROUNDS = 2048


class Norms(NamedTuple):
    """The root mean square of unit noise, over the rounds.

    Attributes:
      step: In one round's sum.
      model: In the sum of all rounds so far.
    """

    step: float
    model: float


class Signal(NamedTuple):
    """Norms of noise and of updates, of a round's mean and of the whole model.

    Attributes:
      noise: Of the noise in one round's mean, over all parameters.
      most: The most that the clients' mean can be: the clip norm.
      ratio: The noise in the model over the most that all rounds could move it.
    """

    noise: float
    most: float
    ratio: float

    @classmethod
    def of(cls, plan: Plan, parameters: int) -> "Signal":
        """Returns it for a plan and a model of so many parameters."""
        unit = plan.noise_stddev / plan.cohort_size * math.sqrt(parameters)
        rounds = min(plan.rounds, _MOST_ROUNDS)
        found = norms(plan.mechanism, rounds)
        return cls(
            unit * found.step,
            plan.clip_norm,
            # Of more rounds than were looked at: noise grows no faster than √rounds.
            unit * found.model / (plan.clip_norm * math.sqrt(rounds * plan.rounds)),
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing is to be expected of the run."""
        return self.ratio > HOPELESS

    def describe(self) -> str:
        """Says it in a line.

        Example:
          >>> Signal(61.2, 0.3, 0.158).describe()
          'noise 61.2 against at most 0.3 in a round; 15.8 % of the signal in the model'
        """
        return (
            f"noise {self.noise:.3g} against at most {self.most:.3g} in a round; "
            f"{100 * self.ratio:.3g} % of the signal in the model"
        )


def told(
    plan: Plan, parameters: int, recipe: PrivacyRecipe | None, population: int
) -> list[str]:
    """Returns what to say of a plan before its first round, a warning where needed.

    Args:
      plan: The plan.
      parameters: Of the model.
      recipe: What the plan was made from, where it is known.
      population: How many users there are.
    """
    if not plan.noise_multiplier:
        return []
    found = Signal.of(plan, parameters)
    lines = [f"Noise and signal: {found.describe()}."]
    if found.is_hopeless:
        lines.append(
            "Warning: this run is not expected to learn: the noise in the model is "
            f"above {HOPELESS:.0%} of all that the updates can move it. What helps: "
            "a larger --epsilon, a smaller model, more rounds, more users."
        )
        for flags, ratio in remedies(recipe, parameters, population) if recipe else ():
            verdict = "still too much" if ratio > HOPELESS else "may learn"
            lines.append(f"With {flags} it is {100 * ratio:.3g} %: {verdict}.")
    return lines


def norms(mechanism: Mechanism, rounds: int) -> Norms:
    """Returns the root mean squares of a mechanism's noise over so many rounds.

    Example:
      >>> norms(tff_agg.noise.identity(), 4)
      Norms(step=1.0, model=1.5811388300841898)
    """
    steps = _steps(mechanism, rounds)
    return Norms(_rms_of_rows(steps), _rms_of_rows(np.cumsum(steps, axis=0)))


def _steps(mechanism: Mechanism, rounds: int) -> np.ndarray:
    """Returns the matrix that turns independent noise into that of the rounds."""
    if mechanism.decoder is not None:
        return mechanism.decoder(rounds)
    if mechanism.toeplitz is not None:
        from scipy import signal

        pulse = np.zeros(rounds)
        pulse[0] = 1.0
        column = signal.lfilter([1.0], mechanism.toeplitz(rounds), pulse)
        return np.asarray(linalg.toeplitz(column, np.zeros(rounds)))
    return linalg.solve_triangular(mechanism.matrix(rounds), np.eye(rounds), lower=True)


def _rms_of_rows(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix)) / math.sqrt(len(matrix))


def remedies(
    recipe: PrivacyRecipe, parameters: int, population: int
) -> Iterator[tuple[str, float]]:
    """Yields what would help a run with too much noise, and the ratio that it gives.

    Args:
      recipe: The run's; `epsilon` is kept where it is given.
      parameters: Of the model.
      population: How many users there are.

    Yields:
      Flags and the `Signal.ratio` with them, the ones that change least first; each
      is better than those before it, and the first better than the run's own.
    """
    best = Signal.of(recipe.build_plan(), parameters).ratio
    asked: list[dict[str, object]] = []
    better = {"mechanism": "blt", "server_momentum": 0.0}
    if any(getattr(recipe, name) != value for name, value in better.items()):
        asked.append(better)
    asked += [
        better | _larger(recipe, factor, population)
        for factor in (2, 4, 16)
        if factor * recipe.clients_per_round <= population
    ]
    for changes in asked:
        known = {k: v for k, v in changes.items() if hasattr(recipe, k)}
        try:
            plan = dataclasses.replace(recipe, **known).build_plan()  # type: ignore[arg-type]
        except ValueError:
            continue
        ratio = Signal.of(plan, parameters).ratio
        if ratio >= best:
            continue
        best = ratio
        flags = " ".join(
            f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"
            for name, value in changes.items()
            if getattr(recipe, name) != value
        )
        yield flags, ratio


def _larger(recipe: PrivacyRecipe, factor: int, population: int) -> dict[str, object]:
    """Returns the settings of a larger cohort that so many users are enough for."""
    cohort = factor * recipe.clients_per_round
    return {
        "clients_per_round": cohort,
        "min_separation": max(1, population // cohort),
        "max_participations": None,
        "participation": "min_separation",
    }

"""Which shape a run should have: rounds, users in a round, how often a user comes.

At one ε, more users in a round and more rounds both leave less noise in the model for
what the updates can move it, and both cost time. `grid` compares shapes, `recommend`
chooses one for the time that there is, and `expected_excess` is the one rule behind the
choice.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tff_agg import checks
from tff_agg.privacy.recipe import PrivacyRecipe
from tff_agg.privacy.signal import Signal

ROUNDS = (100, 250, 500, 1000, 2000)
CLIENTS = (50, 100, 200, 400, 800, 1600, 3200)
#: Shapes take no more than that of a user where nobody says how long they may take:
#: users in all rounds together. A thousand rounds of a hundred.
USER_ROUNDS = 100_000


class Shape(NamedTuple):
    """A shape and what it leaves of the signal.

    Attributes:
      rounds: How many.
      clients: Users in each.
      separation: The least distance of two rounds of one user.
      participations: The most rounds of one user.
      ratio: As `Signal.ratio`, for the number of parameters that was asked for.
      seconds: How long it takes; None where that is not known.
      examples: Of one user in one round, if that can be chosen.
    """

    rounds: int
    clients: int
    separation: int
    participations: int
    ratio: float
    seconds: float | None = None
    examples: float | None = None

    @property
    def settings(self) -> dict[str, int | None]:
        """The fields of a recipe that it decides."""
        again = self.participations > 1
        return {
            "rounds": self.rounds,
            "clients_per_round": self.clients,
            "min_separation": self.separation if again else None,
        }


def shape(
    population: int,
    rounds: int,
    clients: int,
    *,
    epsilon: float,
    delta: float = 1e-6,
    parameters: int = 1,
    seconds_per_client: float | None = None,
    noise_cache: str | None = None,
) -> Shape:
    """Returns the shape of so many rounds and clients, users as far apart as can be.

    Args:
      population: How many users there are.
      rounds: How many rounds.
      clients: Users in a round; not more than there are.
      epsilon: The ε to keep, for BLT noise made for prefix sums.
      delta: Its δ.
      parameters: Of the model.
      seconds_per_client: What one user costs in one round.
      noise_cache: Where optimised mechanisms are kept.
    """
    if checks.whole("clients", clients) > population:
        raise ValueError(f"clients={clients} must be at most population={population}")
    separation = farthest(population, clients, rounds)
    recipe = PrivacyRecipe(
        rounds=rounds,
        clients_per_round=clients,
        min_separation=separation,
        epsilon=epsilon,
        delta=delta,
        mechanism="blt",
        server_momentum=0.0,
        noise_cache=noise_cache,
    )
    return Shape(
        rounds,
        clients,
        separation,
        recipe.stretch.participations,
        Signal.of(recipe.build_plan(), parameters).ratio,
        None if seconds_per_client is None else rounds * clients * seconds_per_client,
    )


def farthest(population: int, clients: int, rounds: int) -> int:
    """Returns the largest separation that so many users are enough for.

    Example:
      >>> farthest(population=4381, clients=100, rounds=300)
      43
    """
    return max(1, min(population // clients, rounds))


def grid(
    population: int,
    *,
    epsilon: float,
    delta: float = 1e-6,
    parameters: int = 1,
    seconds_per_client: float | None = None,
    rounds: Iterable[int] = ROUNDS,
    clients: Iterable[int] = CLIENTS,
    noise_cache: str | None = None,
) -> list[Shape]:
    """Returns the shapes of all pairs of rounds and clients that the users allow."""
    return [
        shape(
            population, number, size, epsilon=epsilon, delta=delta,
            parameters=parameters, seconds_per_client=seconds_per_client,
            noise_cache=noise_cache,
        )
        for number in rounds
        for size in sorted({min(size, population) for size in clients})
    ]  # fmt: skip


def expected_excess(ratio: float, rounds: int, examples: float | None = None) -> float:
    """Returns how far a loss is expected to be above the best, to compare shapes.

    Three parts: what the noise in the model costs, in units of the clip norm, what too
    few rounds cost, and what too little of each user's data costs. The numbers are a
    fit to seventeen runs of a small LSTM on mailing lists (docs/shapes.md); only
    differences mean anything.

    Args:
      ratio: `Signal.ratio`.
      rounds: How many rounds.
      examples: Of one user in one round, if that can be chosen.
    """
    of_data = 0.0 if examples is None else 0.79 / math.sqrt(examples)
    return 0.01 * ratio * rounds + 7.0 / math.sqrt(rounds) + of_data


def recommend(shapes: Sequence[Shape], seconds: float | None = None) -> Shape:
    """Returns the best shape within the time, or within `USER_ROUNDS`; see the rule.

    Args:
      shapes: As `grid` returns them.
      seconds: The time that there is; shapes must know theirs.

    Raises:
      ValueError: None of them fits.
    """
    if seconds is None:
        fitting = [s for s in shapes if s.rounds * s.clients <= USER_ROUNDS]
    else:
        fitting = [s for s in shapes if (s.seconds or math.inf) <= seconds]
    if not fitting:
        shortest = min(shapes, key=lambda s: (s.rounds * s.clients, s.rounds))
        took = "" if shortest.seconds is None else f" takes {shortest.seconds:,.0f} s"
        raise ValueError(
            f"no shape fits the time: the smallest, {shortest.rounds} rounds of "
            f"{shortest.clients} users,{took}"
        )
    return min(
        fitting,
        key=lambda s: (
            expected_excess(s.ratio, s.rounds, s.examples),
            s.rounds * s.clients,
        ),
    )

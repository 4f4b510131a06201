"""The server's step: from a round's mean to new weights, and on to their average.

With g the noisy mean, m the momentum and θ the weights,

  m ← decay · m + g
  direction ← m, with Nesterov decay · m + g; or what another optimiser makes of g
  θ_{t+1} ← θ^AGG_t − learning rate · direction (`step_from='aggregate'`, as in
    Algorithm 1 of the paper) or θ_t − learning rate · direction (`'iterate'`: only the
    update is computed at the aggregate)
  θ^AGG_{t+1} ← averager.next(…, θ_{t+1})
"""

import dataclasses
from typing import Any, TypedDict

import numpy as np

from tff_agg import averaging, backends, checks, structure
from tff_agg.aliases import JsonObject, Scalar, Structure
from tff_agg.server.optimisers import Optimiser, momentum
from tff_agg.server.schedules import Schedule
from tff_agg.structure import Form

STEP_FROM_CHOICES = ("aggregate", "iterate")


class State(TypedDict):
    """What the server's step carries from round to round.

    Attributes:
      averager: The averager's state.
      iterate: θ_t.
      optimiser: The optimiser's state.
    """

    averager: Any
    iterate: Any
    optimiser: Structure


@dataclasses.dataclass(frozen=True, eq=False)
class ServerStep:
    """The step, as two functions over structures: `init` and `next`.

    Attributes:
      optimiser: From means to directions.
      averager: The aggregation of checkpoints in training.
      learning_rate: The server's learning rate, a number or a schedule.
      step_from: Where a step starts: 'aggregate' or 'iterate'.

    Example:
      >>> step = server_step(averager=averaging.uta(2), learning_rate=0.5)
      >>> state = step.init(np.zeros(1))
      >>> state, aggregate = step.next(state, np.zeros(1), np.ones(1), round=0)
      >>> state['iterate'], aggregate
      (array([-0.5]), array([-0.25]))
    """

    optimiser: Optimiser
    averager: averaging.Averager
    learning_rate: float | Schedule
    step_from: str

    def init(self, theta: Structure) -> State:
        """Returns the state before the first round, from θ_0."""
        return {
            "averager": self.averager.init(theta),
            "iterate": theta,
            "optimiser": self.optimiser.init(theta),
        }

    def next(
        self, state: State, aggregate: Form, mean: Form, round: Scalar
    ) -> tuple[State, Form]:
        """Takes the step of a round.

        Args:
          state: The state before.
          aggregate: θ^AGG_t, where the mean's updates were computed.
          mean: The round's (noisy) mean.
          round: t, as the noisy mean's state has it before the round.

        Returns:
          The state after, and θ^AGG_{t+1}.
        """
        structure.check_alike(mean, aggregate, "mean", "the model has")
        optimiser, direction = self.optimiser.next(state["optimiser"], mean, round)
        origin: Any = aggregate
        if self.step_from == "iterate":
            origin = state["iterate"]
        backend = backends.of(origin)
        rate: Any = self.learning_rate
        rate = rate(backend, round) if isinstance(rate, Schedule) else float(rate)
        terms: list[tuple[float, Any]] = [(1.0, origin), (-rate, direction)]
        iterate: Form = backends.combine(backend, terms)
        averager, average = self.averager.next(state["averager"], iterate)
        after: State = {
            "averager": averager,
            "iterate": iterate,
            "optimiser": optimiser,
        }
        return after, average

    def run(self, start: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Returns the checkpoints θ_0, θ_1, … that the rounds' means lead to.

        Args:
          start: θ_0.
          means: [rounds, …].

        Example:
          >>> step = server_step(learning_rate=0.5)
          >>> step.run(np.zeros(1), np.ones((2, 1))).ravel().tolist()
          [0.0, -0.5, -1.0]
        """
        aggregate = np.asarray(start, float)
        state, found = self.init(aggregate), [aggregate]
        for t, mean in enumerate(np.asarray(means, float)):
            state, aggregate = self.next(state, aggregate, mean, t)
            found.append(np.asarray(state["iterate"]))
        return np.stack(found)

    def scaled(self, factor: float) -> "ServerStep":
        """Returns the step with a rate that is so many times as large."""
        rate = self.learning_rate
        larger = rate.scaled(factor) if isinstance(rate, Schedule) else factor * rate
        return dataclasses.replace(self, learning_rate=larger)

    def response(self, rounds: int) -> np.ndarray:
        """Returns [rounds + 1, rounds]: the share of each mean in each checkpoint.

        Raises:
          ValueError: The optimiser is not linear: there are no such shares.
        """
        if not self.optimiser.linear:
            raise ValueError(
                f"optimiser {dict(self.optimiser.parameters)} is not linear: what a "
                "round adds depends on the other rounds"
            )
        return self.run(np.zeros(rounds), np.eye(rounds))

    def to_json(self) -> JsonObject:
        """Returns what identifies the step, its averager left out, as JSON values."""
        rate = self.learning_rate
        return {
            "learning_rate": rate.to_json() if isinstance(rate, Schedule) else rate,
            **self.optimiser.parameters,
            "step_from": self.step_from,
        }


def server_step(
    optimiser: Optimiser | None = None,
    averager: averaging.Averager | None = None,
    *,
    learning_rate: float | Schedule = 1.0,
    step_from: str = "aggregate",
) -> ServerStep:
    """Returns the server's step, its arguments checked.

    Args:
      optimiser: By default `momentum(0.0)`, plain gradient descent.
      averager: By default `averaging.last()`, plain training.
      learning_rate: A positive number, or a schedule.
      step_from: 'aggregate' or 'iterate'.

    Example:
      step = server_step(momentum(0.9), averaging.uta(3), learning_rate=0.5)
    """
    if not isinstance(learning_rate, Schedule):
        checks.number("the server's learning_rate", learning_rate, "(0, inf)")
    checks.choice("step_from", step_from, STEP_FROM_CHOICES)
    return ServerStep(
        optimiser or momentum(), averager or averaging.last(), learning_rate, step_from
    )

"""Runs of DP-SGD side by side: one batch and one draw of noise for all of them.

Runs that differ in learning rate and averager only, with one known seed, have the same
batches and the same noise. So a batch is gathered once for all, a softmax layer's
products are taken of all runs' weights at once, and as long as a run's average is not
used (before its τ) it takes the steps of the run without one, which are computed once.
The figures are those of each run by itself, up to the order of additions.

It is for experiments with known seeds. Several runs of one secret would spend the
privacy of each, and noise that they share could be subtracted.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tff_agg.sample.dp_sgd import DPSGDProcess, Weights, with_room
from tff_agg.sample.per_example import ClippedSum, Count, Examples, SampleModel
from tff_agg.server.state import State
from tff_agg.server.step import State as ServerState


class Lane(NamedTuple):
    """One of the runs.

    Attributes:
      process: The run's process.
      start: τ, as in the averager: in the states of fewer steps the aggregate is the
        iterate. None where it always is, as with `averaging.last()`.
    """

    process: DPSGDProcess
    start: int | None = None

    def is_plain(self, done: int) -> bool:
        """Returns whether the next step is that of a run without averages."""
        return self.start is None or done < self.start


class Lockstep:
    """Several runs that take every step together.

    Example:
      together = Lockstep([Lane(plain), Lane(averaging_from_100, start=100)])
      states = together.initialize(weights, seed=(7, 0))
      states = together.next(states, [features, labels])
    """

    def __init__(self, lanes: Sequence[Lane]):
        """Checks that the runs belong together.

        Args:
          lanes: The runs: one plan, one model.

        Raises:
          ValueError: Plans differ, so that noise or batches are not the same; or an
            average is used before the `start` given for it.
        """
        plans = [lane.process.description["plan"] for lane in lanes]
        if any(plan != plans[0] for plan in plans[1:]):
            raise ValueError("runs in lockstep must have one plan: clip norm, noise, …")
        for number, lane in enumerate(lanes):
            if not _starts_in_time(lane):
                raise ValueError(
                    f"start={lane.start} of run {number}: its averager "
                    f"{lane.process.step.averager.name} is used earlier"
                )
        self._lanes = tuple(lanes)
        self._compiled: dict[
            tuple[int, tuple[int, ...]], Callable[..., list[State]]
        ] = {}
        self._rules = [_rule(lane.process) for lane in lanes]

    def initialize(self, weights: Weights, seed: Sequence[int]) -> list[State]:
        """Returns the states before the first step.

        Args:
          weights: θ_0 by name.
          seed: Two integers of 64 bits; a known seed, see above.
        """
        return [lane.process.initialize(weights, seed) for lane in self._lanes]

    def leaders(self, done: int) -> tuple[int, ...]:
        """Returns for each run the one whose next step it takes; mostly its own.

        Example:
          `(0, 0, 2)`: the second of three runs still takes the steps of the first.
        """
        leaders: list[int] = []
        for number, lane in enumerate(self._lanes):
            alike = [
                other
                for other in range(number)
                if self._rules[other] == self._rules[number]
                and self._lanes[other].is_plain(done)
            ]
            leaders.append(alike[0] if lane.is_plain(done) and alike else number)
        return tuple(leaders)

    def next(self, states: Sequence[State], batch: Sequence[np.ndarray]) -> list[State]:
        """Takes a step of every run.

        Args:
          states: As `initialize` or `next` returned them.
          batch: As in `DPSGDProcess.next`.

        Raises:
          ValueError: The plan has no step left.
        """
        first = self._lanes[0].process
        done = first.steps_done(states[0])
        micro = first.micro_batch(states[0]["aggregate"])
        count = len(batch[0])
        capacity = first.capacity(count, micro)
        key = (capacity, self.leaders(done))
        if key not in self._compiled:
            step = functools.partial(self._step, leaders=key[1], micro=micro)
            self._compiled[key] = jax.jit(step)
        padded = [with_room(np.asarray(array), capacity, micro) for array in batch]
        return self._compiled[key](list(states), padded, count)

    def _step(
        self,
        states: Sequence[State],
        batch: Examples,
        count: Count,
        leaders: Sequence[int],
        micro: int,
    ) -> list[State]:
        """The compiled step."""
        processes = [lane.process for lane in self._lanes]
        leading = sorted(set(leaders))
        totals = summed_at_all(
            processes[0].model,
            [states[lane]["aggregate"] for lane in leading],
            batch,
            count,
            processes[0].plan.clip_norm,
            micro,
        )
        moved: dict[int, State] = {}
        for lane, total in zip(leading, totals, strict=True):
            # The noise of all is that of the first: the compiler draws it once.
            shared: State = {**states[lane], "noise": states[0]["noise"]}
            moved[lane], _ = processes[lane].stepped(shared, total, count)
        return [
            moved[lane]
            if leader == lane
            else _averaged(processes[lane], states[lane], moved[leader])
            for lane, leader in enumerate(leaders)
        ]


def summed_at_all(
    model: SampleModel,
    weights: Sequence[Weights],
    batch: Examples,
    count: Count,
    clip_norm: float,
    micro: int,
) -> list[ClippedSum]:
    """Adds the same examples up at each of several weights.

    At all of them in one product; or, of a model of many small operations, one after
    the other, in a loop that is compiled once.
    """
    if len(weights) == 1:
        return [model.summed(weights[0], batch, count, clip_norm, micro)]

    def total(of: Weights) -> ClippedSum:
        return model.summed(of, batch, count, clip_norm, micro)

    stacked = jax.tree_util.tree_map(lambda *w: jnp.stack(w), *map(dict, weights))
    totals = jax.lax.map(total, stacked) if model.by_core else jax.vmap(total)(stacked)
    return [
        jax.tree_util.tree_map(lambda leaf, n=number: leaf[n], totals)
        for number in range(len(weights))
    ]


def _averaged(process: DPSGDProcess, state: State, moved: State) -> State:
    """Returns `moved`, the step of another run, with this run's average of it."""
    iterate = moved["server"]["iterate"]
    averager, aggregate = process.step.averager.next(
        state["server"]["averager"], iterate
    )
    held: ServerState = {**moved["server"], "averager": averager}
    return {"aggregate": aggregate, "noise": moved["noise"], "server": held}


def _rule(process: DPSGDProcess) -> dict[str, Any]:
    """Returns what decides a step besides gradient and noise, averages left out."""
    server: Any = process.description["server"]
    return {name: value for name, value in server.items() if name != "step_from"}


def _starts_in_time(lane: Lane) -> bool:
    """Returns whether up to `start` the aggregate is the iterate, if that is known."""
    weights = lane.process.step.averager.weights
    last = lane.process.plan.rounds if lane.start is None else lane.start - 1
    return weights is None or last < 0 or bool(weights(last)[-1] == 1)

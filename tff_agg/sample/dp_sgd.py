"""DP-SGD on aggregated checkpoints, in JAX: the trainer of sample-level tasks.

A step takes the gradient of each example of a batch at θ^AGG_t, clips it, adds the
clipped gradients up with Gaussian noise, divides by the expected batch size, and steps
to θ_{t+1}; the averager yields θ^AGG_{t+1}. Noise is a function of (secret seed, step),
from the same generator as the mechanisms'.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tff_agg import averaging, privacy, server
from tff_agg.aliases import Array, JsonObject, Structure
from tff_agg.noise import seeds
from tff_agg.processes import usable_cores
from tff_agg.sample import laned_sum, per_example
from tff_agg.sample.per_example import ClippedSum, Count, Examples, SampleModel
from tff_agg.server import state as states
from tff_agg.server.state import State

Weights = dict[str, jax.Array]
Metrics = dict[str, Structure]

# Batches are padded to where fewer than one in a billion is longer; longer ones are
# computed all the same, after compiling anew.
_SURELY = 6.5


class Output(NamedTuple):
    """What a step returns."""

    state: State
    metrics: Metrics


class DPSGDProcess:
    """DP-SGD with training aggregation, as the training loop drives it.

    The state is a `tff_agg.server.state.State`, whose functions find what is in it.
    Keep stored states readable by their owner only, and never call `next` twice on one
    state with other batches: see `build_dp_ftrl_process`.

    Attributes:
      description: What the process is, as JSON values, for a run's identity.
      model: What is trained.
      plan: The plan.
      mean: The noisy mean of a batch's clipped gradients.
      step: The server's step: optimiser and checkpoint aggregation.

    Example:
      process = DPSGDProcess(SampleModel(loss), plan=plan, learning_rate=2.0)
      state = process.initialize(weights)
      state, metrics = process.next(state, [features, labels])
    """

    def __init__(
        self,
        model: SampleModel,
        *,
        plan: privacy.Plan,
        averager: averaging.Averager | None = None,
        learning_rate: float | server.Schedule = 1.0,
        momentum: float = 0.0,
        nesterov: bool = False,
        step_from: str = "aggregate",
        memory_budget: int = per_example.MEMORY_BUDGET,
    ):
        """Checks the arguments; nothing is compiled yet.

        Args:
          model: The loss of one example, or a closed form of the clipped sum.
          plan: Clip norm, noise, expected batch size, steps.
          averager: The checkpoint aggregation; by default the last checkpoint.
          learning_rate: A positive number, or a schedule.
          momentum: The momentum, in [0, 1).
          nesterov: Whether the momentum is Nesterov's.
          step_from: As in `build_dp_ftrl_process`.
          memory_budget: In bytes, for what a micro-batch holds for each example.
        """
        drawn = getattr(plan, "participation", None)
        kinds = privacy.PoissonSampling | privacy.ShiftingPoissonSampling
        if not isinstance(drawn, kinds):
            raise TypeError(
                f"plan must be a privacy.Plan of sampled batches, got {plan!r}"
            )
        self.model, self.plan = model, plan
        self.mean = server.noisy_mean(plan)
        self.step = server.server_step(
            server.momentum(momentum, nesterov),
            averager,
            learning_rate=learning_rate,
            step_from=step_from,
        )
        self._memory_budget = memory_budget
        self._compiled: dict[int, Callable[..., tuple[State, Metrics]]] = {}
        facts = ("clip_norm", "cohort_size", "rounds")
        self.description = {
            "plan": {
                **{name: getattr(plan, name) for name in facts},
                "population_size": drawn.population_size,
                "noise_multiplier": plan.noise_multiplier,
                "mechanism": "dp_sgd",
                "participation": plan.participation.to_json(),
            },
            "averager": self.step.averager.to_json(),
            "server": self.step.to_json(),
            # How many examples are added up at a time decides the last bits.
            "memory_budget": memory_budget,
        }

    def initialize(
        self, weights: Mapping[str, Array], seed: seeds.Seed | None = None
    ) -> State:
        """Returns the state before the first step.

        Args:
          weights: θ_0 by name.
          seed: Two or four integers of 64 bits, for tests; refused unless the plan says
            that the seed is known. By default a secret of the operating system's.
        """
        theta = {name: jnp.asarray(value) for name, value in weights.items()}
        return {
            "aggregate": theta,
            "noise": self.mean.init(theta, seed),
            "server": self.step.init(theta),
        }

    def next(self, state: State, batch: Sequence[np.ndarray]) -> Output:
        """Takes a step.

        Args:
          state: As `initialize` or `next` returned it, or as it was stored.
          batch: The arrays of the batch's examples, along their first axis; there may
            be any number of examples, none as well.

        Raises:
          ValueError: The plan has no step left.
        """
        self.steps_done(state)
        micro = self.micro_batch(state["aggregate"])
        count = len(batch[0])
        capacity = self.capacity(count, micro)
        if capacity not in self._compiled:
            self._compiled[capacity] = self._step_function(micro)
        padded = [with_room(np.asarray(array), capacity, micro) for array in batch]
        state, metrics = self._compiled[capacity](state, padded, count)
        return Output(state, jax.device_get(metrics))

    def steps_done(self, state: State) -> int:
        """Returns how many steps are done; refuses where none is left."""
        if (done := int(states.round_of(state))) >= self.plan.rounds:
            raise ValueError(
                f"the plan is for {self.plan.rounds} steps; {done} are done"
            )
        return done

    def micro_batch(self, weights: Weights) -> int:
        """Returns how many examples are computed at a time: no more than are drawn."""
        fitting = self.model.micro_batch(weights, self._memory_budget)
        return min(fitting, self._usual)

    @property
    def _usual(self) -> int:
        """The size that hardly any batch exceeds."""
        mean = self.plan.cohort_size
        return math.ceil(mean + _SURELY * math.sqrt(mean) + 1)

    def capacity(self, count: int, micro: int) -> int:
        """Returns how many examples the compiled step has room for."""
        return -(-max(self._usual, count) // micro) * micro

    def _step_function(self, micro: int) -> Callable[..., tuple[State, Metrics]]:
        """Returns the step: compiled as a whole, or apart from the lanes of its sum."""
        model, clip_norm = self.model, self.plan.clip_norm

        def whole(state: State, batch: Examples, count: Count) -> tuple[State, Metrics]:
            weights = state["aggregate"]
            total = model.summed(weights, batch, count, clip_norm, micro)
            return self.stepped(state, total, count)

        if not model.by_core:
            return jax.jit(whole)
        add = laned_sum.LanedSum(model, clip_norm, micro)
        compiled = jax.jit(self.stepped)

        def apart(state: State, batch: Examples, count: int) -> tuple[State, Metrics]:
            return compiled(state, add(state["aggregate"], batch, count), count)

        return apart

    def stepped(
        self, state: State, total: ClippedSum, count: Count
    ) -> tuple[State, Metrics]:
        """Returns the next state and the metrics, from the sum of `count` gradients.

        For whoever compiles it with something else.
        """
        done = states.round_of(state)
        summed = server.ClippedSum(total.gradients)
        noise, update = self.mean.next(state["noise"], summed)
        held, aggregate = self.step.next(
            state["server"], state["aggregate"], update, done
        )
        squares = [jnp.vdot(leaf, leaf) for leaf in jax.tree_util.tree_leaves(update)]
        finite = jnp.maximum(count - total.non_finite, 1)
        metrics = {
            "train": {"loss": total.loss / finite},
            "clipped": total.clipped / finite,
            "non_finite": total.non_finite,
            "update_norm": jnp.sqrt(sum(squares)),
        }
        return {"aggregate": aggregate, "noise": noise, "server": held}, metrics

    @staticmethod
    def surroundings() -> JsonObject:
        """Returns what the last bits of a step depend on besides the libraries."""
        return {
            "devices": [str(device) for device in jax.devices()],
            "cores": usable_cores(),
        }


def with_room(array: np.ndarray, capacity: int, micro: int) -> np.ndarray:
    """Returns an array with room for more; what is computed on beyond it is zero."""
    made = np.empty((capacity, *array.shape[1:]), array.dtype)
    made[: len(array)] = array
    made[len(array) : -(-len(array) // micro) * micro] = 0
    return made

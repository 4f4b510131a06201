"""DP-FTRL's aggregation as a factory, for learning processes that TFF composes.

`build_dp_ftrl_process` does not need it: there clipping is part of a client's work and
the mean of the server's. Here both stand by themselves.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.federated import clipping, server_side
from tff_agg.federated.tracing import graph_computation
from tff_agg.noise import seeds
from tff_agg.privacy import Plan


class DPFTRLSumFactory(tff.aggregators.UnweightedAggregationFactory):
    """Makes the aggregation of DP-FTRL in residual form, for one plan.

    Each client's update is clipped to a global L2 norm of `plan.clip_norm`. Updates are
    summed; `tff_agg.server.noisy_mean` makes the noisy mean of them. It is private by
    itself, whatever is composed around it, and keeps to the plan's rounds and cohort
    size. Updates in half precision are widened to float32 first and narrowed at the
    end.

    The state is that of the noisy mean. Measurements (none of them private):
    `clients`, `clipped_fraction`, `update_norm_mean` and `update_norm_max` before
    clipping, `non_finite`, and `noise_stddev`, on the sum.

    Example:
      process = tff.learning.algorithms.build_unweighted_fed_avg(
          model, tff.learning.optimizers.build_sgdm(0.1),
          model_aggregator=DPFTRLSumFactory(plan))
    """

    def __init__(
        self,
        plan: Plan,
        *,
        on_non_finite: str = "drop",
        noise_seed: seeds.Seed | None = None,
        noise_words: int | None = None,
    ):
        """Initializes the factory.

        Args:
          plan: The plan of the run.
          on_non_finite: `'drop'` counts a client whose update is not finite and sums
            zeros in its place; `'error'` fails on it. See `build_dp_ftrl_process`.
          noise_seed: Two or four integers of 64 bits, where the plan says that they
            are known. None, the default, draws a fresh secret from the operating system
            in every call of `initialize`.
          noise_words: How many integers are drawn. Four, the default where the seed is
            secret, make noise from AES-256-CTR; two, for TFF's worker, of Philox.
        """
        clipping.check_on_non_finite(on_non_finite)
        self._plan, self._on_non_finite = plan, on_non_finite
        self._mean = server_side.mean_of(plan, noise_seed, noise_words)
        self._noise_seed = noise_seed

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Builds the aggregation process of updates of `value_type`."""
        # TFF's own test of floats does not know bfloat16.
        if not tff.types.is_structure_of_tensors(value_type) or not all(
            dtype.is_floating
            for dtype in tf.nest.flatten(server_side.dtypes_of(value_type))
        ):
            raise TypeError(
                "value_type must be a tensor or a structure of tensors of floats, got "
                f"{value_type}"
            )
        plan, mean = self._plan, self._mean
        averaged = server_side.averaged(mean, server_side.dtypes_of(value_type))

        @graph_computation(value_type)
        def clip(update):
            stack = tf.nest.map_structure(lambda leaf: leaf[None], update)
            return clipping.clip_users(stack, plan.clip_norm, self._on_non_finite)

        clipped_type = clip.type_signature.result

        @graph_computation()
        def start():
            return mean.init(server_side.zeros_of(clipped_type.total), self._noise_seed)

        state_type = start.type_signature.result

        @graph_computation(state_type, *clipped_type)
        def finish(state, total, counts, largest):
            state, update = averaged(state, total, counts["clients"])
            return state, update, clipping.measurements(plan, counts, largest)

        @tff.federated_computation
        def initialize():
            return tff.federated_eval(start, tff.SERVER)

        @tff.federated_computation(
            tff.FederatedType(state_type, tff.SERVER),
            tff.FederatedType(value_type, tff.CLIENTS),
        )
        def next_round(state, value):
            clipped = tff.federated_map(clip, value)
            return tff.templates.MeasuredProcessOutput(
                *tff.federated_map(
                    finish,
                    (
                        state,
                        tff.federated_sum(clipped.total),
                        tff.federated_sum(clipped.counts),
                        tff.federated_max(clipped.largest),
                    ),
                )
            )

        return tff.templates.AggregationProcess(initialize, next_round)

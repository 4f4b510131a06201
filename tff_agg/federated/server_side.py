"""The noisy mean, as TensorFlow's part of a TFF computation on the server."""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg.aliases import Structure
from tff_agg.noise import seeds
from tff_agg.noise.mechanism import State
from tff_agg.privacy import Plan
from tff_agg.server import ClippedSum, NoisyMean, noisy_mean


def mean_of(plan: Plan, noise_seed: seeds.Seed | None, words: int | None) -> NoisyMean:
    """Returns the noisy mean of a plan; checks plan and seed.

    Args:
      plan: The plan.
      noise_seed: Integers of 64 bits, where the plan says that they are known.
      words: How many are drawn, where none are given.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a tff_agg.privacy.Plan, got {plan!r}")
    seeds.words_of(noise_seed, plan.noise_seed_is_known, words)
    return noisy_mean(plan, words)


def zeros_of(value_type: tff.Type) -> Structure:
    """Zeros of a type, in its Python containers."""
    return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.zeros(t.shape, t.dtype), value_type
    )


def dtypes_of(value_type: tff.Type) -> Structure:
    """The data types of a type's tensors, in its Python containers."""
    return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.as_dtype(t.dtype), value_type
    )


def averaged(
    mean: NoisyMean, dtypes: Structure
) -> Callable[[State, Structure, tf.Tensor], tuple[State, Structure]]:
    """Returns `(state, total, users) -> (state, mean)`, with the mean in `dtypes`.

    It stays a function of its own where it is part of a larger graph. Grappler would
    turn a division and a learning rate behind it into one product: one rounding less,
    but other last bits than those of the same mean elsewhere.
    """

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def next_(state, total, users):
        state, noisy = mean.next(state, ClippedSum(total, users))
        return state, tf.nest.map_structure(tf.cast, noisy, dtypes)

    return next_

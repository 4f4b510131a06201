"""Clip, sum, add correlated noise, divide by the planned cohort size.

The factory here is a `tff.aggregators` factory like any other. What it adds to TFF's
own is that the noise comes from a `Mechanism`, its state is part of the process's
state, and the plan's limits are kept inside the computation: a run can neither go on
after the planned rounds nor aggregate more clients than the plan divides by.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping

import tensorflow as tf
import tensorflow_federated as tff

from tff_agg import backends
from tff_agg.aliases import Structure
from tff_agg.learning.client_work import check_on_non_finite
from tff_agg.learning.tracing import graph_computation
from tff_agg.noise import seeds
from tff_agg.privacy import Plan
from tff_agg.runtime.errors import MEMBER


class DPFTRLSumFactory(tff.aggregators.UnweightedAggregationFactory):
    """Makes the aggregation of DP-FTRL in residual form, for one plan.

    Each client's update is clipped to a global L2 norm of `plan.clip_norm`. Updates
    are summed; `plan.noise_stddev` times this round's noise of `plan.mechanism` is
    added; the result is divided by `plan.cohort_size`, whatever the actual number of
    clients was, because the actual number must not leak into the scale of the noise.
    Updates in half precision are widened to float32 first and narrowed at the end.

    The state holds the round and, unless `plan.noise_stddev` is 0, the mechanism's
    state with its secret seed. Measurements (none of them private): `clients`,
    `clipped_fraction`, `update_norm_mean` and `update_norm_max` before clipping,
    `non_finite`, and `noise_stddev`, on the sum.

    With `grouped`, a client's value is the updates of a group of users, each leaf with
    a first axis of users. Each user's update is clipped by itself, and `clients` in
    the limits and measurements are the users.

    Attributes:
      plan: The plan; of it `clip_norm`, `cohort_size`, `rounds`, `mechanism` and
        `noise_stddev` are used.
      noise_words: How many integers of 64 bits the noise's seed has.

    Example:
      >>> factory = DPFTRLSumFactory(plan, on_non_finite='drop')
      >>> process = factory.create(tff.TensorType(np.float32, [10]))
    """

    def __init__(
        self,
        plan: Plan,
        *,
        on_non_finite: str = "drop",
        noise_seed: seeds.Seed | None = None,
        noise_words: int | None = None,
        grouped: bool = False,
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
          grouped: Whether a client's value is the stacked updates of several users.
        """
        check_on_non_finite(on_non_finite)
        check_plan(plan)
        self.plan = plan
        self._on_non_finite = on_non_finite
        is_known = plan.noise_seed_is_known
        self.noise_words = seeds.words_of(noise_seed, is_known, noise_words)
        self._noise_seed = noise_seed
        self._grouped = grouped

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Builds the aggregation process of updates of `value_type`.

        With `grouped` that is the type of stacked updates: every leaf has a first
        dimension that is not known.
        """
        # TFF's own test of floats does not know bfloat16.
        if not tff.types.is_structure_of_tensors(value_type) or not all(
            dtype.is_floating for dtype in tf.nest.flatten(_dtypes(value_type))
        ):
            raise TypeError(
                "value_type must be a tensor or a structure of tensors of floats, got "
                f"{value_type}"
            )
        plan = self.plan
        noisy = plan.noise_stddev > 0

        clip_all = clip_updates if self._grouped else clip_update

        @graph_computation(value_type)
        def clip(update):
            return clip_all(update, plan.clip_norm, self._on_non_finite)

        clipped_type, counts_type, norm_type = clip.type_signature.result
        dtypes = _dtypes(value_type)

        @graph_computation()
        def start():
            state: OrderedDict[str, Structure] = OrderedDict(
                round=tf.constant(0, tf.int64)
            )
            if noisy:
                like = _zeros(clipped_type)
                seed = seeds.of_run(
                    backends.of(like),
                    self._noise_seed,
                    is_known=plan.noise_seed_is_known,
                    words=self.noise_words,
                )
                state["noise"] = plan.mechanism.init(like, seed)
            return state

        @graph_computation(
            start.type_signature.result, clipped_type, counts_type, norm_type
        )
        def finish(state, total, counts, largest):
            _check_limits(plan, state["round"], counts["clients"])
            new_state = OrderedDict(round=state["round"] + 1)
            if noisy:
                new_state["noise"], noise = plan.mechanism.next(state["noise"], total)
                total = tf.nest.map_structure(
                    lambda x, z: x + z * tf.cast(plan.noise_stddev, z.dtype),
                    total,
                    noise,
                )
            mean = tf.nest.map_structure(
                lambda x, dtype: tf.cast(x / tf.cast(plan.cohort_size, x.dtype), dtype),
                total,
                dtypes,
            )
            return new_state, mean, _measurements(plan, counts, largest)

        @tff.federated_computation
        def initialize():
            return tff.federated_eval(start, tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
        )
        def next_round(state, value):
            clipped, counts, norm = tff.federated_map(clip, value)
            new_state, mean, measurements = tff.federated_map(
                finish,
                (
                    state,
                    tff.federated_sum(clipped),
                    tff.federated_sum(counts),
                    tff.federated_max(norm),
                ),
            )
            return tff.templates.MeasuredProcessOutput(new_state, mean, measurements)

        return tff.templates.AggregationProcess(initialize, next_round)


def clip_update(
    update: Structure, clip_norm: float, on_non_finite: str
) -> tuple[Structure, OrderedDict[str, tf.Tensor], tf.Tensor]:
    """Scales an update down to a global L2 norm of `clip_norm` and counts what it did.

    Args:
      update: A structure of floating-point tensors.
      clip_norm: The largest norm allowed; infinity clips nothing.
      on_non_finite: `'error'` or `'drop'`.

    Returns:
      The clipped update, in float32 where it was in half precision; an `OrderedDict`
      of what is to be summed over clients: `clients` (1), `clipped`, `non_finite` (0
      or 1) and `norm`; and the norm before clipping, as a tensor of its own for the
      maximum. An update that was dropped has norm 0.

    To be called eagerly or in a `tf.function`, which runs the assertion.

    Example:
      >>> clipped, counts, norm = clip_update([tf.constant([3.0, 4.0])], 1.0, 'error')
      >>> clipped[0].numpy(), float(norm)
      (array([0.6, 0.8], dtype=float32), 5.0)
    """
    leaves = [_at_least_float32(leaf) for leaf in tf.nest.flatten(update)]
    # Half the sum of squares, in one pass and without a squared copy. A NaN or an
    # infinity anywhere makes it not finite; so do numbers whose squares overflow.
    halves = [tf.cast(tf.nn.l2_loss(leaf), tf.float32) for leaf in leaves]
    norm = tf.sqrt(2.0 * tf.add_n(halves))
    finite = tf.math.is_finite(norm)
    too_long = norm > clip_norm
    scale = tf.where(too_long, clip_norm / norm, 1.0)
    if on_non_finite == "error":
        tf.debugging.Assert(finite, ["the client's update is not finite"])
        clipped = [leaf * tf.cast(scale, leaf.dtype) for leaf in leaves]
    else:
        scale = tf.where(finite, scale, 0.0)
        norm = tf.where(finite, norm, 0.0)
        # Zero times NaN is zero here.
        clipped = [
            tf.math.multiply_no_nan(leaf, tf.cast(scale, leaf.dtype)) for leaf in leaves
        ]
    counts = OrderedDict(
        clients=tf.constant(1, tf.int64),
        clipped=tf.cast(finite & too_long, tf.int64),
        non_finite=tf.cast(~finite, tf.int64),
        norm=norm,
    )
    return tf.nest.pack_sequence_as(update, clipped), counts, norm


def _at_least_float32(leaf: tf.Tensor) -> tf.Tensor:
    """Widens half precision.

    There squares overflow from a norm of a few hundred on, a scaled update may end up
    half a thousandth above the clip norm, and a sum moves by more than what a client
    adds to it: the sensitivity would not be the plan's.
    """
    tensor = tf.convert_to_tensor(leaf)
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor


def clip_updates(
    updates: Structure, clip_norm: float, on_non_finite: str
) -> tuple[Structure, OrderedDict[str, tf.Tensor], tf.Tensor]:
    """Clips the updates of several users, each as `clip_update` does, and adds them up.

    Args:
      updates: A structure of floating-point tensors with a first axis of users.
      clip_norm: The largest norm of a user's update; infinity clips nothing.
      on_non_finite: `'error'` or `'drop'`.

    Returns:
      The sum of the clipped updates; the counts of `clip_update`, added up over the
      users; and the largest norm before clipping.

    Example:
      >>> stack = [tf.constant([[3.0, 4.0], [0.0, 0.5]])]
      >>> total, counts, largest = clip_updates(stack, 1.0, 'error')
      >>> total[0].numpy(), int(counts['clipped']), float(largest)
      (array([0.6, 1.3], dtype=float32), 1, 5.0)
    """
    leaves = [_at_least_float32(leaf) for leaf in tf.nest.flatten(updates)]
    users = tf.shape(leaves[0])[0]
    rows = [tf.reshape(x, [users, math.prod(x.shape[1:])]) for x in leaves]
    squares = [tf.cast(tf.reduce_sum(tf.square(row), 1), tf.float32) for row in rows]
    norms = tf.sqrt(tf.add_n(squares))
    finite = tf.math.is_finite(norms)
    too_long = norms > clip_norm
    scales = tf.where(too_long, clip_norm / norms, 1.0)
    all_finite = tf.reduce_all(finite)
    if on_non_finite == "error":
        # No user is looked up where there is none to blame, nor where there are none.
        norm, place = tf.cond(
            all_finite,
            lambda: (tf.constant(0.0), tf.constant(0, tf.int64)),
            lambda: _first(norms, tf.logical_not(finite)),
        )
        tf.debugging.Assert(
            all_finite,
            [MEMBER, place, "the client's update is not finite; its norm is", norm],
        )
    else:
        scales = tf.where(finite, scales, 0.0)
        norms = tf.where(finite, norms, 0.0)
        rows = tf.cond(
            all_finite,
            lambda: rows,
            lambda: [tf.where(finite[:, None], r, tf.zeros_like(r)) for r in rows],
        )
    total = [
        tf.reshape(tf.matmul(tf.cast(scales, row.dtype)[None], row), leaf.shape[1:])
        for leaf, row in zip(leaves, rows, strict=True)
    ]
    counts = OrderedDict(
        clients=tf.cast(users, tf.int64),
        clipped=tf.reduce_sum(tf.cast(finite & too_long, tf.int64)),
        non_finite=tf.reduce_sum(tf.cast(~finite, tf.int64)),
        norm=tf.reduce_sum(norms),
    )
    return tf.nest.pack_sequence_as(updates, total), counts, tf.reduce_max(norms)


def _first(values: tf.Tensor, chosen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first value that is chosen, and its place."""
    place = tf.where(chosen)[0, 0]
    return values[place], place


def check_plan(plan: Plan) -> None:
    """Raises unless the plan has what the process needs, in range."""
    needed = (
        *("clip_norm", "cohort_size", "rounds", "mechanism", "noise_stddev"),
        "noise_seed_is_known",
    )
    missing = [name for name in needed if not hasattr(plan, name)]
    if missing:
        raise TypeError(
            f"plan must have {', '.join(needed)}; {type(plan)} lacks "
            f"{', '.join(missing)}"
        )
    if not plan.clip_norm > 0:
        raise ValueError(f"plan.clip_norm must be positive, got {plan.clip_norm!r}")
    for name in ("cohort_size", "rounds"):
        value = getattr(plan, name)
        if isinstance(value, bool) or int(value) != value or value < 1:
            raise ValueError(
                f"plan.{name} must be a whole number of at least 1, got {value!r}"
            )
    if not (plan.noise_stddev >= 0 and math.isfinite(plan.noise_stddev)):
        raise ValueError(
            "plan.noise_stddev must be finite and not negative, got "
            f"{plan.noise_stddev!r}"
        )
    limit = plan.mechanism.max_rounds if plan.noise_stddev else None
    if limit is not None and limit < plan.rounds:
        raise ValueError(
            f"plan.mechanism serves {limit} rounds, plan.rounds is {plan.rounds}"
        )


def _check_limits(plan: Plan, round_number: tf.Tensor, clients: tf.Tensor) -> None:
    """The assertions that keep a run within its plan."""
    tf.debugging.Assert(
        round_number < plan.rounds, [f"the plan ends after {plan.rounds} rounds"]
    )
    tf.debugging.Assert(
        clients <= plan.cohort_size,
        [f"the plan is for at most {plan.cohort_size} clients per round"],
    )


def _measurements(
    plan: Plan, counts: Mapping[str, tf.Tensor], largest: tf.Tensor
) -> OrderedDict[str, tf.Tensor]:
    """Turns counts summed over clients into what a round reports."""
    clients = counts["clients"]
    finite = clients - counts["non_finite"]

    def over_finite(total):
        return tf.math.divide_no_nan(
            tf.cast(total, tf.float32), tf.cast(finite, tf.float32)
        )

    return OrderedDict(
        clients=clients,
        clipped_fraction=over_finite(counts["clipped"]),
        update_norm_mean=over_finite(counts["norm"]),
        # The maximum over no clients is the lowest number there is.
        update_norm_max=tf.maximum(largest, 0.0),
        non_finite=counts["non_finite"],
        noise_stddev=tf.constant(plan.noise_stddev, tf.float32),
    )


def _zeros(value_type: tff.Type) -> Structure:
    """Zeros of a type, in its Python containers."""
    return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.zeros(t.shape, t.dtype), value_type
    )


def _dtypes(value_type: tff.Type) -> object:
    """The data types of a type's tensors, in its Python containers."""
    return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.as_dtype(t.dtype), value_type
    )

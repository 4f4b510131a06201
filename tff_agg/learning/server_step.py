"""The step from an update to new weights, the same for DP-FTRL and DP-SGD."""

from tff_agg import structure
from tff_agg.aliases import Array, Structure

STEP_FROM_CHOICES = ("aggregate", "iterate")


def check_step(
    learning_rate: float,
    momentum: float,
    nesterov: bool,
    step_from: str,
    prefix: str = "server_",
) -> None:
    """Raises if an argument of the step is out of range.

    Args:
      learning_rate: The learning rate.
      momentum: The momentum, in [0, 1).
      nesterov: Whether the step looks ahead along the momentum.
      step_from: Where the step starts.
      prefix: What stands before the names in the caller's signature.
    """
    if not 0 < learning_rate < float("inf"):
        raise ValueError(
            f"{prefix}learning_rate must be positive and finite, got {learning_rate!r}"
        )
    if not 0 <= momentum < 1:
        raise ValueError(f"{prefix}momentum must be in [0, 1), got {momentum!r}")
    if nesterov and not momentum:
        raise ValueError(f"nesterov=True needs a {prefix}momentum above 0, got 0")
    if step_from not in STEP_FROM_CHOICES:
        raise ValueError(
            f"step_from must be one of {STEP_FROM_CHOICES}, got {step_from!r}"
        )


def direction(
    buffer: Structure, update: Structure, momentum: float, nesterov: bool
) -> tuple[Structure, Structure]:
    """Returns the new momentum and what the learning rate is multiplied with."""
    if not momentum:
        return (), update

    def roll(old: Array, new: Array) -> Array:
        return old * momentum + new

    rolled = structure.map_leaves(roll, buffer, update)
    if not nesterov:
        return rolled, rolled
    return rolled, structure.map_leaves(roll, rolled, update)

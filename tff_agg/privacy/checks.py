"""What the numbers of a plan have to be, and how they are written."""

import math
from typing import TypeGuard

import numpy as np


def check_positive(name: str, value: object) -> None:
    """Refuses what is not a positive finite number."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")


def check_count(name: str, value: object) -> None:
    """Refuses what is not an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def check_noise_multiplier(value: float) -> float:
    """Returns the noise multiplier; refuses what is negative or not a number."""
    if not is_number(value) or not math.isfinite(value) or value < 0:
        raise ValueError(
            f"noise_multiplier must be a finite number of at least 0, got {value!r}"
        )
    return float(value)


def check_delta(value: float) -> float:
    """Returns δ; refuses what is not strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise ValueError(f"delta must be strictly between 0 and 1, got {value!r}")
    return float(value)


def check_epsilon(value: float) -> float:
    """Returns ε; refuses what is not a positive finite number."""
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"epsilon must be a positive finite number, got {value!r}")
    return float(value)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a real number, and no bool."""
    kinds = (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def finite(value: float) -> float | None:
    """Returns None for infinity, which JSON does not know."""
    return value if math.isfinite(value) else None

"""What the library asks of numbers and choices that it is given, each check once.

Every check returns the value, a whole number as Python's own `int`, so that numpy's go
into JSON and keys as well. What is refused is a ValueError that says the argument, what
it must be, and what it was.
"""

import math
import numbers
from collections.abc import Collection
from typing import TypeGuard, TypeVar

Value = TypeVar("Value")

_IN_WORDS = {
    "(-inf, inf)": "a finite number",
    "(0, inf)": "a positive finite number",
    "[0, inf)": "a finite number of at least 0",
    "(0, 1)": "strictly between 0 and 1",
}


def is_whole(value: object) -> TypeGuard[int]:
    """Returns whether a value is a whole number, of Python or numpy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a real number, of Python or numpy, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Returns a whole number in a range.

    Args:
      name: What errors call it.
      value: What was given.
      least: The least that is right.
      most: The most that is right; None for any.

    Example:
      >>> whole("rounds", 3)
      3
    """
    if is_whole(value) and least <= value and (most is None or value <= most):
        return int(value)
    span = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise ValueError(f"{name} must be a whole number {span}, got {value!r}")


def make_whole(config: object, *names: str) -> None:
    """Checks fields of a frozen config that are counts and makes them Python's own.

    None stays where a field has it by default.
    """
    for name in names:
        value = getattr(config, name)
        if value is None and getattr(type(config), name, ...) is None:
            continue
        object.__setattr__(config, name, whole(name, value))


def number(name: str, value: object, interval: str = "(-inf, inf)") -> float:
    """Returns a number in an interval; infinity and NaN are in none.

    Args:
      name: What errors call it.
      value: What was given.
      interval: As mathematics writes it: `[0, 1)` has 0 and not 1.

    Example:
      >>> number("beta", 0.5, "[0, 1]")
      0.5
    """
    low, high = map(float, interval[1:-1].split(","))
    if is_number(value) and math.isfinite(value):
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if above and below:
            return float(value)
    what = _IN_WORDS.get(interval, f"in {interval}")
    raise ValueError(f"{name} must be {what}, got {value!r}")


def choice(name: str, value: Value, choices: Collection[Value]) -> Value:
    """Returns one of a few values.

    Example:
      >>> choice("metric", "mean", ("mean", "max"))
      'mean'
    """
    if value in choices:
        return value
    named = ", ".join(map(repr, choices))
    raise ValueError(f"{name} must be one of {named}, got {value!r}")


def noise_multiplier(value: object) -> float:
    """Returns a noise multiplier; 0 is no noise."""
    return number("noise_multiplier", value, "[0, inf)")


def delta(value: object) -> float:
    """Returns δ."""
    return number("delta", value, "(0, 1)")


def epsilon(value: object) -> float:
    """Returns ε."""
    return number("epsilon", value, "(0, inf)")


def finite(value: float) -> float | None:
    """Returns None for infinity, which JSON does not know."""
    return value if math.isfinite(value) else None

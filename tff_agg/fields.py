"""Fields of configurations: frozen dataclasses whose fields say what they mean.

A binary makes one flag of each field (`tff_agg.experiment.flag_fields`), with the
field's default and description. Libraries see the finished object only.
"""

import dataclasses
import typing
from collections.abc import Iterable
from typing import Any


def described(default: Any, text: str, choices: Iterable[str] | None = None) -> Any:
    """Returns a dataclass field with a description.

    Args:
      default: The field's default value.
      text: What the field means; the help text of its flag.
      choices: The allowed values, where they are few.

    Example:
      >>> @dataclasses.dataclass(frozen=True)
      ... class Config:
      ...     rounds: int = described(2000, 'training rounds')
      >>> dataclasses.fields(Config)[0].metadata['help']
      'training rounds'
    """
    allowed = None if choices is None else tuple(choices)
    return dataclasses.field(
        default=default, metadata={"help": text, "choices": allowed}
    )


def check(config: Any, at_least_one: Iterable[str] = ()) -> None:
    """Refuses values that no field of their kind can have.

    Args:
      config: A dataclass instance whose fields were made by `described`.
      at_least_one: Names of numbers that must not be below 1; None is no number.

    Raises:
      ValueError: A value is not among a field's choices, or a number is negative or
        not a number. Names the field and the value.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if value is None and type(None) in typing.get_args(hint):
            continue
        choices = field.metadata["choices"]
        if choices and value not in choices:
            raise ValueError(
                f"{field.name} must be one of {', '.join(choices)}; got {value!r}"
            )
        numeric = hint in (int, float, int | None, float | None)
        if numeric and not value >= 0:
            raise ValueError(f"{field.name} must not be negative; got {value!r}")
    for name in at_least_one:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1; got {value!r}")

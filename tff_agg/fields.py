"""Fields of configurations: frozen dataclasses whose fields say what they mean.

A binary makes one flag of each field (`tff_agg.experiment.flag_fields`), with the
field's default and description. Libraries see the finished object only.
"""

import dataclasses
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def described(
    default: object,
    text: str,
    choices: Iterable[str] | None = None,
    *,
    at_least: int = 0,
    in_process: bool = True,
    only_with: tuple[str, tuple[object, ...]] | None = None,
) -> Any:
    """Returns a dataclass field with a description.

    Args:
      default: The field's default value.
      text: What the field means; the help text of its flag.
      choices: The allowed values, where they are few.
      at_least: The smallest allowed value, for numbers.
      in_process: Whether the value enters the compiled training process. Runs that
        differ only in fields outside of it share one process.
      only_with: Another field and those of its values with which this one has an
        effect; None if it always has.

    Example:
      >>> @dataclasses.dataclass(frozen=True)
      ... class Config:
      ...     rounds: int = described(2000, 'training rounds', at_least=1)
    """
    allowed = None if choices is None else tuple(choices)
    return dataclasses.field(
        default=default,
        metadata={
            "help": text,
            "choices": allowed,
            "at_least": at_least,
            "in_process": in_process,
            "only_with": only_with,
        },
    )


def without_effect(config: "DataclassInstance", given: Iterable[str]) -> list[str]:
    """Returns which of the given fields change nothing, and what they would need.

    Args:
      config: A dataclass instance whose fields were made by `described`.
      given: The fields that somebody has set.

    Returns:
      A text for each, such as 'k=5 needs averager=uta; it is last'.
    """
    found = []
    for field in dataclasses.fields(config):
        if field.name not in given or field.metadata["only_with"] is None:
            continue
        other, values = field.metadata["only_with"]
        actual = getattr(config, other)
        if actual not in values:
            needed = " or ".join(map(str, values))
            value = getattr(config, field.name)
            found.append(f"{field.name}={value} needs {other}={needed}; it is {actual}")
    return found


def check(config: "DataclassInstance") -> None:
    """Refuses values that no field of their kind can have.

    Args:
      config: A dataclass instance whose fields were made by `described`.

    Raises:
      ValueError: A value is not among a field's choices, or a number is too small or
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
        least = field.metadata["at_least"]
        numeric = hint in (int, float, int | None, float | None)
        if numeric and not value >= least:
            raise ValueError(f"{field.name} must be at least {least}; got {value!r}")

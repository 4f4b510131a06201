"""Fields of configurations: frozen dataclasses whose fields say what they mean.

A binary makes one flag of each field (`tff_agg.experiment.commands.flags`), with the
field's default and description. Libraries see the finished object only.
"""

import dataclasses
import os
import typing
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tff_agg import checks

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: What a field decides:
#:   process: what is compiled;
#:   cohort: who takes part with what;
#:   seed: one draw among alike;
#:   watching: what is done with released models, and changes nothing that is released;
#:   place: where a run takes place and its files lie; it may change on the way.
Role = Literal["process", "cohort", "seed", "watching", "place"]
ROLES: tuple[Role, ...] = typing.get_args(Role)
#: What a run is, wherever it takes place.
SETTINGS: tuple[Role, ...] = ("process", "cohort", "seed", "watching")
#: For `only_with`: with a field that was not given.
NOT_GIVEN = ("", None)


def described(
    default: object,
    text: str,
    choices: Iterable[str] | None = None,
    *,
    role: Role = "process",
    data: bool = False,
    at_least: int = 0,
    only_with: tuple[str, tuple[object, ...]] | None = None,
) -> Any:
    """Returns a dataclass field with a description.

    Args:
      default: The field's default value.
      text: What the field means; the help text of its flag.
      choices: The allowed values, where they are few.
      role: What the field decides; everything that tells fields apart follows.
      data: Whether a place is where the data lie, which may be moved.
      at_least: The smallest allowed value, for numbers.
      only_with: Another field and those of its values with which this one has an
        effect; None if it always has.

    Example:
      >>> @dataclasses.dataclass(frozen=True)
      ... class Config:
      ...     rounds: int = described(2000, 'training rounds', at_least=1)
    """
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}; got {role!r}")
    if data and role != "place":
        raise ValueError(f"data=True needs role='place'; got role={role!r}")
    allowed = None if choices is None else tuple(choices)
    return dataclasses.field(
        default=default,
        metadata={
            "help": text,
            "choices": allowed,
            "role": role,
            "data": data,
            "at_least": at_least,
            "only_with": only_with,
        },
    )


def names(config_class: "type[DataclassInstance]", *roles: Role) -> list[str]:
    """Returns the names of the fields that have one of some roles, in their order."""
    return [
        field.name
        for field in dataclasses.fields(config_class)
        if field.metadata["role"] in roles
    ]


def values(config: "DataclassInstance", *roles: Role) -> dict[str, Any]:
    """Returns the values of the fields that have one of some roles.

    Example:
      >>> @dataclasses.dataclass(frozen=True)
      ... class Config:
      ...     rounds: int = described(2000, 'training rounds')
      ...     seed: int = described(0, 'seed of sampling', role='seed')
      >>> values(Config(seed=3), 'seed')
      {'seed': 3}
    """
    return {name: getattr(config, name) for name in names(type(config), *roles)}


def data_field(config_class: "type[DataclassInstance]") -> str | None:
    """Returns the field that says where the data lie; None where there is none."""
    found = [f.name for f in dataclasses.fields(config_class) if f.metadata["data"]]
    return found[0] if found else None


def without_effect(
    config: "DataclassInstance",
    given: Iterable[str],
    beside: "Sequence[DataclassInstance]" = (),
) -> list[str]:
    """Returns which of the given fields change nothing, and what they would need.

    Args:
      config: A dataclass instance whose fields were made by `described`.
      given: The fields that somebody has set.
      beside: Further instances, which a field's `only_with` may name a field of.

    Returns:
      A text for each, such as 'k=5 needs averager=uta; it is last'.
    """
    found = []
    for field in dataclasses.fields(config):
        if field.name not in given or field.metadata["only_with"] is None:
            continue
        other, values = field.metadata["only_with"]
        owner = next(c for c in (config, *beside) if hasattr(c, other))
        actual = getattr(owner, other)
        if actual in values:
            continue
        shown = f"{field.name}={getattr(config, field.name)}"
        if values == NOT_GIVEN:
            found.append(f"{shown} has no place beside {other}={actual}")
        else:
            needed = " or ".join(map(str, values))
            found.append(f"{shown} needs {other}={needed}; it is {actual}")
    return found


def idle(
    config: "DataclassInstance",
    given: Iterable[str],
    beside: "Sequence[DataclassInstance]" = (),
) -> list[str]:
    """Returns what `without_effect` does, by a method of this name where there is one.

    A class has such a method where more than `only_with` decides.
    """
    own = getattr(config, "without_effect", None)
    return own(given) if own is not None else without_effect(config, given, beside)


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
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
            several = value
        else:
            several = (value,)
        for element in several:
            _check_value(field, hint, element)


def _check_value(field: dataclasses.Field, hint: Any, value: Any) -> None:
    """Refuses a value, or one of several, that the field cannot have."""
    kind = next((k for k in _KINDS if hint in (k, k | None)), None)
    if kind and not _is_a(value, kind):
        raise ValueError(f"{field.name} must be {_KINDS[kind]}; got {value!r}")
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(
            f"{field.name} must be one of {', '.join(choices)}; got {value!r}"
        )
    least = field.metadata["at_least"]
    if kind in (int, float) and not value >= least:
        raise ValueError(f"{field.name} must be at least {least}; got {value!r}")


# The types of fields, and what errors call them.
_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def _is_a(value: object, kind: type) -> bool:
    """Returns whether a value may stand in a field of a kind."""
    if kind is bool:
        return isinstance(value, bool)
    if kind is str:
        return isinstance(value, str | os.PathLike)
    return checks.is_whole(value) if kind is int else checks.is_number(value)

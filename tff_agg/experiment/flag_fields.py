"""Flags from the fields of a frozen configuration, and back."""

import dataclasses
import typing
from typing import Any, TypeVar

from absl import flags

_C = TypeVar("_C")
_MAKERS = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
    str: flags.DEFINE_string,
}


def define(config_class: type, values: flags.FlagValues) -> None:
    """Defines a flag for each field of a class of `config.field`s.

    A field that had another name in earlier versions gets a flag of that name, too.
    """
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        text, choices = field.metadata["help"], field.metadata["choices"]
        arguments: tuple[Any, ...] = (field.name, field.default)
        if choices:
            flags.DEFINE_enum(*arguments, choices, text, flag_values=values)
            continue
        kinds = [k for k in typing.get_args(hints[field.name]) if k is not type(None)]
        kind = kinds[0] if kinds else hints[field.name]
        _MAKERS[kind](*arguments, text, flag_values=values)
    for old, new in getattr(config_class, "renamed", {}).items():
        flags.DEFINE_alias(old, new, flag_values=values)


def read(config_class: type[_C], values: flags.FlagValues, **changes: Any) -> _C:
    """Makes the configuration that the flags describe."""
    names = [field.name for field in dataclasses.fields(typing.cast(Any, config_class))]
    return config_class(**({name: values[name].value for name in names} | changes))


def define_one(values: flags.FlagValues, kind: str, *arguments: Any) -> None:
    """Defines one flag of a kind ('list', 'string', …) on some flag values."""
    getattr(flags, f"DEFINE_{kind}")(*arguments, flag_values=values)

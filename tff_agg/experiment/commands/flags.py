"""Flags of binaries, made from the fields of a configuration, and back.

Importing this module loads neither TensorFlow nor any flag.
"""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from absl import flags

# The flags belong to the binary that asks for them, which lists them under --help.
flags.disclaim_key_flags()

_C = TypeVar("_C")
_MAKERS = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def define(
    config_class: type,
    flag_values: flags.FlagValues,
    *,
    defaults: Mapping[str, object] | None = None,
    more_choices: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Defines a flag for each field of a configuration.

    A field that had another name in earlier versions gets a flag of that name, too.

    Args:
      config_class: A dataclass whose fields were made by `tff_agg.fields.described`.
      flag_values: Where to define them: `flags.FLAGS` in a binary, a fresh
        `flags.FlagValues()` for any other use.
      defaults: Defaults of this binary that are not the fields' own.
      more_choices: What this binary allows besides the fields' own choices.

    Example:
      >>> from tff_agg.privacy import PrivacyRecipe
      >>> values = flags.FlagValues()
      >>> define(PrivacyRecipe, values)
      >>> _ = values(['program', '--rounds=100', '--noise_multiplier=1'])
      >>> read(PrivacyRecipe, values).rounds
      100
    """
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        default = (defaults or {}).get(field.name, field.default)
        text, choices = field.metadata["help"], field.metadata["choices"]
        if choices:
            allowed = [*choices, *(more_choices or {}).get(field.name, ())]
            flags.DEFINE_enum(
                field.name, default, allowed, text, flag_values=flag_values
            )
            continue
        hint = hints[field.name]
        kinds = [k for k in typing.get_args(hint) if k is not type(None)] or [hint]
        _MAKERS[kinds[0]](field.name, default, text, flag_values=flag_values)
    for old, new in getattr(config_class, "renamed", {}).items():
        flags.DEFINE_alias(old, new, flag_values=flag_values)


def values_of(config_class: type, flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the values of the flags that `define` has defined, by field."""
    return {
        field.name: getattr(flag_values, field.name)
        for field in dataclasses.fields(config_class)
    }


def read(config_class: type[_C], flag_values: flags.FlagValues) -> _C:
    """Makes the configuration that the flags describe.

    Raises:
      ValueError: A value is wrong, or a flag was given that changes nothing.
    """
    values = values_of(config_class, flag_values)
    config: Any = config_class(**values)
    given = [name for name in values if flag_values[name].present]
    if idle := config.without_effect(given):
        raise ValueError("flags that have no effect: --" + "; --".join(idle))
    return config


def define_one(flag_values: flags.FlagValues, kind: str, *arguments: object) -> None:
    """Defines one flag of a kind ('list', 'string', …) on some flag values."""
    getattr(flags, f"DEFINE_{kind}")(*arguments, flag_values=flag_values)

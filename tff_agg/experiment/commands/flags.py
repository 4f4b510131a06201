"""Flags made from the fields of dataclasses, and back.

A command's options, a configuration and a privacy recipe are frozen dataclasses whose
fields were made by `tff_agg.fields.described`; nothing else defines a flag. Importing
this module loads neither TensorFlow nor any flag.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from tff_agg import fields
from tff_agg.experiment import presets
from tff_agg.experiment.commands import flag_files
from tff_agg.experiment.config import TrainConfig
from tff_agg.recycling import methods
from tff_agg.recycling.methods import Method

_PRESET = "preset"

# The flags belong to the program that asks for them, which lists them under --help.
flags.disclaim_key_flags()

_BUILT_IN: dict[type, type[flags.ArgumentParser]] = {
    bool: flags.BooleanParser,
    int: flags.IntegerParser,
    float: flags.FloatParser,
}


def define(values: flags.FlagValues, *options: type) -> None:
    """Defines a flag for each field of some dataclasses.

    A field may be a text, a whole number, a number, true or false, a `Method`, a tuple
    of one of these (with commas on the command line; methods as `parse_methods` reads
    them), and may be None where its default is.

    Args:
      values: Where to define them: `flags.FLAGS` in a program, a fresh
        `flags.FlagValues()` for any other use.
      *options: Dataclasses whose fields were made by `tff_agg.fields.described`.
    """
    for kind in options:
        if issubclass(kind, TrainConfig):
            flags.DEFINE_enum(
                _PRESET, presets.BEST, list(presets.PRESETS),
                "the recipe, whose settings hold where no flag says otherwise: "
                + presets.described(), flag_values=values,
            )  # fmt: skip
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            _define(values, field, _without_none(hints[field.name]))


def read(values: flags.FlagValues, *options: type) -> tuple[Any, ...]:
    """Makes the objects that the flags describe.

    Raises:
      ValueError: A value is wrong, or a flag was given that changes nothing.
    """
    read = [kind(**_values(values, kind)) for kind in options]
    idle: list[str] = []
    for value in read:
        given = [name for name in _names(type(value)) if values[name].present]
        beside = [other for other in read if other is not value]
        idle += fields.idle(value, given, beside)
    if idle:
        raise ValueError("flags that have no effect: --" + "; --".join(idle))
    return tuple(read)


def parse(arguments: Sequence[str], *options: type) -> tuple[Any, ...]:
    """Makes the objects that some arguments describe; no program is needed.

    Example:
      >>> from tff_agg.privacy import PrivacyRecipe
      >>> (recipe,) = parse(['--rounds=100', '--noise_multiplier=1'], PrivacyRecipe)
      >>> recipe.rounds
      100
    """
    values = flags.FlagValues()
    define(values, *options)
    rest = values(["", *flag_files.expanded(arguments)])[1:]
    if rest:
        raise ValueError(f"unexpected arguments: {' '.join(rest)}")
    return read(values, *options)


def written(options: Any, roles: Sequence[fields.Role] = fields.ROLES) -> list[str]:
    """Returns the flags of a dataclass whose values are not the defaults.

    Example:
      >>> from tff_agg.privacy import PrivacyRecipe
      >>> written(PrivacyRecipe(rounds=30, epsilon=8.0, completion=False))
      ['--rounds=30', '--epsilon=8.0']
    """
    values = flags.FlagValues()
    define(values, type(options))
    lines = []
    for name in fields.names(type(options), *roles):
        value = getattr(options, name)
        if value != values[name].value:
            values[name].value = value
            lines += values[name].serialize().splitlines()
    return lines


def _values(values: flags.FlagValues, options: type) -> dict[str, Any]:
    """Returns the values of a dataclass's fields: as given, of the preset, default."""
    settings = {name: values[name].value for name in _names(options)}
    if not issubclass(options, TrainConfig):
        return settings
    preset = presets.PRESETS[values[_PRESET].value].settings
    return settings | {
        name: value for name, value in preset.items() if not values[name].present
    }


def _names(options: type) -> list[str]:
    return [field.name for field in dataclasses.fields(options)]


def _without_none(hint: Any) -> Any:
    """Returns X for `X | None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


class _Parser(flags.ArgumentParser):
    """Reads a flag's text by a function; a default may be the value itself."""

    def __init__(self, read: Callable[[str], Any], syntactic_help: str = ""):
        self._read = read
        self.syntactic_help = syntactic_help

    def parse(self, argument: Any) -> Any:
        """Returns the value."""
        return self._read(argument) if isinstance(argument, str) else argument


class _Serializer(flags.ArgumentSerializer):
    """Writes a value so that it is read back."""

    def __init__(self, write: Callable[[Any], str]):
        self._write = write

    def serialize(self, value: Any) -> str:
        """Returns the text."""
        return self._write(value)


def _define(values: flags.FlagValues, field: dataclasses.Field, kind: Any) -> None:
    """Defines the flag of one field."""
    text, choices = field.metadata["help"], field.metadata["choices"]
    default = (
        field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
    )
    named: dict[str, Any] = {"flag_values": values}
    if kind is bool:
        flags.DEFINE_boolean(field.name, default, text, **named)
    elif kind is str and choices:
        flags.DEFINE_enum(field.name, default, choices, text, **named)
    elif kind is str:
        flags.DEFINE_string(field.name, default, text, **named)
    else:
        parser, serializer = _reader(kind, choices)
        flags.DEFINE(parser, field.name, default, text, values, serializer)


def _reader(
    kind: Any, choices: Sequence[str] | None
) -> tuple[flags.ArgumentParser, flags.ArgumentSerializer]:
    """Returns what reads and writes the values of a type."""
    if kind in _BUILT_IN:
        return _BUILT_IN[kind](), flags.ArgumentSerializer()
    if kind is Method:
        return _Parser(Method.parse, "such as uta:100"), _Serializer(str)
    if typing.get_origin(kind) is not tuple:
        raise TypeError(f"{kind}: no flag can be made of a field of this type")
    element = typing.get_args(kind)[0]
    if element is Method:
        parser = _Parser(methods.parse_methods, "such as 'uta:10,50 ema:0.9 opa:10'")
        return parser, _Serializer(methods.written)
    of_element = (
        flags.EnumParser(choices)
        if choices
        else _BUILT_IN.get(element, flags.ArgumentParser)()
    )
    separated = _Parser(
        lambda text: tuple(
            of_element.parse(part.strip()) for part in text.split(",") if part
        ),
        f"with commas{f', of {choices}' if choices else ''}",
    )
    return separated, _Serializer(lambda value: ",".join(map(str, value)))

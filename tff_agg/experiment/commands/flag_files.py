"""Files of flags: `--flagfile=…` on a command line, and inside such a file.

A line of a file is a flag. Lines that are empty or begin with # or // say nothing. What
comes later wins, so that a file can include another and change what differs. Unlike
absl's own, the path of a file inside a file is relative to that file.
"""

import pathlib
from collections.abc import Iterable

from absl import flags

_NAMES = ("-flagfile", "--flagfile")


def expanded(arguments: Iterable[str]) -> list[str]:
    """Returns arguments with the lines of flag files in the files' places.

    Raises:
      flags.Error: A file cannot be read, or includes itself.

    Example:
      >>> expanded(['--rounds=3'])
      ['--rounds=3']
    """
    return _expanded(arguments, pathlib.Path(), ())


def _expanded(
    arguments: Iterable[str], folder: pathlib.Path, inside: tuple[pathlib.Path, ...]
) -> list[str]:
    """Expands arguments whose paths are relative to a folder."""
    flat: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in _NAMES:
            path = value if equals else next(rest, "")
            if not path:
                raise flags.Error(f"{name} must name a file, such as {name}=run.cfg")
            flat += _lines(folder / pathlib.Path(path).expanduser(), inside)
        else:
            flat.append(argument)
            if argument == "--":  # what follows is no flag
                return [*flat, *rest]
    return flat


def _lines(path: pathlib.Path, inside: tuple[pathlib.Path, ...]) -> list[str]:
    """Returns the flags of a file that is included in others."""
    path = path.resolve()
    if path in inside:
        raise flags.Error(f"--flagfile: {path} includes itself")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        by = f", which {inside[-1]} includes" if inside else ""
        raise flags.Error(f"--flagfile: cannot read {path}{by}: {error}") from error
    lines = (line.strip() for line in text.splitlines())
    given = [line for line in lines if line and not line.startswith(("#", "//"))]
    return _expanded(given, path.parent, (*inside, path))

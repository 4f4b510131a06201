"""Studies: many runs, one table; alone it lists them."""

from collections.abc import Mapping

STUDIES: Mapping[str, str] = {"fair": "stackoverflow.studies.fair"}


def subcommands(task: type) -> Mapping[str, str]:
    """Returns the module of each study."""
    return STUDIES

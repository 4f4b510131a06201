"""Studies: many runs, one table; alone it lists them."""

from collections.abc import Mapping

STUDIES: Mapping[str, str] = {"table": "pcvr.studies.table"}


def subcommands(task: type) -> Mapping[str, str]:
    """Returns the module of each study."""
    return STUDIES

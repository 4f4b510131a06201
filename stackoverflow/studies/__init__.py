"""Studies: many runs, one table; alone it lists them."""

from collections.abc import Mapping

STUDIES: Mapping[str, str] = {
    name: f"{__name__}.{name}"
    for name in ("demo", "demo_search", "fair", "paper", "readings", "schedule")
}


def subcommands(task: type) -> Mapping[str, str]:
    """Returns the module of each study."""
    return STUDIES

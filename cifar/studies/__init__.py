"""Studies: many runs, one table; alone it lists them."""

from collections.abc import Mapping

STUDIES: Mapping[str, str] = {
    "table": "cifar.studies.table",
    "probes": "cifar.studies.probes",
    "pretraining": "cifar.studies.pretraining",
}


def subcommands(task: type) -> Mapping[str, str]:
    """Returns the module of each study."""
    return STUDIES

"""`tff-agg TASK COMMAND …`, `tff-agg account …` and `tff-agg shapes …`.

TASK is the package of a task: stackoverflow, cifar, pcvr, or one of your own. It is the
same as `python -m TASK COMMAND …`.
"""

import importlib.util
import runpy
import sys

from tff_agg.experiment import commands

OWN = {"account": "tff_agg.account", "shapes": "tff_agg.shapes"}


def main() -> None:
    """Runs as the console command `tff-agg`, and as `python -m tff_agg`."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in OWN:
        commands.run_listed("tff-agg", OWN)
    if not name or name.startswith("-"):
        print(f"{__doc__}\n{commands.listed('tff-agg', OWN)}")
        sys.exit(0)
    if not _is_task(name):
        print(
            f"{name!r} names no task: a package with a __main__.py, such as "
            "stackoverflow, cifar or pcvr",
            file=sys.stderr,
        )
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _is_task(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{name}.__main__") is not None
    except (ImportError, ValueError):
        return False


if __name__ == "__main__":
    main()

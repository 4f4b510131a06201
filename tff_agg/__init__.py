"""Private federated learning that uses its checkpoints.

The light parts (`averaging`, `noise`, `privacy`, `checkpoints`, `uncertainty`) import
neither TensorFlow nor TFF. What needs them is imported when it is first used:

  >>> import tff_agg
  >>> tff_agg.runtime.use('local')
  >>> process = tff_agg.build_dp_ftrl_process(model_fn, plan=plan, client_optimizer=0.5)
"""

import importlib
from typing import Any

from tff_agg import averaging, noise, privacy
from tff_agg.averaging import Averager
from tff_agg.noise import Mechanism
from tff_agg.privacy import Plan

__all__ = [
    "Averager",
    "Mechanism",
    "Plan",
    "averaging",
    "build_dp_ftrl_process",
    "noise",
    "privacy",
    "runtime",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports what needs TensorFlow when it is first asked for."""
    if name == "build_dp_ftrl_process":
        return importlib.import_module("tff_agg.process").build_dp_ftrl_process
    if name == "runtime":
        return importlib.import_module("tff_agg.runtime")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Private federated learning that uses its checkpoints.

Everything is imported when it is first used, and the light parts (`averaging`, `noise`,
`privacy`, `checkpoints`, `recycling`) import neither TensorFlow nor TFF:

  import tff_agg
  tff_agg.runtime.set_up_tensorflow()
  tff_agg.runtime.use('local')
  process = tff_agg.build_dp_ftrl_process(model_fn, plan=plan, client_optimizer=0.5)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tff_agg import averaging, checkpoints, noise, privacy, recycling, runtime
    from tff_agg.averaging import Averager
    from tff_agg.federated.process import build_dp_ftrl_process
    from tff_agg.noise import Mechanism
    from tff_agg.privacy import Plan

__all__ = [
    "Averager",
    "Mechanism",
    "Plan",
    "averaging",
    "build_dp_ftrl_process",
    "checkpoints",
    "noise",
    "privacy",
    "recycling",
    "runtime",
]

__version__ = "0.1.0"

_FROM = {
    "Averager": "averaging",
    "Mechanism": "noise",
    "Plan": "privacy",
    "build_dp_ftrl_process": "federated.process",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for."""
    if name in _FROM:
        return getattr(importlib.import_module(f"tff_agg.{_FROM[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"tff_agg.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the public names, imported or not."""
    return sorted({*globals(), *__all__})

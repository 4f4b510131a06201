"""Uses of stored checkpoints: aggregation at inference, tuning, uncertainty.

Everything is imported when it is first used:

  from tff_agg import recycling
  recycling.parse_methods('uta:10,50 opa:10')
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tff_agg.recycling import methods, metrics, outputs, problems, uncertainty
    from tff_agg.recycling.methods import Method, aggregate, evaluate, parse_methods
    from tff_agg.recycling.metrics import Metric, OutputJudge, accuracy_judge
    from tff_agg.recycling.outputs import Predictions, aggregate_outputs
    from tff_agg.recycling.problems import CLASSIFICATION, REGRESSION, Problem
    from tff_agg.recycling.uncertainty import interval_widths, variance_estimate

__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "Method",
    "Metric",
    "OutputJudge",
    "Predictions",
    "Problem",
    "accuracy_judge",
    "aggregate",
    "aggregate_outputs",
    "evaluate",
    "interval_widths",
    "methods",
    "metrics",
    "outputs",
    "parse_methods",
    "problems",
    "uncertainty",
    "variance_estimate",
]

_FROM = {
    "CLASSIFICATION": "problems",
    "REGRESSION": "problems",
    "Method": "methods",
    "Metric": "metrics",
    "OutputJudge": "metrics",
    "Predictions": "outputs",
    "Problem": "problems",
    "accuracy_judge": "metrics",
    "aggregate": "methods",
    "aggregate_outputs": "outputs",
    "evaluate": "methods",
    "interval_widths": "uncertainty",
    "parse_methods": "methods",
    "variance_estimate": "uncertainty",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for."""
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the public names, imported or not."""
    return sorted({*globals(), *__all__})

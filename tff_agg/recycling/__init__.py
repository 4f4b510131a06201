"""Uses of stored checkpoints: aggregation at inference, tuning, uncertainty.

Example:
  recycling.parse_methods('uta:10,50 opa:10')
"""

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

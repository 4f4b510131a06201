"""Participation, sensitivity, accounting and the plan that ties them together.

Example:
  >>> plan = Plan(clip_norm=1.0, cohort_size=100, rounds=2000,
  ...             mechanism=tff_agg.noise.tree(), noise_multiplier=0.341)
  >>> plan.rho, plan.epsilon
"""

from tff_agg.privacy.accounting import (
    Epsilons,
    calibrate,
    dp_sgd_epsilon,
    gaussian_epsilon,
    gaussian_epsilon_of,
    gaussian_epsilons,
    rho,
)
from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
    implies,
)
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.report import add_audit, add_search, searches_of, write_report
from tff_agg.privacy.searches import SearchCost, inference_search, training_search
from tff_agg.privacy.sensitivity import Sensitivity, sensitivity
from tff_agg.privacy.tf_privacy import (
    noise_multiplier_from_per_node,
    per_node_from_noise_multiplier,
    rho_of_per_node,
)

__all__ = [
    "AtMostOnce",
    "Epsilons",
    "FixedEpochOrder",
    "MinSeparation",
    "Participation",
    "Plan",
    "SearchCost",
    "Sensitivity",
    "add_audit",
    "add_search",
    "calibrate",
    "dp_sgd_epsilon",
    "gaussian_epsilon",
    "gaussian_epsilon_of",
    "gaussian_epsilons",
    "implies",
    "inference_search",
    "noise_multiplier_from_per_node",
    "per_node_from_noise_multiplier",
    "rho",
    "rho_of_per_node",
    "searches_of",
    "sensitivity",
    "training_search",
    "write_report",
]

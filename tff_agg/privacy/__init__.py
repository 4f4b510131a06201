"""Participation, sensitivity, accounting and the plan that ties them together.

Example:
  >>> plan = Plan(clip_norm=1.0, cohort_size=100, rounds=2000,
  ...             mechanism=tff_agg.noise.tree(), noise_multiplier=0.341)
  >>> round(plan.rho, 2), round(plan.epsilon, 2)
  (4.3, 17.65)
"""

from tff_agg.privacy.cohorts import ParticipationError
from tff_agg.privacy.dp_sgd_plan import DPSGDPlan
from tff_agg.privacy.guarantees import (
    Epsilons,
    calibrate,
    delta_warning,
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
from tff_agg.privacy.plan_protocol import PrivacyPlan, Sampler
from tff_agg.privacy.poisson import PoissonSampling, ShiftingPoissonSampling
from tff_agg.privacy.recipe import PrivacyRecipe
from tff_agg.privacy.releases import Release
from tff_agg.privacy.report import add_audit, add_search, searches_of, write_report
from tff_agg.privacy.sampled_guarantees import (
    dp_sgd_epsilon,
    dp_sgd_noise,
    dp_sgd_renyi,
    dp_sgd_steps,
)
from tff_agg.privacy.searches import SearchCost, inference_search, training_search
from tff_agg.privacy.selection import KeySelection
from tff_agg.privacy.sensitivity import Sensitivity, sensitivity
from tff_agg.privacy.tf_privacy import (
    noise_multiplier_from_per_node,
    per_node_from_noise_multiplier,
    rho_of_per_node,
)

__all__ = [
    "AtMostOnce",
    "DPSGDPlan",
    "Epsilons",
    "FixedEpochOrder",
    "KeySelection",
    "MinSeparation",
    "Participation",
    "ParticipationError",
    "Plan",
    "PoissonSampling",
    "PrivacyPlan",
    "PrivacyRecipe",
    "Release",
    "Sampler",
    "SearchCost",
    "Sensitivity",
    "ShiftingPoissonSampling",
    "add_audit",
    "add_search",
    "calibrate",
    "delta_warning",
    "dp_sgd_epsilon",
    "dp_sgd_noise",
    "dp_sgd_renyi",
    "dp_sgd_steps",
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

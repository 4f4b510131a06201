"""Participation, sensitivity, accounting and the plan that ties them together.

Example:
  >>> plan = Plan(clip_norm=1.0, cohort_size=100, rounds=2000,
  ...             mechanism=tff_agg.noise.tree(), noise_multiplier=0.341)
  >>> round(plan.rho, 2), round(plan.epsilon, 2)
  (4.3, 17.65)
"""

from tff_agg.privacy.cohorts import ParticipationError, Sampler
from tff_agg.privacy.losses import METHODS, Loss, delta_warning, noise_for
from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
    PoissonSampling,
    ShiftingPoissonSampling,
    implies,
)
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.recipe import PrivacyRecipe
from tff_agg.privacy.releases import Release
from tff_agg.privacy.report import add_audit, add_search, searches_of, write_report
from tff_agg.privacy.searches import SearchCost, inference_search, training_search
from tff_agg.privacy.selection import KeySelection
from tff_agg.privacy.sensitivity import Sensitivity, sensitivity
from tff_agg.privacy.tf_privacy import rho_of_per_node

__all__ = [
    "METHODS",
    "AtMostOnce",
    "FixedEpochOrder",
    "KeySelection",
    "Loss",
    "MinSeparation",
    "Participation",
    "ParticipationError",
    "Plan",
    "PoissonSampling",
    "PrivacyRecipe",
    "Release",
    "Sampler",
    "SearchCost",
    "Sensitivity",
    "ShiftingPoissonSampling",
    "add_audit",
    "add_search",
    "delta_warning",
    "implies",
    "inference_search",
    "noise_for",
    "rho_of_per_node",
    "searches_of",
    "sensitivity",
    "training_search",
    "write_report",
]

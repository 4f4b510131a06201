"""Participation, sensitivity, accounting and the plan that ties them together."""

from tff_agg.privacy.participation import (
    AtMostOnce,
    FixedEpochOrder,
    MinSeparation,
    Participation,
)
from tff_agg.privacy.plan import Plan
from tff_agg.privacy.sensitivity import Sensitivity, sensitivity

__all__ = [
    "AtMostOnce",
    "FixedEpochOrder",
    "MinSeparation",
    "Participation",
    "Plan",
    "Sensitivity",
    "sensitivity",
]

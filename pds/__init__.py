"""Clients from two periodically shifting populations."""

from pds.groups import Group, by_label_parity, by_type, everyone
from pds.participation_log import ParticipationLog
from pds.sampler import ExhaustedError, Participant, Sampler, Shortage
from pds.schedule import Schedule, constant, cosine, linear, step
from tff_agg.privacy.cohorts import (
    ParticipationError,
    ParticipationReport,
    check_participation,
)

__all__ = [
    "ExhaustedError",
    "Group",
    "Participant",
    "ParticipationError",
    "ParticipationLog",
    "ParticipationReport",
    "Sampler",
    "Schedule",
    "Shortage",
    "by_label_parity",
    "by_type",
    "check_participation",
    "constant",
    "cosine",
    "everyone",
    "linear",
    "step",
]

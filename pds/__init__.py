"""Clients from two periodically shifting populations."""

from pds.check import ParticipationError, ParticipationReport, check_participation
from pds.groups import Group, by_label_parity, by_type, everyone
from pds.sampler import ExhaustedError, Participant, Sampler, Shortage
from pds.schedule import Schedule, constant, cosine, linear, step

__all__ = [
    "ExhaustedError",
    "Group",
    "Participant",
    "ParticipationError",
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

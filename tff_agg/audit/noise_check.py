"""Whether the noise of a run is the noise of its plan.

An audit accuses a run that leaks more than claimed. Noise can be wrong and leak less: a
mechanism that forgets its correlation, but is scaled for the sensitivity of its matrix,
hides users better than planned and ruins the model. Where canaries ran alone, what the
probes show is noise and nothing else, and can be held against the plan directly.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.special import log_ndtr

from tff_agg.audit.findings import Evidence
from tff_agg.audit.threats import all_iterates
from tff_agg.privacy.plan import Plan
from tff_agg.server import ServerStep


class NoiseCheck(NamedTuple):
    """How the noise compares with the plan.

    Attributes:
      variance: The variance of the whitened noise; 1 as planned.
      correlation: Its correlation from one round to the next; 0 as planned.
      p_value: The chance of a deviation at least as large, if all is as planned.
    """

    variance: float
    correlation: float
    p_value: float


def check_noise(plan: Plan, server: ServerStep, evidence: Evidence) -> NoiseCheck:
    """Compares the noise that the probes show with the plan's.

    The released increments are turned back into the rounds' sums and multiplied with
    the mechanism's matrix, which leaves independent normals of variance 1.

    Args:
      plan: What is claimed.
      server: The server's step.
      evidence: Of a run in which nobody but canaries took part.

    Example:
      check_noise(plan, server, evidence).p_value > 1e-6  # True
    """
    threat = all_iterates()
    shares = threat.release(server.response(plan.rounds)) / plan.cohort_size
    rows = threat.release(evidence.probes)
    if not rows.size:
        raise ValueError("evidence has no probes: there is no noise to look at")
    sums = scipy.linalg.solve_triangular(shares, rows, lower=True)
    matrix = np.asarray(plan.mechanism.matrix(plan.rounds), float)
    white = matrix @ sums / plan.noise_stddev
    rounds, probes = white.shape
    variance = float(np.mean(white**2))
    deviations = [(variance - 1) * math.sqrt(rounds * probes / 2)]
    correlation = 0.0
    if rounds > 1:
        correlation = float(np.mean(white[1:] * white[:-1]))
        deviations.append(correlation * math.sqrt((rounds - 1) * probes))
    largest = max(abs(z) for z in deviations)
    chance = 2 * len(deviations) * math.exp(float(log_ndtr(-largest)))
    return NoiseCheck(variance, correlation, min(1.0, chance))

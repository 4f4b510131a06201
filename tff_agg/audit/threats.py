"""What an attacker sees: all iterates, the final model, or a recycled one.

With momentum, every release of DP-FTRL is linear in the rounds' noisy means: momentum,
averaging in training and averaging afterwards only add up. A threat model is that
linear map. Applied to the checkpoints it gives what is released. Applied to the
server's response to each round it says how much of which round is in it; from that and
the mechanism's matrix follow how the noise in the release is correlated and where a
canary shows.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from tff_agg import checks
from tff_agg.averaging import Averager, fold, last


@dataclasses.dataclass(frozen=True, eq=False)
class Threat:
    """What leaves the server.

    Attributes:
      name: For reports.
      release: Maps checkpoints [rounds + 1, …], linearly, to what is released of them
        [rows, …]. The initial model is known to everybody and taken away.
    """

    name: str
    release: Callable[[np.ndarray], np.ndarray]


def all_iterates() -> Threat:
    """Every checkpoint is released; and with them all aggregates of checkpoints."""
    return Threat("all iterates", lambda thetas: np.diff(thetas, axis=0))


def noisy_sums() -> Threat:
    """Every round's noisy sum is released, whatever the server makes of it.

    For steps that are not linear: the audit cannot say what of the noise is in their
    checkpoints, but they are made of the sums. The checkpoints that it is applied to
    are those of plain steps along the sums.
    """
    return Threat("noisy sums", lambda thetas: np.diff(thetas, axis=0))


def final_model(averager: Averager | None = None) -> Threat:
    """Only the last model is released: the last iterate, or training's aggregate."""
    return Threat("final model", lambda thetas: _newest(averager or last(), thetas))


def recycled_model(averager: Averager) -> Threat:
    """Only an average of the checkpoints is released (UTA, EMA, PDA)."""
    return Threat(
        f"recycled model, {averager.name}", lambda thetas: _newest(averager, thetas)
    )


def last_models(k: int) -> Threat:
    """The last k checkpoints are released.

    Whoever is answered with outputs aggregated over the last k checkpoints (OPA, OMV)
    sees a function of these and cannot do better than this attacker.
    """
    k = checks.whole("k", k)

    def release(thetas: np.ndarray) -> np.ndarray:
        seen = thetas[max(1, len(thetas) - k) :]
        # Differences: neighbours have nearly all of their noise in common.
        return np.concatenate([seen[:1] - thetas[:1], np.diff(seen, axis=0)])

    return Threat(f"last {k} models", release)


def _newest(averager: Averager, thetas: np.ndarray) -> np.ndarray:
    """Returns the last aggregate as one row, relative to the initial model."""
    newest = collections.deque(fold(averager, thetas), maxlen=1)[0]
    return (newest - thetas[0])[None]

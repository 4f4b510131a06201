"""Workloads: what training does with the rounds' sums, and noise is optimised for.

Training turns the rounds' sums g into what is read, A·g; the noise C⁻¹z that is added
to the sums comes out as AC⁻¹z. A's scale and sign do not matter: they change the error
of every C alike.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tff_agg import checks
from tff_agg.aliases import JsonObject
from tff_agg.noise import toeplitz
from tff_agg.noise.mechanism import fingerprint

Series = Callable[[int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Workload:
    """What training does with the rounds' sums, as a matrix A.

    Attributes:
      matrix: A of so many rounds, [reads, rounds].
      parameters: What identifies it, as JSON values: it stands in what a mechanism
        reports, and cached results are found by it.
      series: A's first column where A is lower triangular and Toeplitz, that is, where
        a server does the same in every round; `banded` and `blt` need it.
      root: The first terms of the square root of that power series, where there is a
        closed form.
    """

    matrix: Callable[[int], np.ndarray]
    parameters: JsonObject
    series: Series | None = None
    root: Series | None = None

    def first_column(self, rounds: int) -> np.ndarray:
        """Returns A's first column.

        Raises:
          ValueError: A is not Toeplitz.
        """
        if self.series is None:
            raise ValueError(
                f"workload {self.parameters} does not do the same in every round (its "
                "matrix is not Toeplitz), and banded and blt are optimised only for "
                "those that do; dense takes any"
            )
        return self.series(rounds)

    def square_root(self, rounds: int) -> np.ndarray:
        """Returns the first terms of the root of A's power series.

        Raises:
          ValueError: A is not Toeplitz.
        """
        if self.root is not None:
            return self.root(rounds)
        return toeplitz.square_root(self.first_column(rounds))

    def to_json(self) -> JsonObject:
        """Returns what identifies it, as JSON values.

        Example:
          >>> momentum(0.5).to_json()
          {'momentum_decay': 0.5}
        """
        return dict(self.parameters)


def prefix_sum() -> Workload:
    """Sums of all rounds so far: a server that takes plain steps.

    Example:
      >>> prefix_sum().matrix(2)
      array([[1., 0.],
             [1., 1.]])
    """
    return momentum(0.0)


def momentum(decay: float) -> Workload:
    """A server with heavy-ball momentum.

    A step t moves the model by Σ_{i ≤ t} decay^(t − i)·g_i; the model is the sum of the
    steps. As a power series that is 1/((1 − x)(1 − decay·x)), and its square root is a
    product of two binomial series.

    Args:
      decay: What is left of the momentum after a round; 0 makes prefix sums.

    Example:
      >>> momentum(0.5).first_column(3)
      array([1.  , 1.5 , 1.75])
    """
    decay = checks.number("decay", decay, "[0, 1)")

    def series(n: int) -> np.ndarray:
        return np.cumsum(decay ** np.arange(n, dtype=float))

    def root(n: int) -> np.ndarray:
        steps = np.arange(1, n)
        binomial = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
        if decay == 0.0:
            return binomial
        import scipy.signal

        other = binomial * decay ** np.arange(n)
        return scipy.signal.fftconvolve(binomial, other)[:n]

    return Workload(
        matrix=lambda n: toeplitz.explicit(series(n)),
        parameters={"momentum_decay": decay},
        series=series,
        root=root,
    )


class LinearStep(Protocol):
    """A server whose steps are linear in the rounds' means, as `ServerStep` is."""

    def response(self, rounds: int) -> np.ndarray:
        """Returns [rounds + 1, rounds]: the share of each mean in each checkpoint."""


def of_server(step: LinearStep, rounds: int) -> Workload:
    """Measures the workload of a server from its responses to single rounds.

    What is read is the checkpoints θ_1, θ_2, …, with whatever the server does with
    rates and momentum, and with averages where steps start from them. They are scaled
    so that the first has one unit of the first round.

    Args:
      step: A `tff_agg.server.ServerStep` with a linear optimiser.
      rounds: How many are measured; no more are served.

    Raises:
      ValueError: The server is not linear.

    Example:
      >>> from tff_agg import server
      >>> step = server.server_step(server.momentum(0.5), learning_rate=0.1)
      >>> of_server(step, 2).matrix(2).round(9)
      array([[1. , 0. ],
             [1.5, 1. ]])
    """
    rounds = checks.whole("rounds", rounds)
    # The checkpoint before the first round has nothing of any.
    measured = np.asarray(step.response(rounds), float)[1:]
    if measured.shape != (rounds, rounds):
        raise ValueError(
            f"step must respond with [{rounds + 1}, {rounds}] shares, one row for each "
            f"checkpoint, got {len(measured) + 1} rows of shape {measured.shape[1:]}"
        )
    if not np.isfinite(measured).all() or measured[0, 0] == 0:
        raise ValueError(
            "step must respond with finite shares, and to the first round at once, got "
            f"{measured[0, 0]} for it"
        )
    measured = measured / measured[0, 0] + 0.0  # No negative zeros.

    def matrix(n: int) -> np.ndarray:
        checks.whole("rounds", n, most=rounds)
        return measured[:n, :n].copy()

    same = toeplitz.explicit(measured[:, 0])
    slack = 1e-12 * np.abs(measured).max()
    return Workload(
        matrix=matrix,
        parameters={"server_response": fingerprint(measured)},
        series=(
            (lambda n: matrix(n)[:, 0])
            if np.allclose(measured, same, rtol=0, atol=slack)
            else None
        ),
    )


def check(workload: object) -> Workload:
    """Returns a workload that was given as one."""
    if isinstance(workload, Workload):
        return workload
    raise ValueError(
        "workload must be a Workload, for example workloads.momentum(0.9), got "
        f"{workload!r}"
    )

"""Restarting: a decorator that starts a mechanism afresh every so many rounds."""

import numpy as np
import scipy.linalg

from tff_agg.aliases import Scalar
from tff_agg.noise.mechanism import Mechanism, Stream


def restart_every(mechanism: Mechanism, period: int) -> Mechanism:
    """Runs `mechanism` for `period` rounds, then anew with fresh normals, for ever.

    The matrix is block diagonal. The sensitivity adds up over blocks: one
    participation costs what it costs in one block, several may cost one block each.

    Args:
      mechanism: The mechanism inside; it must serve at least `period` rounds.
      period: Rounds between two restarts.

    Example:
      >>> restart_every(tree(), 2).matrix(3)
      array([[1., 0., 0.],
             [1., 1., 0.],
             [0., 0., 1.]])
    """
    try:
        period = mechanism.check_rounds(period)
    except ValueError as error:
        raise ValueError(f"period={period!r}: {error}") from None

    def blocks(n: int) -> list[int]:
        full, rest = divmod(n, period)
        return [period] * full + ([rest] if rest else [])

    def block_diagonal(of):
        if of is None:
            return None

        def explicit(n: int) -> np.ndarray:
            return scipy.linalg.block_diag(*(of(size) for size in blocks(n)))

        return explicit

    def step(backend, buffers, round, draw, like):
        inside = round % period
        first = round - inside

        def draw_inside(at: Scalar, index: Scalar = 0):
            return draw(first + at, index)

        if mechanism.buffers:
            buffers = backend.cond(
                backend.equal(inside, 0),
                lambda: mechanism.stream.start(backend, like),
                lambda: buffers,
            )
        return mechanism.stream.step(backend, buffers, inside, draw_inside, like)

    forest = None
    if (inner := mechanism.forest) is not None:

        def forest(n: int) -> tuple:
            return tuple(root for size in blocks(n) for root in inner(size))

    return Mechanism(
        name=f"{mechanism.name}+restart",
        stream=Stream(start=mechanism.stream.start, step=step),
        matrix=block_diagonal(mechanism.matrix),
        buffers=mechanism.buffers,
        parameters={
            "period": period,
            "inner": mechanism.name,
            **mechanism.parameters,
        },
        bands=mechanism.bands,
        encoder=block_diagonal(mechanism.encoder),
        decoder=block_diagonal(mechanism.decoder),
        forest=forest,
        content=lambda: {
            "mechanism": "restart",
            "period": period,
            "inner": mechanism.to_json(),
        },
    )

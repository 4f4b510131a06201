"""Binary-tree noise: the classical way to keep the noise of running sums small.

A node of the tree holds the sum of 2**h consecutive rounds plus noise; the sum of the
first t rounds is read off at most log2(t) + 1 nodes. The mechanism returns the
differences of those readings' noise, so that adding up rounds gives them back.
"""

from collections.abc import Mapping

import numpy as np
import scipy.linalg

from tff_agg import checks, structure
from tff_agg.aliases import Json, Scalar, Structure
from tff_agg.backends import Backend, combine
from tff_agg.noise import forest
from tff_agg.noise.mechanism import Draw, Mechanism, Stream

ESTIMATORS = ("plain", "honaker")


def tree(
    estimator: str = "plain", rounds: int | None = None, completion: bool = False
) -> Mechanism:
    """Binary-tree aggregation.

    Args:
      estimator: 'plain' reads each prefix off the fewest nodes; it keeps no buffers
        and regenerates past nodes, two draws per round on average. 'honaker' averages
        each node with the sum of its children by inverse variance: less noise, one
        buffer a level.
      rounds: How many rounds it must serve; required by 'honaker' and `completion`.
      completion: Read the last round's prefix off one node over all the rounds, as if
        empty rounds were added up to a power of two. Worth it before a restart: what
        is left behind by a tree is then the noise of a single node.

    Returns:
      The mechanism. Its sensitivity to one participation is √(⌊log2 n⌋ + 1).

    Example:
      >>> tree().matrix(2)
      array([[1., 0.],
             [1., 1.]])
    """
    checks.choice("estimator", estimator, ESTIMATORS)
    if rounds is None and (completion or estimator == "honaker"):
        raise ValueError(
            "rounds must be given for estimator='honaker' and for completion=True"
        )
    rounds = rounds if rounds is None else checks.whole("rounds", rounds)
    parameters = {"estimator": estimator, "rounds": rounds, "completion": completion}
    # A tree over a power of two is complete as it is.
    final = rounds if completion and rounds and rounds & (rounds - 1) else None
    if estimator == "plain":
        return _plain(parameters, rounds, final)
    assert rounds is not None
    return _honaker(parameters, rounds, final)


def _low_bits(n: int) -> list[int]:
    """Returns the positions of the ones of n, the lowest first."""
    return [h for h in range(n.bit_length()) if n >> h & 1]


# --- the plain estimator -----------------------------------------------------------


def _plain(
    parameters: Mapping[str, Json], rounds: int | None, final: int | None
) -> Mechanism:
    """Builds the plain tree, whose node ending at round t is named by t alone."""

    def nodes(n: int) -> tuple[forest.Node, ...]:
        if n != final:
            return forest.binary(n, right_children=False)
        before = forest.binary(n - 1, right_children=False)
        return (forest.Node(n, True, (*before, forest.Node(1, False))),)

    def matrix(n: int) -> np.ndarray:
        # Rows in the order of the rounds at which the nodes end.
        spans = sorted(forest.intervals(nodes(n)), key=lambda span: span[1])
        c = np.zeros((n, n))
        for row, (first, end) in zip(c, spans, strict=True):
            row[first:end] = 1.0
        return c

    def regular(backend: Backend, round: Scalar, draw: Draw) -> Structure:
        """Takes from z_t the nodes it swallows, which end at t − 1, t − 2, t − 4."""
        t = round + 1

        def more(step, total):
            return backend.equal(t % (2 * step), 0)

        def body(step, total):
            node = draw(round - step)
            return 2 * step, combine(backend, [(1.0, total), (-1.0, node)])

        one = backend.constant(1, np.int64)
        return backend.while_loop(more, body, (one, draw(round)))[1]

    def last(backend: Backend, round: Scalar, draw: Draw) -> Structure:
        """The node over everything minus all nodes of the prefix before it."""
        assert final is not None
        terms = [(1.0, draw(round))]
        end = 0
        for height in reversed(_low_bits(final - 1)):
            end += 2**height
            terms.append((-1.0, draw(round - (final - end))))
        return combine(backend, terms)

    def step(backend, buffers, round, draw, like):
        if final is None:
            return (), regular(backend, round, draw)
        noise = backend.cond(
            backend.equal(round, final - 1),
            lambda: last(backend, round, draw),
            lambda: regular(backend, round, draw),
        )
        return (), noise

    return Mechanism(
        name="tree",
        stream=Stream(start=lambda backend, like: (), step=step),
        matrix=matrix,
        max_rounds=rounds,
        parameters=parameters,
        forest=nodes,
    )


# --- the Honaker estimator ---------------------------------------------------------


def _merge(variance_of_parts: float) -> tuple[float, float]:
    """Returns the weight of a node's own noise and the variance of the average."""
    own = variance_of_parts / (variance_of_parts + 1.0)
    return own, own


def _complete_variances(levels: int) -> list[float]:
    """Returns the variance of the estimate of a complete tree, height by height."""
    variances = [1.0]
    for _ in range(levels):
        variances.append(_merge(2.0 * variances[-1])[1])
    return variances


def _honaker(
    parameters: Mapping[str, Json], rounds: int, final: int | None
) -> Mechanism:
    """Builds the tree whose nodes are averaged with their children, bottom up."""
    levels = (rounds - 1).bit_length()
    variances = _complete_variances(levels)

    def nodes(n: int) -> tuple[forest.Node, ...]:
        if n != final:
            return forest.binary(n, right_children=True)
        node = forest.complete(0, True, True)
        for height in _low_bits(n - 1):
            sibling = forest.complete(height, True, True)
            node = forest.Node(sibling.size + node.size, True, (sibling, node))
        return (node,)

    def regular(backend, buffers, round, draw) -> tuple[tuple, Structure]:
        """Climbs from the new leaf as long as it completes a larger tree."""
        t = round + 1
        estimate = draw(round)
        noise = estimate
        kept = list(buffers)
        for h in range(levels):
            # Python closures see loop variables late; the arguments pin them.
            def climb(h=h, estimate=estimate, noise=noise):
                own, _ = _merge(2.0 * variances[h])
                node = draw(round, h + 1)
                # noise = estimate − Σ buffers below; both move by one level.
                swallowed = combine(backend, [(1.0, buffers[h]), (1.0, estimate)])
                above = combine(backend, [(own, node), (1.0 - own, swallowed)])
                moved = combine(backend, [(1.0, above), (-1.0, estimate)])
                total = combine(backend, [(1.0, noise), (1.0, moved)])
                return above, combine(backend, [(1.0, total), (-1.0, buffers[h])])

            def stay(estimate=estimate, noise=noise):
                return estimate, noise

            kept[h] = backend.cond(
                backend.equal(t % 2 ** (h + 1), 2**h),
                lambda estimate=estimate: estimate,
                lambda h=h: buffers[h],
            )
            estimate, noise = backend.cond(
                backend.equal(t % 2 ** (h + 1), 0), climb, stay
            )
        return tuple(kept), noise

    def last(backend, buffers, round, draw) -> Structure:
        """Averages up to the node over all rounds; empty rounds carry no noise."""
        assert final is not None
        estimate, variance = draw(round), 1.0
        below = []
        for h in _low_bits(final - 1):
            own, variance = _merge(variance + variances[h])
            parts = combine(backend, [(1.0, buffers[h]), (1.0, estimate)])
            estimate = combine(backend, [(own, draw(round, h + 1)), (1.0 - own, parts)])
            below.append((-1.0, buffers[h]))
        return combine(backend, [(1.0, estimate), *below])

    def step(backend, buffers, round, draw, like):
        if final is None:
            return regular(backend, buffers, round, draw)
        return backend.cond(
            backend.equal(round, final - 1),
            lambda: (buffers, last(backend, buffers, round, draw)),
            lambda: regular(backend, buffers, round, draw),
        )

    def decoder(n: int) -> np.ndarray:
        return _honaker_decoder(nodes, n)

    def matrix(n: int) -> np.ndarray:
        residual = decoder(n)
        lower = np.linalg.cholesky(residual @ residual.T)
        return scipy.linalg.solve_triangular(lower, np.eye(n), lower=True)

    return Mechanism(
        name="tree",
        stream=Stream(
            start=lambda backend, like: tuple(
                structure.map_leaves(backend.zeros, like) for _ in range(levels)
            ),
            step=step,
        ),
        matrix=matrix,
        max_rounds=rounds,
        buffers=levels,
        parameters=parameters,
        encoder=lambda n: forest.incidence(nodes(n)),
        decoder=decoder,
        forest=nodes,
    )


def _honaker_decoder(nodes, n: int) -> np.ndarray:
    """Returns the rounds' noise as combinations of the nodes' noise, explicitly.

    Columns follow `forest.intervals(nodes(n))`.
    """
    column = {span: i for i, span in enumerate(forest.intervals(nodes(n)))}
    width = len(column)
    known: dict[tuple[int, int], tuple[np.ndarray, float]] = {}

    def estimate(node: forest.Node, first: int) -> tuple[np.ndarray, float]:
        span = (first, first + node.size)
        if span in known:
            return known[span]
        own = np.zeros(width)
        own[column[span]] = 1.0
        variance = 1.0
        if node.children:
            parts, spread, at = np.zeros(width), 0.0, first
            for child in node.children:
                value, variance = estimate(child, at)
                parts, spread, at = parts + value, spread + variance, at + child.size
            weight, variance = _merge(spread)
            own = weight * own + (1 - weight) * parts
        known[span] = own, variance
        return known[span]

    prefixes = np.zeros((n + 1, width))
    for t in range(1, n + 1):
        at = 0
        for root in nodes(t):
            prefixes[t] += estimate(root, at)[0]
            at += root.size
    return np.diff(prefixes, axis=0)

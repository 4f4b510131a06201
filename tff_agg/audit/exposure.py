"""In which rounds canaries take part: where a user shows the most.

The analysis is for the worst set of rounds that the participation schema allows. An
audit is as strong as the analysis only where its canaries take part in such rounds.
"""

import numpy as np

from tff_agg import checks
from tff_agg.privacy.participation import check_schema
from tff_agg.privacy.plan import Plan


def strengths(
    plan: Plan, matrix: np.ndarray, rounds: list[tuple[int, ...]]
) -> np.ndarray:
    """Returns how much of the sensitivity each user uses, 1 at most.

    Rounds that the schema does not allow count as 1: nothing more is claimed for them.

    Args:
      plan: The run's plan.
      matrix: The mechanism's matrix for the plan's rounds.
      rounds: The rounds of each user.
    """
    norms = np.array(
        [np.linalg.norm(matrix[:, list(own)].sum(axis=1)) for own in rounds]
    )
    return np.minimum(norms / plan.sensitivity.value, 1.0)


def strongest_rounds(
    plan: Plan, count: int, *, room: int | None = None
) -> list[tuple[int, ...]]:
    """Gives canaries the allowed rounds that show them the most.

    Args:
      plan: The run's plan.
      count: How many canaries.
      room: The most canaries in one round, whether they take part or not. By default
        as many as fill about half of the rounds.

    Returns:
      The rounds of each canary, as many as the schema allows.

    Raises:
      ValueError: So many canaries do not fit.

    Example:
      >>> strongest_rounds(plan, 3, room=1)
      [(0,), (1,), (2,)]
    """
    n, schema = plan.rounds, check_schema(plan.participation)
    most = schema.largest(n)
    if room is None:
        room = -(-2 * count * most // n)
    checks.whole("count", count)
    checks.whole("room", room)
    step = schema.spacing(n)
    patterns = [tuple(range(start, n, step))[:most] for start in range(n)]
    matrix = plan.mechanism.matrix(n)
    order = np.argsort(-strengths(plan, matrix, patterns), kind="stable")
    left = np.full(n, room)
    chosen: list[tuple[int, ...]] = []
    for pattern in (patterns[i] for i in order):
        places = min(count - len(chosen), int(left[list(pattern)].min()))
        left[list(pattern)] -= places
        chosen += [pattern] * places
    if len(chosen) < count:
        raise ValueError(
            f"only {len(chosen)} of count={count} canaries fit into {n} rounds with "
            f"room={room} a round; give more room or take fewer canaries"
        )
    return chosen

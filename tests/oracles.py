"""A second implementation of the server's part of a round, in plain numpy.

It shares no code with `tff_agg.server`: sums over explicit weights instead of states.
"""

import numpy as np


def means(sums, noise, cohort_size, stddev):
    """What a noisy mean makes of the rounds' sums; `noise` has variance one or so."""
    return [(s + stddev * z) / cohort_size for s, z in zip(sums, noise, strict=True)]


def trajectory(
    start,
    updates,
    *,
    learning_rate=1.0,
    decay=0.0,
    nesterov=False,
    weights=None,
    step_from="aggregate",
):
    """Returns θ_0, θ_1, … and θ^AGG_0, θ^AGG_1, … of the rounds' means.

    The momentum is the sum of all updates so far, each with the power of the decay that
    its age gives it; an aggregate is the sum of all checkpoints with the averager's
    weights.
    """
    thetas = aggregates = [np.asarray(start, float)]
    for t in range(len(updates)):
        powers = [decay ** (t - i) for i in range(t + 1)]
        momentum = sum(p * np.asarray(u) for p, u in zip(powers, updates, strict=False))
        ahead = decay * momentum + updates[t] if nesterov else momentum
        origin = aggregates[-1] if step_from == "aggregate" else thetas[-1]
        thetas = [*thetas, origin - learning_rate * ahead]
        if weights is None:
            aggregates = [*aggregates, thetas[-1]]
        else:
            shares = zip(weights(t + 1), thetas, strict=True)
            aggregates = [*aggregates, sum(w * theta for w, theta in shares)]
    return np.stack(thetas), np.stack(aggregates)

"""The server's part of a round, as two pairs of pure functions over structures.

`noisy_mean` makes the mean of a clipped sum and adds noise; `server_step` takes a step
with it and averages. TFF wraps them, JAX compiles them, the audit runs them in numpy,
and a loop of your own calls them. `state` knows where things are in a state.

Example:
  mean, step = noisy_mean(plan), server_step(momentum(0.9), learning_rate=0.5)
  noise, server = mean.init(theta), step.init(theta)
  round_number = noise['round']
  noise, update = mean.next(noise, ClippedSum(total, users=20))
  server, theta = step.next(server, theta, update, round_number)
"""

from tff_agg.server.mean import ClippedSum, NoisyMean, noisy_mean
from tff_agg.server.optimisers import (
    Optimiser,
    adagrad,
    adam,
    keeping_means,
    momentum,
    yogi,
)
from tff_agg.server.schedules import Schedule
from tff_agg.server.step import ServerStep, server_step

__all__ = [
    "ClippedSum",
    "NoisyMean",
    "Optimiser",
    "Schedule",
    "ServerStep",
    "adagrad",
    "adam",
    "keeping_means",
    "momentum",
    "noisy_mean",
    "server_step",
    "yogi",
]

"""Runs of the training loop in numpy alone, whose states are one number."""

import types

import numpy as np

from tff_agg.experiment.run import identity, loop
from tff_agg.experiment.run.run_folder import RunFolder
from tff_agg.server import state as states

ROUNDS = 5
SEED = (7, 8)
NOT_CHECKED = identity.NotChecked("for this test")


class Process:
    """Adds the clients' numbers, and noise by seed and round, to a number."""

    description = "sums"  # what an identity asks for

    def __init__(self, before=lambda number: None, noise=0.0, added=0.0):
        """Takes what to do before a round, and what to add to its sum."""
        self._before, self._noise, self._added = before, noise, added
        self.computed = {}

    def initialize(self):
        return state_of(np.zeros(1), 0)

    def next(self, state, data):
        number = int(states.round_of(state))
        self._before(number)
        noise = np.random.default_rng([*SEED, number]).standard_normal(1)
        total = sum_of(state) + sum(data) + self._noise * noise + self._added
        self.computed.setdefault(number + 1, []).append(total)
        state = state_of(total, number + 1)
        return types.SimpleNamespace(state=state, metrics={"sum": total[0]})


def state_of(total, number):
    weights = {"sum": total}
    noise = {"round": np.array(number), "seed": np.array(SEED)}
    return {"aggregate": weights, "noise": noise, "server": {"iterate": weights}}


def sum_of(state):
    return states.iterate(state)["sum"]


def cohort(number, seed=None):
    return loop.Cohort([f"client {number}"], [np.array([10.0**number])], NOT_CHECKED)


def train(folder, process, read=cohort, rounds=ROUNDS, **options):
    return loop.train(
        process,
        identity=identity.Identity(
            sampler=NOT_CHECKED, data=NOT_CHECKED, model="a sum", process={}
        ),
        folder=RunFolder(folder),
        rounds=rounds,
        cohort=read,
        is_drawn=True,
        surroundings={},
        **options,
    )

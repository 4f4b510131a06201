"""The clients of a round: who trains beside whom."""

import itertools

import numpy as np
import pytest

from stackoverflow.task import StackOverflow
from tff_agg.experiment import task
from tff_agg.experiment.build import Compiled, build


def test_a_client_costs_its_examples_unless_it_says_otherwise():
    rows = [np.ones([3, 2])]
    assert task.Client("ada", rows, 3).work == 3
    assert task.Client("ada", rows, 3, cost=40).work == 40
    assert task.Client("ada", rows, 3, cost=0).work == 0


@pytest.mark.parametrize("group_users", [1, 4])
def test_the_next_word_models_users_are_sorted_by_tokens(make_config, group_users):
    """They are padded to the one with most tokens, whatever their sentences are."""
    config = make_config(clients_per_round=12, max_sentences=3, group_users=group_users)
    problem = StackOverflow(config)
    built = build(problem, Compiled())
    members, cohort = built.sampler, built.cohort(0)
    tokens = {
        problem.data.user_name(user): np.count_nonzero(
            problem.client(user, group, 0).arrays[0]
        )
        for user, group in members.sample(0)
    }
    groups = [
        [tokens[name] for name in ([ids] if isinstance(ids, str) else ids)]
        for ids in cohort.client_ids
    ]
    assert cohort.costs == [sum(group) for group in groups]
    if group_users > 1:
        assert len(groups) == 3
        for below, above in itertools.pairwise(groups):
            assert max(below) <= min(above)
    # Sentences alone would not have told these users apart.
    assert cohort.facts["examples"] < sum(tokens.values())

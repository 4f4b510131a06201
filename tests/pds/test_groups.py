"""What the groups promise."""

import numpy as np
import pytest

from pds import by_label_parity, by_type, everyone


class FakeStore:
    """Users 0-4 ask, users 3-7 answer."""

    def users_with(self, split, type):
        assert split == "train"
        return np.arange(0, 5) if type == "question" else np.arange(3, 8)


def test_types_make_two_groups_that_may_share_users():
    questions, answers = by_type(FakeStore(), "train")
    assert (questions.name, answers.name) == ("question", "answer")
    assert np.intersect1d(questions.users, answers.users).tolist() == [3, 4]


def test_everyone_is_one_group():
    (group,) = everyone([5, 7])
    assert group.name == "all"
    assert group.users.tolist() == [5, 7]


def test_parity_splits_samples_by_class():
    even, odd = by_label_parity([3, 0, 2, 1, 9])
    assert even.users.tolist() == [1, 2]
    assert odd.users.tolist() == [0, 3, 4]
    assert (even.name, odd.name) == ("even", "odd")


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1]]])
def test_labels_must_be_a_vector_of_integers(labels):
    with pytest.raises(ValueError, match="labels"):
        by_label_parity(labels)

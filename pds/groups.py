"""The populations that clients are drawn from.

A group is a name and the users in it. The same user may be in two groups (somebody who
asks and answers); for participation, and so for privacy, that is one user.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class UserStore(Protocol):
    """Stored data that can list the users with posts of a type."""

    def users_with(self, split: str, type: str, /) -> Sequence[int] | np.ndarray:
        """Returns those users of a split."""


class Group(NamedTuple):
    """Some users under a name.

    Attributes:
      name: What is returned with each sampled user, such as `'question'`.
      users: Different integers, one per user (or sample).
    """

    name: str
    users: np.ndarray


def sizes_in_words(groups: Sequence[Group]) -> str:
    """Returns in words how many users each group has.

    Example:
      >>> sizes_in_words(everyone([3, 4]))
      'all: 2'
    """
    return ", ".join(f"{group.name}: {len(group.users):,}" for group in groups)


def everyone(users: Sequence[int] | np.ndarray, name: str = "all") -> tuple[Group]:
    """Returns one group of all users: no distribution shift.

    Example:
      >>> everyone([3, 4])[0].name
      'all'
    """
    return (Group(name, np.asarray(users, np.int64)),)


def by_type(store: UserStore, split: str = "train") -> tuple[Group, Group]:
    """Returns who has questions and who has answers, as two groups.

    Args:
      store: Anything with `users_with(split, type)`, such as a token store.
      split: The split of the data.

    Returns:
      The groups `'question'` and `'answer'`; a user can be in both.

    Example:
      questions, answers = by_type(store, 'train')
    """
    first, second = (
        Group(type, np.asarray(store.users_with(split, type), np.int64))
        for type in ("question", "answer")
    )
    return first, second


def by_label_parity(labels: Sequence[int] | np.ndarray) -> tuple[Group, Group]:
    """Returns the samples of even and of odd classes, as two groups.

    Args:
      labels: The class of each sample; samples are numbered in this order.

    Returns:
      The groups `'even'` and `'odd'`.

    Example:
      >>> even, odd = by_label_parity([0, 1, 2])
      >>> even.users.tolist()
      [0, 2]
    """
    classes = np.asarray(labels)
    if classes.ndim != 1 or not np.issubdtype(classes.dtype, np.integer):
        raise ValueError(
            f"labels: must be a vector of integers, got {classes.dtype} of shape "
            f"{classes.shape}"
        )
    return (
        Group("even", np.flatnonzero(classes % 2 == 0)),
        Group("odd", np.flatnonzero(classes % 2 == 1)),
    )

"""Groups of clients: who trains side by side, and what a group's dataset holds.

With a small model, calling TensorFlow once for each client costs more than the
arithmetic. The value of one TFF client may therefore be a group of users
(`tff_agg.federated.vectorized`). Who is in which group is a pure function of the
cohort, so that a round computed again gives the same bits.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_agg import checks
from tff_agg.aliases import Specs, Structure

if TYPE_CHECKING:
    import tensorflow as tf


def form_groups(costs: Sequence[float], size: int) -> list[list[int]]:
    """Divides clients into groups of about the same size, alike inside.

    Clients are sorted by cost, ties by position, and cut into as few groups of at most
    `size` as possible, which differ by at most one client. A group is as slow as its
    slowest client: similar ones stand together.

    Args:
      costs: How much work each client is, such as its number of examples.
      size: The most clients in a group.

    Returns:
      The positions of each group's clients, in the order of their cost.

    Raises:
      ValueError: If `size` is not a whole number of at least 1.

    Example:
      >>> form_groups([5, 1, 4, 2], size=2)
      [[1, 3], [2, 0]]
    """
    size = checks.whole("size", size)
    order = sorted(range(len(costs)), key=lambda i: (costs[i], i))
    count = -(-len(order) // size)
    edges = [len(order) * i // count for i in range(count + 1)] if count else [0]
    return [order[a:b] for a, b in itertools.pairwise(edges)]


def group_batches(
    clients: Sequence[Iterable[Structure]], batch_spec: Specs
) -> "tf.data.Dataset":
    """Returns the dataset of a group of clients that train on batches.

    An element is one step of those clients whose next batches have the same shape:
    `users`, how many clients the group has; `members`, the places of those that take
    the step; and `batch`, their batches stacked along a first axis. Clients of any
    numbers of examples can be in one group; those that are alike go fast.

    Args:
      clients: The batches of each client, as structures of arrays, for instance
        `dataset.as_numpy_iterator()`; none for a client without data.
      batch_spec: The `tf.TensorSpec`s of a batch, such as a model's `input_spec`.

    Returns:
      A `tf.data.Dataset` for a process made with `grouped=True`.

    Raises:
      ValueError: If there is no client.

    Example:
      groups = [
          group_batches([batches[i] for i in places], model.input_spec)
          for places in form_groups(costs, size=25)
      ]
      state, metrics = process.next(state, groups)
    """
    import tensorflow as tf

    if not clients:
        raise ValueError("clients must be at least one, got none")
    batches = [list(client) for client in clients]
    elements = []
    for step in range(max(map(len, batches))):
        alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, own in enumerate(batches):
            if step < len(own):
                leaves = tf.nest.flatten(own[step])
                alike.setdefault(tuple(np.shape(x) for x in leaves), []).append(place)
        for members in alike.values():
            stacked = tf.nest.map_structure(
                lambda spec, *leaves: np.stack(leaves).astype(
                    spec.dtype.as_numpy_dtype, copy=False
                ),
                batch_spec,
                *(
                    tf.nest.pack_sequence_as(batch_spec, tf.nest.flatten(own[step]))
                    for own in (batches[place] for place in members)
                ),
            )
            elements.append(_element(len(batches), members, stacked))
    if not elements:
        nothing = tf.nest.map_structure(
            lambda s: np.zeros(
                [0, *(0 if n is None else n for n in s.shape)], s.dtype.as_numpy_dtype
            ),
            batch_spec,
        )
        elements.append(_element(len(batches), [], nothing))
    dataset = tf.data.Dataset.from_tensors(elements[0])
    for element in elements[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(element))
    return dataset


def group_spec(batch_spec: Specs) -> Specs:
    """Returns the `tf.TensorSpec`s of an element of `group_batches`."""
    import tensorflow as tf

    return OrderedDict(
        users=tf.TensorSpec([], tf.int32),
        members=tf.TensorSpec([None], tf.int32),
        batch=tf.nest.map_structure(
            lambda s: tf.TensorSpec([None, *s.shape], s.dtype), batch_spec
        ),
    )


def _element(
    users: int, members: list[int], batch: Structure
) -> OrderedDict[str, Structure]:
    return OrderedDict(
        users=np.int32(users), members=np.array(members, np.int32), batch=batch
    )

"""Correlated noise as streams: identity, tree, banded, buffered and dense.

Example:
  >>> mechanism = tree(estimator='honaker', rounds=100)
  >>> like = {'w': np.zeros(3, np.float32)}
  >>> state = mechanism.init(like, seed=(1, 2))
  >>> state, noise = mechanism.next(state, like)
"""

from tff_agg.noise.mechanism import Mechanism, Stream, identity
from tff_agg.noise.restart import restart_every
from tff_agg.noise.tree import tree

__all__ = ["Mechanism", "Stream", "identity", "restart_every", "tree"]

"""Correlated noise as streams: identity, tree, banded, buffered and dense.

Example:
  >>> mechanism = blt(rounds=2000, buffers=3)
  >>> like = {'w': np.zeros(3, np.float32)}
  >>> state = mechanism.init(like, seed=(1, 2))
  >>> state, noise = mechanism.next(state, like)
"""

from tff_agg.noise import workloads
from tff_agg.noise.banded import banded, banded_from, banded_square_root
from tff_agg.noise.blt import blt, blt_from
from tff_agg.noise.dense import dense, dense_from
from tff_agg.noise.mechanism import Mechanism, Stream, identity
from tff_agg.noise.restart import restart_every
from tff_agg.noise.saved import from_json
from tff_agg.noise.seeds import fresh_seed
from tff_agg.noise.tree import tree
from tff_agg.noise.workloads import Workload

__all__ = [
    "Mechanism",
    "Stream",
    "Workload",
    "banded",
    "banded_from",
    "banded_square_root",
    "blt",
    "blt_from",
    "dense",
    "dense_from",
    "fresh_seed",
    "from_json",
    "identity",
    "restart_every",
    "tree",
    "workloads",
]

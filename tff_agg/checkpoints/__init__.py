"""The checkpoint store: every round's weights and state, safe against any crash.

Example:
  >>> store = CheckpointStore(folder / 'checkpoints')
  >>> store.save(1, {'iterate': weights})
"""

from tff_agg.checkpoints.blobs import CorruptCheckpointError, StoreError
from tff_agg.checkpoints.lock import RunLock, RunLockedError
from tff_agg.checkpoints.store import (
    CheckpointStore,
    MissingCheckpointError,
    Restored,
)

__all__ = [
    "CheckpointStore",
    "CorruptCheckpointError",
    "MissingCheckpointError",
    "Restored",
    "RunLock",
    "RunLockedError",
    "StoreError",
]

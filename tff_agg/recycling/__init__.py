"""Uses of stored checkpoints: aggregation at inference, tuning, uncertainty."""

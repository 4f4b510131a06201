"""Private federated learning that uses its checkpoints."""

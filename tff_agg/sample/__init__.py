"""Training on examples, in JAX: DP-SGD and its sums of clipped gradients."""

"""CIFAR-10 and CIFAR-100 with sample-level privacy, the paper's image tasks."""

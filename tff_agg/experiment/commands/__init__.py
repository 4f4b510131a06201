"""What the binaries of a task run."""

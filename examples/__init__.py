"""Tasks to start your own from."""

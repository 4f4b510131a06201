"""Studies: many runs, one table of scores; what is chosen and what is tested."""

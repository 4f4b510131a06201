"""A regression: how far a disease has gone a year later, from ten measurements."""

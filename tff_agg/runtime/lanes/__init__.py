"""Where clients are worked through, side by side, and how evenly."""

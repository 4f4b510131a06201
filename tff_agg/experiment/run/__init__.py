"""One run: its folder, its rounds, what it writes."""

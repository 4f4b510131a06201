"""Handwritten digits by user: a task of one's own in one folder."""

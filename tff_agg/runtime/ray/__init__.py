"""Lanes, and jobs, on a Ray cluster."""

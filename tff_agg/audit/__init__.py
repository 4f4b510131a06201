"""Auditing: whether the running code leaks more than its plan claims."""

"""Everything between a task and a finished run folder."""

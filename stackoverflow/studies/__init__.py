"""Studies of this task: each module declares one, and says what it shows."""

"""Training on users, in TFF: the DP-FTRL process, a client's work, groups of users."""

"""Next-word prediction on StackOverflow with user-level privacy."""

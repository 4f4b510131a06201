"""Sentences by user: sources, vocabulary, preparation, the token store."""

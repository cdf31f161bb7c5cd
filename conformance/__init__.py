"""Comparisons of the project's promises with outside references: suites, Erlang, recordings. Not installed."""

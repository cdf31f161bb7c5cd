"""The project's own lints, and the generators of its documentation. Not installed."""

"""Readers of a loom: turns, threads, statistics, searches, redacted if wanted."""

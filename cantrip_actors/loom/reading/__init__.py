"""What is read from a loom: turns, threads, statistics, searches, redacted if wanted."""

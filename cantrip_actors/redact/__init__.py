"""Redaction: find secrets in texts, values, streams and log lines, and replace them. Pure functions."""

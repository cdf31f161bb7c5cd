"""Exports of a loom: threads as JSON lines, chats, preference pairs, ATIF trajectories, and an HTML page."""

"""Maintenance of a whole loom: backups, forgetting, retention."""

"""What is done to a whole loom: backups, forgetting, keeping for a time."""

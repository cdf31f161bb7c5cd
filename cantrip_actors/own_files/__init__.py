"""The runtime's own files: which they are, so that no entity reaches them, and how they are kept private; their user."""

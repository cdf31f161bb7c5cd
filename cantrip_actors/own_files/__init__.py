"""The runtime's own files: which they are, so that no entity reaches them; how they are kept private; their user."""

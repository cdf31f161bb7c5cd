"""What can be seen of entities from outside while they run: the upserts of their turns."""

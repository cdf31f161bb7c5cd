"""The Python medium: an entity's programs run in the Monty interpreter, in worker processes."""

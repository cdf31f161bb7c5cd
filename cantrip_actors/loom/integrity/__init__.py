"""Find out whether a loom is whole, repair it, and copy it with all that it holds."""

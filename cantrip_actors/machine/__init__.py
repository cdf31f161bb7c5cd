"""The loop of an entity as pure functions over its records: no task, no clock, no I/O, no randomness."""

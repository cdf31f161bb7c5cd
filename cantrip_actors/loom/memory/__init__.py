"""The memory store, and the JSONL store, which is the memory store with a journal."""

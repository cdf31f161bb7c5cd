"""Nodes in real processes that are killed, frozen and drained: `python -m conformance cluster`."""

"""Fuzzing: hostile bytes for every parser that reads what an entity, a provider or a stranger wrote (X-41).

A target is a check and a folder of seeds. The check gets seeds with random edits and raises where a promise is broken:
only the documented errors are raised, and what is accepted is sound. The edits follow from a number, so a run with that
number begins the same everywhere; what fails is shrunk to few edits.

- `edits.py`: how a seed is edited
- `campaign.py`: one target, for some seconds
- `parsers.py`, `sandboxes.py`, `terminal.py`: the targets
- `targets.py`: the table of them
- `command.py`: `python -m conformance fuzz`

An input that failed is written to a folder. Once its cause is mended, put it among the seeds of its target: all seeds
run before any edit.
"""

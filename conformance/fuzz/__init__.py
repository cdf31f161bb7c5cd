"""Fuzzing: hostile bytes for every parser that reads text of an entity, a provider or a stranger.

A target is a check and a folder of seeds. The check gets seeds with random edits and raises if a promise is broken:
only the documented errors may be raised, and accepted input must be sound. The edits are derived from a number, so a
run with that number begins the same everywhere; a failing input is shrunk to few edits.

- `edits.py`: how a seed is edited
- `campaign.py`: one target, for some seconds
- `parsers.py`, `sandboxes.py`, `terminal.py`: the targets
- `targets.py`: the table of them
- `command.py`: `python -m conformance fuzz`

A failing input is written to a folder. Once its cause is fixed, put it among the seeds of its target: all seeds run
before any edit.
"""

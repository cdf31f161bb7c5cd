"""The ledger: a log of the real effects, written only by the crystals, the gates and the workload.

Each event is one line and one write to a file opened with O_APPEND, so the lines are in the order of the events. A line
begins with the number of the life that wrote it. A process that is killed while it writes may leave a part of its last
line, if the line crosses a page; that event does not count, and the next life begins a new line. No line is derived
from the loom, so the two can be compared.

    paid    a crystal was asked and is about to answer; `key` is the entity's label and the step, `heard` the hints in
            its context, `sees` a digest of the rest of it
    held    a crystal was asked, and had its entity's episode interrupted
    begin   a gate is about to have its effect; `key` is in its arguments, and each is requested once
    done    the gate had its effect
    acked   an append to the loom returned; `marks` are its records
    ended   the workload received an episode; `key` is the label of its intent, `came` its outcome
    refused the loom could not record, or another process runs the entity: `came` is the error of the workload
    closed  everything has ended, after this many `points`
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from conformance.crash.fate import Fate

__all__ = ["Ledger", "Line", "lines", "mark", "of_kind", "of_kinds"]


class Line(NamedTuple):
    """One line of a ledger."""

    life: int
    what: str
    key: str
    data: dict[str, Any]


class Ledger:
    """The writing end. Writing a payment or an effect is a point at which the process may be fated to die."""

    def __init__(self, path: Path, life: int, fate: Fate, *, sync: bool = False) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")
        self.life = life
        self._fate = fate
        self._sync = sync

    def write(self, what: str, key: str = "", **fields: Any) -> None:
        """Write one line, and die if this is the fated point."""
        self._append({"life": self.life, "what": what, "key": key, **fields})
        self._fate.meet()

    def write_acked(self, records: Any) -> None:
        """Write that the loom has acknowledged records. Not a point: an append has its own points."""
        self._append({"life": self.life, "what": "acked", "key": "", "marks": [mark(record) for record in records]})

    def _append(self, line: dict[str, Any]) -> None:
        os.write(self._fd, orjson.dumps(line) + b"\n")
        if self._sync:
            os.fsync(self._fd)


def lines(path: Path) -> list[Line]:
    """Return all whole lines so far."""
    if not path.exists():
        return []
    # only a whole line ends in "}": it is an object of strings, numbers and lists
    whole = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    read = map(orjson.loads, whole)
    return [Line(line.pop("life"), line.pop("what"), line.pop("key"), line) for line in read]


def of_kind(kind: str, records: Iterable[Any]) -> list[Any]:
    """Return the records of one kind. Their classes are not public, but their names are, as in the loom's files."""
    return of_kinds((kind,), records)


def of_kinds(kinds: Collection[str], records: Iterable[Any]) -> list[Any]:
    """Return the records of some kinds, in their order."""
    return [record for record in records if type(record).__name__ in kinds]


def mark(record: Any) -> list[str]:
    """Return the mark that identifies a record: its kind, its entity and its subject."""
    about = [str(getattr(record, name)) for name in _ABOUT if hasattr(record, name)]
    observation = getattr(record, "observation", None)
    if observation is not None:
        about.append(str(observation.tool_call_id))
    return [type(record).__name__, record.entity_id, *about]


_ABOUT = ("turn_id", "tool_call_id", "child_id", "index", "intent", "text", "reason", "reward", "last")

"""What has to hold after a cancellation, each law as a function that yields what breaks it.

- No effect follows a reported end. A gate that refuses cancellation is reported, before its effect, as an actor that
  does not end; its result is not recorded.
- No gate begins twice, and none begins whose start is not recorded.
- The loom verifies. No intent, utterance, start or result of a gate, or turn is recorded twice, and no log stops in the
  middle of an episode.
- No task, thread, process or open file is left.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cantrip_actors.looms import (
    Committed,
    GateFinished,
    GateStarted,
    IntentGiven,
    Record,
    Utterance,
    open_loom,
    open_store,
    verify_loom,
)
from conformance.cancel.world import Entry

__all__ = ["Resources", "find_late_effects", "find_leaks", "find_repetitions", "read_faults"]

PATIENCE = 5.0
"""Real seconds that idle threads have to end after the event loop."""
IDLE = ("MainThread", "Trio thread")
"""How the names of threads begin that may be left: those that trio keeps for the next work have such a name."""


# The journal


def find_late_effects(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the effects that came after the end of their episode was reported."""
    for n, entry in enumerate(entries):
        if entry.kind not in ("effect", "late"):
            continue
        opened = max((m for m in range(n) if entries[m].kind == "opened"), default=0)
        ends = [m for m in range(n) if entries[m].kind == "end" and _covers(entries[m].tag, entry.tag)]
        ends = [m for m in ends if entries[m].tag or m > opened]
        if not ends:
            continue
        is_reported = any(other.kind == "zombie" for other in entries[:n])
        if entry.kind == "effect" or not is_reported:
            after = entry.at - entries[ends[0]].at
            yield f"an effect of {entry.tag} came {after:g} s after the end of {entries[ends[0]].tag or 'the runtime'}"


def _covers(end: str, tag: str) -> bool:
    return not end or tag == end or tag.startswith(f"{end}.")


# The loom


def read_faults(url: str, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the faults of a loom that no runtime uses."""
    with open_store(url, read_only=True) as store:
        yield from (f"the loom does not verify: {fault}" for fault in verify_loom(store).faults)
    with open_loom(url) as loom:
        logs = {entity: loom.records(entity) for entity in loom.entities()}
        yield from (f"{one[-6:]} is {loom.state(one)}" for one in logs if loom.state(one) in ("active", "waiting"))
    yield from find_repetitions(logs.values())
    for entity, records in logs.items():
        yield from (f"{entity[-6:]}: {fault}" for fault in _find_gaps(records))
    begun = Counter(entry.tag for entry in entries if entry.kind == "begun")
    yield from (f"a gate of {tag} began {n} times" for tag, n in begun.items() if n > 1)
    started = sum(isinstance(record, GateStarted) for records in logs.values() for record in records)
    if started < sum(begun.values()):
        yield f"{sum(begun.values())} gates began, but only {started} starts are recorded"


def find_repetitions(logs: Iterable[Sequence[Record]]) -> Iterator[str]:
    """Yield what is recorded more than once."""
    counted: Counter[tuple[str, ...]] = Counter()
    for records in logs:
        for record in records:
            match record:
                case IntentGiven():
                    counted["intent", record.intent] += 1
                case Utterance():
                    counted["utterance of turn", record.turn_id] += 1
                case GateStarted():
                    counted["start of call", record.turn_id, str(record.tool_call_id)] += 1
                case GateFinished():
                    counted["result of call", record.turn_id, str(record.tool_call_id)] += 1
                case Committed():
                    counted["turn", record.turn_id] += 1
                case _:
                    pass
    yield from (f"the {' '.join(what)} is recorded {n} times" for what, n in counted.items() if n > 1)


def _find_gaps(records: Sequence[Record]) -> Iterator[str]:
    """Yield what a log lacks of its turns."""
    committed = {record.turn_id for record in records if isinstance(record, Committed)}
    for record in records:
        if isinstance(record, Utterance) and record.turn_id not in committed:
            yield "an utterance was recorded, but its turn was not"


# The process


class Resources(NamedTuple):
    """What this process uses: names of threads, ids of child processes, and targets of open files."""

    threads: frozenset[str]
    processes: frozenset[int]
    files: Counter[str]

    @classmethod
    def read(cls) -> Resources:
        """Return what is used now."""
        gc.collect()
        threads = frozenset(t.name for t in threading.enumerate() if not t.name.startswith(IDLE))
        return cls(threads, frozenset(_list_children()), Counter(_list_files()))


def find_leaks(before: Resources) -> Iterator[str]:
    """Yield what is used more than before; idle threads and processes get a while to end."""
    ends = time.monotonic() + PATIENCE
    while True:
        now = Resources.read()
        leaks = [f"the thread {name} is left" for name in now.threads - before.threads]
        leaks += [f"the process {pid} is left" for pid in now.processes - before.processes]
        leaks += [f"{n} more open: {file}" for file, n in (now.files - before.files).items()]
        if not leaks or time.monotonic() > ends:
            yield from leaks
            return
        time.sleep(0.01)


def _list_children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            yield from map(int, (task / "children").read_text(encoding="ascii").split())


def _list_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names, and no paths
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115  # likewise
            yield target.partition(":[")[0]  # a socket, a pipe or a path

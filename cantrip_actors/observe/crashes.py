"""Crash reports: one for each unexpected end of an actor, with the facts that are needed to understand it.

The last 200 are kept in memory, and with a folder as files of mode 0600, at most 1,000: the oldest are deleted first.
Long texts are cut, so the memory and the folder are bounded whatever an exception says. A thread writes the files, and
reads the last turn of an entity from a store that may block: a storm of crashes does not hold up the event loop.
In a storm of crashes the reports beyond 500 a second are dropped and counted, as the supervisors' own log lines are.
"""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

import uuid_utils

from cantrip_actors.loom.stores.store import Postponed
from cantrip_actors.machine.project import get_committed_turn
from cantrip_actors.records.instant import format_instant
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError
from supervisors import Crash, ExitReason
from supervisors.events import (
    BURST,
    WINDOW,
    ChildEvent,
    DeadLetter,
    Event,
    Exited,
    GaveUpEvent,
    Restarting,
    Started,
    StartFailedEvent,
    Zombie,
    strip_own_frames,
)
from supervisors.reasons import render_exception

if TYPE_CHECKING:
    from cantrip_actors.loom.stores.store import Store
    from cantrip_actors.runtime.loom.core import Core

KEPT: Final = 200
"""Reports in memory."""

MOST_FILES: Final = 1_000
"""The most reports in a folder."""

EVENTS: Final = 20
"""The most events of the actor in a report."""

HISTORY: Final = 2_000
"""The most events of all actors that are remembered for reports."""

LONGEST: Final = 20_000
"""The most characters of a text in a report: of a longer one the beginning and the end are kept."""

FRAMES: Final = 50
"""The most frames of a traceback that a report has as data: those next to where the exception was raised."""

LEAVES: Final = 100
"""The most leaves of an exception group in a report."""

NEWEST: Final = 20
"""The number of an entity's last records that are searched for its last turn."""

_log = get_logger("cantrip_actors.observe")

CrashReport = dict[str, Any]


class Crashes:
    """Makes the crash reports of one runtime. `folder` is the folder for report files."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._core: Core | None = None
        self._events: deque[tuple[str, str]] = deque(maxlen=HISTORY)
        self._reports: deque[CrashReport] = deque(maxlen=KEPT)
        self._since = 0.0
        self._made = 0
        self.dropped = 0
        """The number of reports that were dropped in storms of crashes."""
        self._unfinished: deque[tuple[CrashReport, Callable[[], str | None] | None]] = deque(maxlen=KEPT)
        """The newest reports that are not files yet, and how to find the turn that they lack."""
        self._lock = Lock()
        self._thread: Thread | None = None
        """Reads the store and writes files, while there are unfinished reports: both may take long."""

    def attach(self, core: Core) -> None:
        """Report the crashes of this runtime."""
        self._core = core

    def __iter__(self) -> Iterator[CrashReport]:
        """Yield the reports in memory, the newest first."""
        return iter(list(self._reports)[::-1])

    def take(self, event: Event) -> None:
        """Remember an event, and report it if it is a crash."""
        words = render_event(event)
        self._events.append((event.ref.path, words if len(words) <= LONGEST else _cut(self._redact(words))))
        reason = _get_reason(event)
        if reason is None or not isinstance(event, ChildEvent):
            return
        if not 0.0 <= event.time - self._since < WINDOW:
            self._since, self._made = event.time, 0
        self._made += 1
        if self._made > BURST:
            self.dropped += 1
            return
        report, find_turn = self._report(event, reason)
        self._reports.append(report)
        if self._folder is None and find_turn is None:
            return
        with self._lock:
            self._unfinished.append((report, find_turn))
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._finish, name="cantrip_actors crash reports")
                self._thread.start()

    def flush(self) -> None:
        """Wait until all reports are whole, and are files if there is a folder for them. It blocks."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _finish(self) -> None:
        """Complete the unfinished reports, and write them into files."""
        while True:
            with self._lock:
                waiting = list(self._unfinished)
                self._unfinished.clear()
                if not waiting:
                    self._thread = None
                    return
            for report, find_turn in waiting:
                if find_turn is not None:
                    report["after_turn"] = find_turn()
            if self._folder is not None:
                _write_files(self._folder, [report for report, _ in waiting])

    def _report(self, event: ChildEvent, reason: ExitReason) -> tuple[CrashReport, Callable[[], str | None] | None]:
        """Return a report, and how to find the turn that it lacks if the store cannot be read at once."""
        path = event.ref.path
        facts, find_turn = self._describe_entity(path)
        own = islice((event for where, event in reversed(self._events) if where == path), EVENTS)
        report: CrashReport = {
            "id": str(uuid_utils.uuid7()),
            "at": format_instant(time.time()),
            "what": type(event).__name__.removesuffix("Event"),
            "path": path,
            "actor": str(event.spec.id),
            "restart": event.spec.restart,
            "reason": str(reason),
            **_describe_incarnation(event),
            **_describe_exception(reason),
            "events": list(own)[::-1],
            **facts,
            "versions": {"cantrip-actors": version("cantrip-actors"), "python": platform.python_version()},
        }
        shown: CrashReport = self._redact(report)
        return {name: _cut(value) for name, value in shown.items()}, find_turn

    def _redact(self, value: Any) -> Any:
        return value if self._core is None else self._core.guard.redactor.value(value)

    def _describe_entity(self, path: str) -> tuple[CrashReport, Callable[[], str | None] | None]:
        """Return the entity, and its turn, for which the actor at a path works; and how to find the turn if the store
        cannot be read at once.
        """
        core = self._core
        if core is None:
            return {}, None
        parts = path.split("/")
        cell = next((living for part in reversed(parts) if (living := core.living.get(part)) is not None), None)
        if cell is None:
            return {}, None
        facts: CrashReport = {"entity": cell.entity_id, "cantrip": cell.plan.cantrip.name or ""}
        find_turn = partial(_find_last_turn, core.store, cell.entity_id)
        try:
            turn = core.access.attempt(find_turn)
        except Postponed:
            return facts | {"after_turn": None}, find_turn
        return facts if turn is None else facts | {"after_turn": turn}, None


def _find_last_turn(store: Store, entity_id: str) -> str | None:
    """Return the last turn of an entity; None if it has none, or if the loom itself has crashed."""
    try:
        newest = store.newest(entity_id, NEWEST)
    except LoomError:
        return None
    return next((id for record in reversed(newest) if (id := get_committed_turn(record)) is not None), None)


def _write_files(folder: Path, reports: Iterable[CrashReport]) -> None:
    """Write reports as files, and delete the oldest beyond the limit. A full disk costs only the files."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for report in reports:
            file = folder / f"{report['id']}.json"
            file.touch(mode=0o600)
            file.write_text(json.dumps(report, default=repr), encoding="utf-8")
        for old in sorted(folder.glob("*.json"))[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("a crash report cannot be kept", folder=str(folder), error=str(error.strerror))


def read_crashes(folder: Path) -> Iterator[CrashReport]:
    """Yield the reports in a folder, the newest first. Raises OSError.

    A file that was deleted meanwhile is left out, and so is one that a killed process did not finish.
    """
    for file in sorted(folder.glob("*.json"), reverse=True):
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            continue
        yield report


def _get_reason(event: Event) -> ExitReason | None:
    match event:
        case Exited(expected=False) | GaveUpEvent() | StartFailedEvent(expected=False):
            return event.reason
        case _:
            return None


def _describe_exception(reason: ExitReason) -> CrashReport:
    """Return the facts about an exception: its class, the leaves of a group, and the user's part of the traceback."""
    if not isinstance(reason, Crash):
        return {}
    error = reason.exception
    own = strip_own_frames(error.__traceback__)
    trace = traceback.format_exception(type(error), error, own)
    frames = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name, "text": frame.line or ""}
        for frame in traceback.extract_tb(own)[-FRAMES:]
    ]
    leaves = [f"{type(leaf).__name__}: {render_exception(leaf)}" for leaf in islice(_list_leaves(error), LEAVES)]
    return {"exception": type(error).__name__, "leaves": leaves, "traceback": "".join(trace), "frames": frames}


def _cut(value: Any) -> Any:
    """Cut a text, or the texts of a list. Redact it first: half of a secret is not recognised."""
    if isinstance(value, list):
        return [_cut(item) for item in value]
    more = len(value) - LONGEST if isinstance(value, str) else 0
    half = LONGEST // 2
    return value if more <= 0 else f"{value[:half]}… ({more} more characters) …{value[-half:]}"


def _list_leaves(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _list_leaves(inner)
    else:
        yield error


_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    Started: lambda event: f"started, restarts {event.restarts}",
    Exited: lambda event: f"ended: {event.reason}",
    StartFailedEvent: lambda event: f"failed to start: {event.reason}",
    Restarting: lambda event: f"restarts in {event.delay:g} s",
    GaveUpEvent: lambda event: f"gave up: {event.reason}",
    Zombie: lambda _: "does not end",
    DeadLetter: lambda event: f"did not take a message of type {type(event.message).__name__}",
}


def _describe_incarnation(event: ChildEvent) -> CrashReport:
    """Return the class of an actor that ended, its incarnation, its supervisor's restarts, and a call in hand."""
    if not isinstance(event, Exited):
        return {}
    return {
        "kind": event.kind,
        "incarnation": event.restarts + 1,
        "recent_restarts": event.recent_restarts,
        "call": event.call,
    }


def render_event(event: Event) -> str:
    """Return a line for an event that happens now: the time of day, and the event."""
    return f"{format_instant(time.time())} {_WORDS[type(event)](event)}"

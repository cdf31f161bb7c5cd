"""The supervision tree for readers: changed rows, at most four times a second, while there is a reader.

Without a reader this file runs no timer and has no subscription to the supervisors' events. The tree is read from the
supervisors' own state, so no actor is asked. Mailboxes change without an event, so they are sampled once a second, or
more rarely if reading a large tree would take more than a twentieth of the event loop's time.
"""

from __future__ import annotations

import re
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final

import anyio

from cantrip_actors import Runtime
from cantrip_actors.observe.crashes import render_event
from cantrip_actors.records.instant import format_instant
from cantrip_actors.runtime.face.runtime import System
from supervisors.events import ChildEvent, Event, Exited, GaveUpEvent, StartFailedEvent, Zombie, strip_own_frames
from supervisors.inspect import Node
from supervisors.reasons import Crash, ExitReason

SAMPLE: Final = 1.0
SHORTEST: Final = 0.25
"""Seconds between two readings of the tree: without an event, and with one."""
SHARE: Final = 20
"""The pause after a reading, as a multiple of its duration."""
CRASHES: Final = 200
HISTORY: Final = 1_000
"""Events of all actors that are remembered for crashes."""
EVENTS: Final = 5
"""Events of its actor that a crash has."""
DAY: Final = 86_400.0
LONGEST: Final = 8_000
"""Characters of a traceback."""

ActorRow = dict[str, Any]


class Supervision:
    """The tree of one runtime as rows. `publish` is called with the changes while `run` runs.

    `reports` are crash reports from before, the newest first.
    """

    def __init__(
        self, runtime: Runtime, publish: Callable[[dict[str, Any]], None], reports: Iterable[dict[str, Any]] = ()
    ) -> None:
        self._runtime = runtime
        self._publish = publish
        self._rows: dict[str, ActorRow] = {}
        self._crashes = deque([_describe_crash(report) for report in reports][::-1], CRASHES)
        self._crystals: list[ActorRow] = []
        self._news: list[dict[str, Any]] = []
        self._events: deque[tuple[str, str]] = deque(maxlen=HISTORY)
        self._woken = anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Follow the tree until `close`."""
        with ExitStack() as stack:
            stack.enter_context(self._scope)
            stack.callback(self._runtime.watch_actors(self._note))
            while True:
                began = time.perf_counter()
                self._look()
                await anyio.sleep(max(SHORTEST, SHARE * (time.perf_counter() - began)))
                with anyio.move_on_after(SAMPLE - SHORTEST):
                    await self._woken.wait()

    def close(self) -> None:
        """Stop following the tree: it has no reader."""
        self._scope.cancel()

    def snapshot(self) -> dict[str, Any]:
        """Return all rows, the newest crashes, and the crystals that take no queries now."""
        system = self._runtime.inspect()
        rows = list(rows_of(self._runtime, system).values())
        return {"rows": rows, "crashes": list(self._crashes), "crystals": list_held_crystals(system)}

    def _note(self, event: Event) -> None:
        self._events.append((event.ref.path, render_event(event)))
        if not isinstance(event, ChildEvent):
            return
        match event:
            case (
                Exited(reason=reason, expected=False)
                | StartFailedEvent(reason=reason, expected=False)
                | GaveUpEvent(reason=reason)
            ):
                self._add_crash(event, None if reason is None else str(reason), traceback_of(reason))
            case Zombie():
                self._add_crash(event, "it does not end", None)
            case _:
                pass
        self._woken.set()

    def _add_crash(self, event: ChildEvent, reason: str | None, report: str | None) -> None:
        crash = {
            "at": time.time(),
            "path": event.ref.path,
            "what": _WHAT[type(event)],
            "reason": reason,
            "report": report,
            "restart": event.spec.restart,
            "events": [line for path, line in self._events if path == event.ref.path][-EVENTS:],
        }
        shown = self._runtime.redact(crash)
        self._crashes.append(shown)
        self._news.append(shown)

    def _look(self) -> None:
        self._woken = anyio.Event()
        system = self._runtime.inspect()
        rows, crystals = rows_of(self._runtime, system), list_held_crystals(system)
        changed = [row for path, row in rows.items() if self._rows.get(path) != row]
        gone = [path for path in self._rows if path not in rows]
        crashes, self._news, self._rows = self._news, [], rows
        if changed or gone or crashes or crystals != self._crystals:
            self._crystals = crystals
            self._publish({"rows": changed, "gone": gone, "crashes": crashes, "crystals": crystals})


_WHAT: Final[dict[type[ChildEvent], str]] = {
    Exited: "crashed",
    StartFailedEvent: "failed to start",
    GaveUpEvent: "gave up",
    Zombie: "does not end",
}


def _describe_crash(report: dict[str, Any]) -> dict[str, Any]:
    """Return a crash report in the page's shape."""
    trace = report.get("traceback")
    return {
        "at": datetime.fromisoformat(report["at"]).timestamp(),
        "path": report["path"],
        "what": next((word for kind, word in _WHAT.items() if kind.__name__ == report["what"]), report["what"]),
        "reason": report["reason"],
        "report": None if trace is None else _shorten_for_page(trace),
        "restart": report["restart"],
        "events": report["events"][-EVENTS:],
    }


def system_of(runtime: Runtime, system: System) -> dict[str, Any]:
    """Return the parts of the system besides its actors, as a JSON value."""
    counters: dict[str, list[dict[str, Any]]] = {}
    for counter in system.counters:
        counters.setdefault(counter.name, []).append({"labels": dict(counter.labels), "value": counter.value})
    shown: dict[str, Any] = runtime.redact(
        {
            "at": format_instant(system.at),
            "crystals": [crystal._asdict() for crystal in system.crystals],
            "counters": counters,
            "loom": system.loom._asdict(),
            "requests": system.requests,
            "streams": dict(system.streams),
            "queues": [queue._asdict() for queue in system.queues],
        }
    )
    return shown


def list_held_crystals(system: System) -> list[ActorRow]:
    """Return the crystals that pause or whose breaker is not closed, with the seconds until they are tried again."""
    return [
        {
            "name": crystal.name,
            "breaker": crystal.breaker,
            "waiting": crystal.waiting,
            "until": round(time.time() + min(DAY, max(crystal.paused_for, crystal.reopens_in))),
        }
        for crystal in system.crystals
        if crystal.paused_for > 0 or crystal.breaker != "closed"
    ]


def rows_of(runtime: Runtime, system: System) -> dict[str, ActorRow]:
    """Return the supervision tree as a row for each child, by its path, parents first."""
    return {node.path: row_of(node, system.at, runtime) for node in system.tree.walk()}


def row_of(node: Node, now: float, runtime: Runtime) -> ActorRow:
    """Return the row of one actor."""
    return {
        "path": node.path,
        "kind": node.kind,
        "state": node.state,
        "since": round(now - node.age, 1) if node.kind is not None else None,
        "mailbox": node.mailbox,
        "in_hand": node.in_hand,
        "restarts": node.restarts,
        "exit": None if node.last_exit is None else runtime.redact(str(node.last_exit)),
    }


def traceback_of(reason: ExitReason | None) -> str | None:
    """Return the end of a crash's traceback as text; None for another reason."""
    if not isinstance(reason, Crash):
        return None
    error = reason.exception
    return _shorten_for_page(
        "".join(traceback.format_exception(type(error), error, strip_own_frames(error.__traceback__)))
    )


_FOLDER: Final = re.compile(r'File "[^"\n]*/([^/"\n]+/[^/"\n]+)"')
_MARKS: Final = re.compile(r"^[ |+]*[~^]+ *\n", re.MULTILINE)


def _shorten_for_page(trace: str) -> str:
    """Name files by their last two parts, and leave out the lines of marks, which wrap badly in a narrow pane."""
    return _MARKS.sub("", _FOLDER.sub(r'File "\1"', trace))[-LONGEST:]

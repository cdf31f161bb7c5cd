"""The supervision tree for those who look: rows that changed, at most four times a second, while somebody reads.

Nothing here runs without a reader: no timer, and no subscription to the supervisors' events. The tree is read from the
supervisors' books, so no actor is asked. Mailboxes change without an event, so they are sampled once a second, and more
rarely where the tree is so large that reading it would take more than a twentieth of the event loop's time.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import PurePath
from typing import Any, Final

import anyio

from cantrip_actors import Runtime
from supervisors.events import ChildEvent, Event, Exited, GaveUp, StartFailed, Zombie
from supervisors.inspect import Node
from supervisors.reasons import Crash, ExitReason

__all__ = ["Supervision", "row_of", "rows_of", "traceback_of"]

SAMPLE: Final = 1.0
SHORTEST: Final = 0.25
"""Seconds between two looks: without an event, and with one."""
SHARE: Final = 20
"""So many times as long as a look takes is the pause after it."""
CRASHES: Final = 200
LONGEST: Final = 8_000
"""Characters of a traceback."""

Row = dict[str, Any]


class Supervision:
    """The tree of one runtime as rows. `publish` is called with what changed, while `run` runs."""

    def __init__(self, runtime: Runtime, publish: Callable[[dict[str, Any]], None]) -> None:
        self._runtime = runtime
        self._publish = publish
        self._rows: dict[str, Row] = {}
        self._crashes: deque[dict[str, Any]] = deque(maxlen=CRASHES)
        self._news: list[dict[str, Any]] = []
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
        """End it: nobody looks any more."""
        self._scope.cancel()

    def snapshot(self) -> dict[str, Any]:
        """Return all rows, and the crashes since somebody looks."""
        return {"rows": list(rows_of(self._runtime).values()), "crashes": list(self._crashes)}

    def _note(self, event: Event) -> None:
        if not isinstance(event, ChildEvent):
            return
        match event:
            case (
                Exited(reason=reason, expected=False)
                | StartFailed(reason=reason, expected=False)
                | GaveUp(reason=reason)
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
        }
        shown = self._runtime.redact(crash)
        self._crashes.append(shown)
        self._news.append(shown)

    def _look(self) -> None:
        self._woken = anyio.Event()
        rows = rows_of(self._runtime)
        changed = [row for path, row in rows.items() if self._rows.get(path) != row]
        gone = [path for path in self._rows if path not in rows]
        crashes, self._news, self._rows = self._news, [], rows
        if changed or gone or crashes:
            self._publish({"rows": changed, "gone": gone, "crashes": crashes})


_WHAT: Final[dict[type[ChildEvent], str]] = {
    Exited: "crashed",
    StartFailed: "failed to start",
    GaveUp: "gave up",
    Zombie: "does not end",
}


def rows_of(runtime: Runtime) -> dict[str, Row]:
    """Return the supervision tree as a row for each child, by its path, parents first."""
    system = runtime.inspect()
    return {node.path: row_of(node, system.at, runtime) for node in system.tree.walk()}


def row_of(node: Node, now: float, runtime: Runtime) -> Row:
    """Return what is told of one actor."""
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
    told = traceback.TracebackException.from_exception(reason.exception)
    _shorten(told)
    return "".join(told.format())[-LONGEST:]


def _shorten(told: traceback.TracebackException | None) -> None:
    """Name files by their last two parts: where they lie on the machine is nobody's business on a page."""
    while told is not None:
        for frame in told.stack:
            frame.filename = "/".join(PurePath(frame.filename).parts[-2:])
        _shorten(told.__cause__)
        told = told.__context__

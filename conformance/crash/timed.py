"""Entities that wait for a time: schedules for an entity and for casts, and an entity that wakes itself.

A schedule fires once, a moment after it was made. A life finds out from the loom whether that has happened: it makes
the schedule again only if the loom has neither the schedule nor its firing. The time of the firing is in a file next to
the ledger, because its key is derived from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio

from cantrip_actors import Cantrip, Circle, InvalidSchedule, LoomError, Runtime, scripted
from conformance.crash.workload import CIRCLE, WARDS, Root, answer

__all__ = ["TIMED", "TIMER", "wait_for_firing"]

SOON = 0.15
"""Seconds until a schedule fires."""

LOOK = 0.01
"""Seconds between two reads of the loom."""

TIMER = Cantrip(scripted(answer, record=False), circle=Circle([*CIRCLE, "wake_me"], WARDS), name="timer")

TIMED = (
    Root(TIMER, "called: e", ("called#2: ep",), scheduled="entity"),
    Root(TIMER, "cast: ep e", scheduled="cantrip"),
    Root(TIMER, "woken: we p", ("woken#woken: e p",), scheduled="wakes"),
)


async def wait_for_firing(runtime: Runtime, root: Root, folder: Path, is_there: Callable[[str], bool]) -> None:
    """Wait until the intent of a firing is recorded; make its schedule, unless it exists or has fired.

    As an operator would, lift the quarantine if too many lives in a row died with the firing's mail in the inbox.
    """
    intent = root.intent if root.scheduled == "cantrip" else root.sends[0]
    while not is_there(intent):
        if root.scheduled != "wakes" and not _has_fired(runtime, root, folder):
            await _make(runtime, root, intent, folder)
        if root.scheduled != "cantrip":
            with suppress(LoomError):  # the server may still hold locks of a killed life: tried again
                await runtime.cluster.free(root.label)
        await anyio.sleep(LOOK)


def _has_fired(runtime: Runtime, root: Root, folder: Path) -> bool:
    """Return whether the schedule is in the loom, or its firing is."""
    if any(schedule.id == root.label for schedule in runtime.schedules()):
        return True
    path = folder / f"{root.label}.at"
    if not path.exists() or root.scheduled == "cantrip":  # a cast is in the loom before its schedule leaves it
        return False
    try:
        runtime.receipt(root.label, f"schedule:{root.label}@{path.read_text()}")
    except LoomError:
        return False
    return True


async def _make(runtime: Runtime, root: Root, intent: str, folder: Path) -> None:
    at = datetime.fromtimestamp(round(time.time() + SOON, 3), UTC)
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    new = folder / f"{root.label}.new"
    new.write_text(text)
    new.replace(folder / f"{root.label}.at")
    target = root.label if root.scheduled == "entity" else root.cantrip
    try:
        await runtime.schedule(target, intent, at=text, id=root.label)
    except InvalidSchedule:  # this process was slow, and the time has passed
        return

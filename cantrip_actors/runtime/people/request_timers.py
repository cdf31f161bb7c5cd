"""The timers of an entity that waits for a person: they fire even if the entity is not loaded then.

A request that expires gets a decision, under the key that a person's decision would have. A `timeout` that counts the
wait ends the episode of the entity whose ward it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import anyio

from cantrip_actors.machine.events import Moment
from cantrip_actors.records.mail import Mail, MailKind, make_decision_key
from cantrip_actors.records.records import Requested
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.entity.cell import Cell


def make_timers(cell: Cell, request: Requested, moment: Moment) -> list[Timer]:
    """Return the timers for the time that an entity waits for a request."""
    timers = []
    if request.expires_at is not None:
        due = datetime.fromisoformat(request.expires_at).timestamp()
        body = {"request": request.id, "decision": "expired"}
        mail = _make_mail(cell, "decision", make_decision_key(request.id), body, moment)
        timers.append(Timer(id=f"expires {request.id}", due=due, entity_id=cell.entity_id, mail=mail))
    one: Cell | None = cell
    while one is not None:
        if one.deadline.total < math.inf and one.episode is not None:
            due, why = moment.wall + one.deadline.total - anyio.current_time(), one.deadline.ward
            wish = {"reason": why, "timeout_of": one.episode.number}
            mail = _make_mail(one, "stop", f"timeout {one.entity_id} {request.id}", wish, moment)
            timers.append(Timer(id=f"timeout {request.id}", due=due, entity_id=one.entity_id, mail=mail))
        one = one.parent
    return timers


def make_cancellation(timer: Timer) -> Timer:
    """Return the timer that cancels another one."""
    return Timer(id=timer.id, due=None, entity_id=timer.entity_id)


def _make_mail(cell: Cell, kind: MailKind, key: str, body: Mapping[str, Any], moment: Moment) -> Mail:
    root = cell.root.entity_id
    child = None if cell.entity_id == root else cell.entity_id
    return Mail(entity_id=root, key=key, kind=kind, body=body, at=moment.at, child=child)

"""The gate `wake_me`: it sets a timer of the entity, whose mail is an intent of the entity to itself.

The timer is set in the transaction that records the observation of the call. It ends with its entity.
"""

from __future__ import annotations

from cantrip_actors.machine.actions import Contact
from cantrip_actors.machine.events import Observed
from cantrip_actors.machine.schedule import parse_local_time
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.records import Observation
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.mail.inboxes import Inboxes
from cantrip_actors.terms.arguments import check
from cantrip_actors.terms.errors import InvalidSchedule
from cantrip_actors.terms.wrapper import LONGEST


def set_timer(cell: Cell, action: Contact, core: Core, inboxes: Inboxes) -> tuple[Observed, list[Timer]]:
    """Return the event of a `wake_me` call, and the timer that it sets, if its arguments allow one."""
    gate, call = action.gate, action.call
    try:
        due = _compute_due(cell, action, core.read_time_of_day())
    except InvalidSchedule as error:
        return Observed(Observation(gate.name, call.args, f"{gate.name}: {error}", True, call.id)), []
    id = f"{action.turn_id}:{call.id}"
    body = {"intent": action.args["why"]}
    mail = inboxes.make_mail(cell.entity_id, "timer", body, key=f"{cell.entity_id}:{id}", sender=gate.name)
    timer = Timer(id=id, due=due, entity_id=cell.entity_id, mail=mail)
    seconds = action.args.get("in_seconds")
    when = f"at {format_instant(due)}" if seconds is None else f"in {seconds:g} s"
    return Observed(Observation(gate.name, call.args, f"you will be woken {when}", False, call.id)), [timer]


def _compute_due(cell: Cell, action: Contact, now: float) -> float:
    """Return when the entity's timer is due; `now` is the time of day. Raises InvalidSchedule."""
    if not cell.plan.lasting or cell.parent is not None:
        raise InvalidSchedule(
            "this entity ends with its intent, so it cannot be woken: an entity that was made with `invoke` can"
        )
    at, seconds = action.args.get("at"), action.args.get("in_seconds")
    if (at is None) == (seconds is None):
        raise InvalidSchedule("expected one of `at` and `in_seconds`")
    if seconds is not None:
        check(seconds <= LONGEST, "in_seconds", f"at most {LONGEST:,.0f} seconds", seconds, InvalidSchedule)
        return round(now + float(seconds), 3)
    due = parse_local_time(str(at), action.gate.dependencies.get("zone"))
    if due <= now:
        raise InvalidSchedule(f"expected a time to come, got {at}; it is {format_instant(now)}")
    return due

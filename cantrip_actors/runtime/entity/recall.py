"""The gate `recall`: it reads a part of an earlier result from the entity's log.

The context shows long results in part, and folded ones not at all; the loom has them whole.
"""

from __future__ import annotations

from functools import partial

from cantrip_actors.loom import Loom
from cantrip_actors.machine.actions import Contact
from cantrip_actors.machine.events import Observed
from cantrip_actors.machine.project import find_result_text
from cantrip_actors.machine.state import Plan
from cantrip_actors.records.records import Observation
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.loom.core import Core


async def recall_result(cell: Cell, core: Core, action: Contact) -> Observed:
    """Return the event of a `recall` call: a part of a result, or an error observation."""
    gate, call, args = action.gate, action.call, action.args
    text = await core.in_store(partial(read_result, core.loom, cell.plan, args["call"]))
    begin, end = args["begin"], args["end"]
    if text is None:
        error = f"expected the id of an earlier call, as the note in its result says, got {args['call']!r}"
    elif begin >= len(text) or (end is not None and end <= begin):
        error = f"expected a part of the {len(text):,} characters of this result, got from={begin}, to={end}"
    else:
        return Observed(Observation(gate.name, call.args, text[begin:end], False, call.id))
    return Observed(Observation(gate.name, call.args, f"{gate.name}: {error}", True, call.id))


def read_result(loom: Loom, plan: Plan, call_id: str) -> str | None:
    """Return the whole result of a call, or the answer of a background child; None if the thread has no such id."""
    text = find_result_text(loom.records(plan.entity_id), call_id)
    if text is None and plan.forked and plan.parent_turn is not None:
        text = find_result_text(loom.lineage(plan.parent_turn), call_id)
    return text

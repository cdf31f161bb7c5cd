"""The text that replaces folded turns: what the companion recalls, and a crystal's summary (D-007).

The summary is a separate query, to the entity's crystal or to another one, with the usual retries and limits. If it
fails for good, the turns are folded with a marker only: an error would not help an entity whose window is full, and the
loom has every turn.
"""

from __future__ import annotations

from collections.abc import Callable

from cantrip_actors.crystal.query import Query
from cantrip_actors.machine.actions import Remember
from cantrip_actors.machine.events import Remembered
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.crystals.querying import query_crystal
from cantrip_actors.runtime.entity.cell import Bound, Cell
from cantrip_actors.runtime.entity.unavailable import call_until_available
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.terms.companion import Here
from cantrip_actors.terms.image import add_labels
from cantrip_actors.terms.messages import NO_USAGE, Invocation, Message, Response, Usage

INSTRUCTION = (
    "You keep an agent's memory. Below are turns of its work that it will no longer see. Write down, as briefly as you "
    "can, what it has to know to go on: results and exact values, names and places, decisions and why, what failed and "
    "why, what is still open. No introduction; do not go on with the work yourself."
)

_log = get_logger("cantrip_actors.runtime")


async def remember(
    instrument: Instrument | None, cell: Cell, wanted: Remember, here: Here, charge: Callable[[Usage], None]
) -> Remembered:
    """Return the text that replaces the messages to be folded. Raises the errors of the companion.

    `charge` books the usage of a query that is cancelled.
    """
    companion = cell.plan.circle.companion
    recalled = None
    if companion is not None:
        recalled = await call_until_available(lambda: companion.recalls(here, wanted.last), here.entity_id)
    summary, usage = None, NO_USAGE
    summariser = cell.crystal.summariser or (None if wanted.instructions is None else cell.crystal)
    if summariser is not None:
        summary, usage = await _summarise(instrument, cell, summariser, wanted, charge)
    text = "\n\n".join(part for part in (recalled, summary) if part)
    return Remembered(text or None, usage)


async def _summarise(
    instrument: Instrument | None, cell: Cell, summariser: Bound, wanted: Remember, charge: Callable[[Usage], None]
) -> tuple[str | None, Usage]:
    instruction = INSTRUCTION if wanted.instructions is None else f"{INSTRUCTION}\n\n{wanted.instructions}"
    messages = [Message("system", instruction), Message("user", "\n\n".join(map(_render, wanted.messages)))]
    query = Query(Invocation(messages, (), None), charge=charge)
    reply = await query_crystal(instrument, cell, summariser, query)
    if not isinstance(reply, Response):
        _log.warning("no summary of folded turns", entity=cell.entity_id, why=str(reply))
        return None, reply.usage
    return reply.content, reply.usage


def _render(message: Message) -> str:
    """Return a message as text, with its calls and their arguments, and a label for each image."""
    parts = [add_labels(message.content, message.images)] if message.content else []
    parts += [f"{call.gate}({call.arguments})" for call in message.tool_calls]
    who = f"{message.gate} answered" if message.role == "tool" else message.role
    return f"{who}: " + "\n".join(parts)

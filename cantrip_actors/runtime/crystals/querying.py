"""One query of an entity to a crystal's actor, and its reports to an instrument."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cantrip_actors.crystal.query import Query
from cantrip_actors.crystal.request_headers import REQUEST_HEADERS
from cantrip_actors.runtime.crystals.crystal_actor import GRACE, CrystalRequest
from cantrip_actors.runtime.entity.cell import Bound, Cell
from cantrip_actors.runtime.events.context_variables import ASKER, Asker
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.stream.wire import Emitted
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import Response
from cantrip_actors.user_code import watch


async def query_crystal(
    instrument: Instrument | None, cell: Cell, bound: Bound, query: Query
) -> Response | CrystalError:
    """Return the answer of a crystal to an entity, or the error that the query ended with.

    A cancelled query has ended when this raises, or after `GRACE` seconds. An answer that comes in this time is charged
    (`Query.charge`).
    """
    began = 0.0
    if instrument is not None:
        began = time.monotonic()
        emit = None if query.emit is None else _time_parts(query.emit, instrument, cell, began)
        query = query._replace(emit=emit, retried=partial(instrument.retried, cell, crystal=bound.crystal))

    def charge(late: Response | CrystalError) -> None:
        query.report_unanswered(late.usage)

    variables, spans = cell.context_variables, cell.caller.spans
    if spans is not None and (headers := spans.query_headers):
        variables = (*variables, (REQUEST_HEADERS, headers))
    with Asker(cell.entity_id) as asker:
        request = CrystalRequest(bound.crystal, query, cell.plan.cantrip.retry, (*variables, (ASKER, asker)))
        ask = partial(bound.uses.asks.call, request, grace=GRACE, on_late_reply=charge)
        reply: Response | CrystalError = await watch("query", get_crystal_name(bound.crystal), ask)()
    if instrument is not None:
        instrument.answered(cell, reply, time.monotonic() - began, bound.crystal)
    return reply


def _time_parts(
    emit: Callable[[Emitted], None], instrument: Instrument, cell: Cell, began: float
) -> Callable[[Emitted], None]:
    """Return a function that passes the parts of an answer on, and reports their arrival times to an instrument."""
    last: float | None = None

    def emit_part(emitted: Emitted) -> None:
        nonlocal last
        now = time.monotonic()
        instrument.streamed(cell, now - began, None if last is None else now - last)
        last = now
        emit(emitted)

    return emit_part

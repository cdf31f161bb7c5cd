"""One query of an entity to a crystal's actor, and its reports to an instrument."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cantrip_actors.crystal.query import Query
from cantrip_actors.crystal.request_headers import REQUEST_HEADERS
from cantrip_actors.runtime.crystals.crystal_actor import GRACE, CrystalRequest
from cantrip_actors.runtime.entity.cell import Bound, Cell
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.stream.wire import Emitted
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Response
from cantrip_actors.user_code import watch


def make_retry_callback(
    instrument: Instrument | None, cell: Cell, bound: Bound
) -> Callable[[ProviderError, float], None] | None:
    """Return the callback that reports retries of an entity's queries to a crystal."""
    return None if instrument is None else partial(instrument.retried, cell, crystal=bound.crystal)


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
        if query.emit is not None:
            query = query._replace(emit=_TimedParts(query, instrument, cell, began))

    def charge(late: Response | CrystalError) -> None:
        query.report_unanswered(late.usage)

    ask = partial(bound.uses.asks.call, make_request(cell, bound, query), grace=GRACE, on_late_reply=charge)
    reply: Response | CrystalError = await watch("query", get_crystal_name(bound.crystal), ask)()
    if instrument is not None:
        instrument.answered(cell, reply, time.monotonic() - began, bound.crystal)
    return reply


def make_request(cell: Cell, bound: Bound, query: Query) -> CrystalRequest:
    """Return the request to the actor of an entity's crystal."""
    variables, spans = cell.context_variables, cell.caller.spans
    if spans is not None and (headers := spans.query_headers):
        variables = (*variables, (REQUEST_HEADERS, headers))
    return CrystalRequest(bound.crystal, query, cell.plan.cantrip.retry, variables)


class _TimedParts:
    """Passes the parts of an answer on, and reports their arrival times to an instrument."""

    def __init__(self, query: Query, instrument: Instrument, cell: Cell, began: float) -> None:
        assert query.emit is not None
        self._emit, self._instrument, self._cell, self._began = query.emit, instrument, cell, began
        self._last: float | None = None

    def __call__(self, emitted: Emitted) -> None:
        now = time.monotonic()
        self._instrument.streamed(self._cell, now - self._began, None if self._last is None else now - self._last)
        self._last = now
        self._emit(emitted)

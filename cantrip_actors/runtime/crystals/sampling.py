"""The answers of a crystal to a server of tools during one call (`sampling=`).

The cost of an answer is recorded in the log of the calling entity before the server gets the answer. So budgets
count it at once and after a restart, and a server whose entity has used up its budget gets no further answer. The
answers of one call come one after the other.

The entity's actor waits for its gate meanwhile, and writes nothing. `close` lets it continue only when no record of an
answer is being written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from cantrip_actors.crystal.query import Query
from cantrip_actors.machine.budget import Spent
from cantrip_actors.records.records import Record, Sampled
from cantrip_actors.runtime.crystals.querying import query_crystal
from cantrip_actors.runtime.entity.cell import Bound, Cell
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.errors import LoomError, RuntimeClosed
from cantrip_actors.terms.image import MessageParts
from cantrip_actors.terms.messages import Invocation, Message, Response, Usage
from cantrip_actors.terms.tool_server import SampleAnswer, SampleRequest, SamplingRefused

ANSWERS: Final = 10
"""Answers that a server gets during one call."""

TOKENS: Final = 8_192
"""Tokens that one answer may have."""

SHOWN: Final = 2_000
"""Characters of the question and the answer that are recorded."""


class Sampling:
    """Answers the server of one call with the crystal `bound`.

    `record` writes and folds records of the entity, and `find_spent` returns its budget that is used up, if any.
    `charge` books the usage of a query whose answer the server does not get.
    """

    def __init__(
        self,
        core: Core,
        cell: Cell,
        bound: Bound,
        turn_id: str,
        *,
        record: Callable[[Sequence[Record]], Awaitable[None]],
        find_spent: Callable[[], Spent | None],
        charge: Callable[[Usage], None],
    ) -> None:
        self._core = core
        self._cell = cell
        self._bound = bound
        self._turn_id = turn_id
        self._record = record
        self._find_spent = find_spent
        self._charge = charge
        self._turn = anyio.Lock()
        self._writing = anyio.Lock()
        self._count = 0
        self._is_closed = False
        self.error: LoomError | RuntimeClosed | None = None
        """Why an answer could not be recorded."""

    async def answer(self, request: SampleRequest) -> SampleAnswer:
        """Return the crystal's answer, once it is recorded. Raises SamplingRefused."""
        async with self._turn:
            if self._count == ANSWERS:
                raise SamplingRefused(f"a server gets at most {ANSWERS} answers during one call")
            self._count += 1
            spent = self._find_spent()
            if spent is not None:
                raise SamplingRefused(f"the budget of the entity is used up: {spent.ward}")
            messages = [_make_message(role, parts) for role, parts in request.messages]
            options = {"max_tokens": min(request.max_tokens, TOKENS)}
            query = Query(Invocation(messages, (), None), options, charge=self._charge)
            began = anyio.current_time()
            reply = await query_crystal(self._core.instrument, self._cell, self._bound, query)
            if not isinstance(reply, Response):
                self._charge(reply.usage)
                raise SamplingRefused("the model gives no answer now")
            seconds = anyio.current_time() - began
            await self._record_answer(request, reply)
            if self._cell.spans is not None:
                self._cell.spans.note_sample(self._bound, reply, seconds)
        is_cut = reply.metadata.get("stop_reason") in ("length", "max_tokens")
        return SampleAnswer(reply.content or "", request.crystal, is_cut=is_cut)

    async def _record_answer(self, request: SampleRequest, reply: Response) -> None:
        call = request.call
        assert call is not None, "the runtime found this by the call"
        sampled = Sampled(
            entity_id=call.entity_id,
            turn_id=self._turn_id,
            tool_call_id=call.call_id or "",
            server=request.server,
            crystal=request.crystal,
            asked="\n".join(parts.text for _, parts in request.messages)[:SHOWN],
            answer=(reply.content or "")[:SHOWN],
            at=self._core.make_moment().at,
            usage=reply.usage,
        )
        with anyio.CancelScope(shield=True):
            async with self._writing:
                if self._is_closed:
                    self._charge(reply.usage)
                    raise SamplingRefused("its call has ended")
                try:
                    await self._record([sampled])
                except (LoomError, RuntimeClosed) as error:
                    self.error = error
                    raise SamplingRefused("the answer cannot be recorded") from error

    async def close(self) -> None:
        """Record nothing more: the call has ended."""
        with anyio.CancelScope(shield=True):
            async with self._writing:
                self._is_closed = True


def _make_message(role: str, parts: MessageParts) -> Message:
    return Message("assistant" if role == "assistant" else "user", parts.text, images=parts.images)

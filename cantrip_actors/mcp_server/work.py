"""One intent that a tool call gave to an entity. It is in the loom, and any process finds it by its id."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from mcp import types

from cantrip_actors import CantripError, Entity, InvalidIntent, Request, Work
from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.mcp_server.tools import CONTINUE, CastArguments, ForkArguments, Offer, SendArguments
from cantrip_actors.runtime.face.work import wait_through_outages
from cantrip_actors.terms.cut_off import note_cut_off
from cantrip_actors.terms.image import select_pictures
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.outcome import Outcome

CANCELLED: Final = frozenset({"cancelled", "interrupted", "abandoned", "parent_ended"})
"""The reasons of cancelled episodes."""


_COLUMNS: Final = 400
_ROWS: Final = 60
"""The size of a request in a result."""


class UnknownWork(CantripError, KeyError):
    """No task has this id, or it belongs to another client."""

    def __str__(self) -> str:
        """Return the sentence; a KeyError would return its repr."""
        return str(self.args[0])


class ToolWork:
    """The work that a tool call gave to an entity. Its id serves as the id of a task.

    Its methods that are not awaited read the loom: call them in `McpCaller.read`.
    """

    def __init__(self, caller: McpCaller, work: Work) -> None:
        self.work = work
        self._caller = caller

    @classmethod
    def find(cls, caller: McpCaller, work_id: str) -> ToolWork:
        """Return the work with an id. Raises UnknownWork."""
        work = caller.runtime.work(work_id)
        if work is None or not caller.sees(work.entity_id):
            raise UnknownWork("Failed to retrieve task: task not found")
        return cls(caller, work)

    @classmethod
    async def begin(
        cls,
        caller: McpCaller,
        offer: Offer,
        arguments: CastArguments | SendArguments | ForkArguments,
        *,
        survives: bool = False,
    ) -> ToolWork:
        """Give the intent of a tool call to an entity; it is in the loom when this returns.

        Work that `survives` may become a task, which the next process continues: its entity is long-lived, since
        closing a runtime cancels a one-shot entity.

        Raises InvalidIntent, CallerRefused, and the errors of `Runtime.start`, `invoke`, `start_fork` and
        `Entity.post`.
        """
        caller.check(offer.scope)
        runtime, cantrip = caller.runtime, caller.cantrips[offer.cantrip]
        intent, context, by = arguments.intent, arguments.context or None, caller.by
        if isinstance(arguments, SendArguments) and arguments.entity_id:
            entity = await caller.read(partial(_find_entity, caller, arguments.entity_id, offer))
            return cls(caller, await entity.post(intent, context=context, by=by))
        caller.check("cast")
        async with caller.starting() as count:
            if isinstance(arguments, ForkArguments):
                turn = await caller.read(partial(_find_turn, caller, arguments.at, offer))
                entity = await runtime.start_fork(
                    turn, intent=intent, cantrip=cantrip, context=context, lasting=True, by=by
                )
            elif survives or isinstance(arguments, SendArguments):
                entity = await runtime.invoke(cantrip, intent, context=context, by=by)
            else:
                entity = await runtime.start(cantrip, intent, context=context, by=by)
            count(entity.id)
        return cls(caller, entity.work)

    async def wait(self) -> types.CallToolResult:
        """Wait for the end of its episode; return the result of the tool call. Raises RuntimeClosed."""
        try:
            await wait_through_outages(self.work)
        except CantripError as error:
            why = self._caller.redact(str(error))
            return await self._caller.read(lambda: self.result() or error_result(why, self._facts(None)))
        result = await self._caller.read(self.result)
        assert result is not None, "an episode that was waited for is in the loom"
        return result

    def outcome(self) -> Outcome | None:
        """Return how its episode ended; None while it has not."""
        return self.work.find_outcome(redacted=not self._caller.allows("secrets"))

    def result(self) -> types.CallToolResult | None:
        """Return the result of the tool call, read from the loom; None while the episode has not ended."""
        outcome = self.outcome()
        if outcome is None:
            return None
        facts = self._facts(outcome)
        if not outcome.terminated:
            ward = f" by the ward {outcome.ward}" if outcome.ward else ""
            explanation = outcome.error or outcome.summary or ""
            return error_result(self._caller.redact(f"{outcome.reason}{ward}: {explanation}".rstrip(": ")), facts)
        text = note_cut_off(as_text(facts["result"]), outcome.cut_off)
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
        content += [
            types.ImageContent(type="image", data=data, mime_type=image.media_type)
            for image in select_pictures(outcome.images)
            if (data := image.base64()) is not None
        ]
        return types.CallToolResult(content=content, structured_content=facts)

    @property
    def _link(self) -> str | None:
        page = self._caller.page
        return None if page is None else f"{page}#/e/{self.work.entity_id}"

    def describe_wait(self) -> str:
        """Return where a person decides the requests that this work waits for. Reads the loom."""
        places = [f"`cantrip requests {request.id}`" for request in self.work.requests()]
        return f"waits for a person: {', '.join(places if self._link is None else [self._link, *places])}"

    def waiting_result(self, requests: Sequence[Request]) -> types.CallToolResult:
        """Return the result of a call that waits for a person whom its client cannot ask. Reads the loom."""
        link = self._link
        redact = self._caller.redact
        waits = {
            "for": "a person",
            "id": self.work.id,
            "requests": [
                {
                    "id": request.id,
                    "kind": request.kind,
                    "gate": request.gate,
                    "text": redact(request.text),
                }
                for request in requests
            ],
            **({} if link is None else {"link": link}),
        }
        facts = {name: value for name, value in self._facts(None).items() if name != "result"}
        asks = [line for request in requests for line in request.render(columns=_COLUMNS, rows=_ROWS)]
        text = (
            f"This call {self.describe_wait()}. Tell your user to decide it there, then call the tool {CONTINUE} "
            f'with id="{self.work.id}" for the result.\n'
        )
        content = types.TextContent(type="text", text=text + redact("\n".join(asks)))
        return types.CallToolResult(content=[content], structured_content={**facts, "waits": waits})

    def _facts(self, outcome: Outcome | None) -> dict[str, Any]:
        loom, entity_id = self._caller.loom, self.work.entity_id
        usage = loom.subtree_usage(entity_id)
        return {
            "result": None if outcome is None else self._caller.redact(outcome.result),
            "entity_id": entity_id,
            "turns": len(loom.turns(entity_id)),
            "tokens": usage.total_tokens,
            "cost": usage.cost or 0.0,
            **({} if outcome is None or outcome.cut_off is None else {"cut_off": outcome.cut_off}),
        }

    def concerns(self, request: Request) -> bool:
        """Return whether a request to a person is of this entity, or of one below it."""
        return request.root == self.work.entity_id and request.kind != "deferred"  # a program delivers that result

    async def cancel(self, reason: str) -> None:
        """Cancel unfinished work: a later intent is withdrawn or ends with its episode, a first one with its entity."""
        if self.work.key:
            await self.work.cancel(reason, now=True, by=self._caller.by)
        elif await self._caller.runtime.read(self.outcome) is None:
            await self.work.entity.stop(reason, by=self._caller.by)


def error_result(text: str, facts: dict[str, Any] | None = None) -> types.CallToolResult:
    """Return the result of a tool call that failed."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=facts, is_error=True
    )


def _check_entity(caller: McpCaller, entity_id: str, offer: Offer) -> None:
    loom = caller.runtime.loom
    if not (caller.sees(entity_id) and loom.header(entity_id).cantrip_name == offer.cantrip):
        raise InvalidIntent(f"no entity of {offer.cantrip} has the id {entity_id!r}: take one from an earlier result")


def _find_entity(caller: McpCaller, entity_id: str, offer: Offer) -> Entity:
    _check_entity(caller, entity_id, offer)
    return caller.runtime.get_entity(entity_id)


def _find_turn(caller: McpCaller, handle: str, offer: Offer) -> str:
    """Return the id of the turn that a handle names. Raises InvalidIntent."""
    loom = caller.runtime.loom
    if handle in loom:
        _check_entity(caller, loom.owner(handle), offer)
        return handle
    _check_entity(caller, handle, offer)
    turn = loom.last_turn(handle)
    if turn is None:
        raise InvalidIntent(f"the entity {handle!r} has no turn yet: there is nothing to continue from")
    return turn.id

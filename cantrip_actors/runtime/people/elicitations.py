"""Questions of tool servers to people during a call: requests of kind "question".

A current server ends its call with the question, and the call is repeated with the answer. So the question is a record
of the entity, and waits as long as needed (`InputNeeded`).

An older server holds its call open. Its question is not recorded: only the process that runs the entity knows it, and
it is gone when the call ends. If no program follows requests, both kinds are declined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio

from cantrip_actors.circle.gate_call import InputNeeded
from cantrip_actors.machine.events import Moment
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.json_schema import find_schema_fault
from cantrip_actors.terms.tool_server import Elicited
from cantrip_actors.terms.wrapper import GateCall
from cantrip_actors.user_code.threads import run_apart

OPENED: Final[Mapping[str, Any]] = {"type": "boolean", "title": "Done there"}
"""The answer where a server wants a person to open an address."""

LONGEST: Final = 4_000
"""The most characters of a server's question that a person sees."""

_log = get_logger("cantrip_actors.runtime")


@dataclass(eq=False)
class Elicitation:
    """One question of a server, until it is answered or its call ends."""

    id: str
    asked: Elicited
    call: GateCall
    moment: Moment
    is_settled: anyio.Event = field(default_factory=anyio.Event)
    fields: Mapping[str, Any] | None = None
    """The answer for the server; None if a person declined."""

    @property
    def text(self) -> str:
        """The text for a person: the server and its question. An address is shown, never opened."""
        asked = self.asked
        opening = "" if asked.url is None else f"\nOpen {asked.url} yourself if you trust it; then answer true."
        return f"{asked.server} asks: {asked.message[:LONGEST]}{opening}"

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the answer; that of a form is one of an object, whatever the server says."""
        return OPENED if self.asked.schema is None else {**self.asked.schema, "type": "object"}


class Elicitations:
    """The open questions of one runtime's servers.

    `publish` is called for each new one; `is_attended` says whether a program follows requests.
    """

    def __init__(
        self, moment: Callable[[], Moment], is_attended: Callable[[], bool], publish: Callable[[Elicitation], object]
    ) -> None:
        self._moment = moment
        self._is_attended = is_attended
        self._publish = publish
        self._open: dict[str, Elicitation] = {}

    def __iter__(self) -> Iterator[Elicitation]:
        """Yield the open questions, the oldest first."""
        return iter(list(self._open.values()))

    def get(self, request_id: str) -> Elicitation | None:
        """Return the open question with this id; None if there is no such question."""
        return self._open.get(request_id)

    async def elicit(self, asked: Elicited) -> Mapping[str, Any] | None:
        """Publish a question to the programs that follow requests; return the form's fields, or None if it is declined.

        It is declined if no program follows requests, if the form is not a valid JSON Schema, and if the question could
        belong to several calls, so that a person could not judge it. Raises InputNeeded for a question that can wait.
        """
        if asked.call is None or not self._is_attended():
            return None
        moment = self._moment()
        one = Elicitation(f"{asked.call.id}:{moment.fresh}", asked, asked.call, moment)
        fault = await run_apart(partial(find_schema_fault, one.schema, foreign=True))
        if fault:
            _log.warning("a server's question is declined: its form is not a JSON Schema", server=asked.server)
            return None
        if asked.resume is not None:
            raise InputNeeded(one.text, one.schema, asked.resume)
        self._open[one.id] = one
        try:
            self._publish(one)
            await one.is_settled.wait()
        finally:
            self._open.pop(one.id, None)
        return one.fields

    def settle(self, one: Elicitation, answer: Any, by: str, door: str) -> None:
        """Give the server an answer that fits the schema; None declines."""
        to_open = one.asked.url is not None
        one.fields = ({} if answer is True else None) if to_open else answer
        one.is_settled.set()
        del self._open[one.id]
        verdict = "declined" if one.fields is None else "answered"
        _log.info("a question of a server is settled", server=one.asked.server, verdict=verdict, by=by, door=door)

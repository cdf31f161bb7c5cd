"""Agents, the players of roles: a plain function or a crystal, behind one protocol: JSON in, JSON text out.

An agent declares the schemas of its input and its output, and answers; the dispatcher validates the answer
(`agent_dispatcher.py`). One call of an agent is one *physical* call. A crystal's own retries, for a provider that is
busy or unreachable (`Retry`, SPEC 7.3), happen inside one call; the dispatcher retries answers that do not fit their
schema.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel

from cantrip_actors import Crystal, Invocation, Message, Response, Retry, Usage
from cantrip_actors.crystals import Query, resolve
from cantrip_actors.crystals import ask as ask_crystal
from cantrip_actors.terms.arguments import check
from cantrip_actors.terms.exact_json import strip_fence

ASK: Final[ContextVar[Callable[[Crystal | str, Query, Retry], Awaitable[Response]] | None]] = ContextVar(
    "cantrip_actors.agentic.ask", default=None
)
"""`Runtime.ask` of the runtime of the present run, which shares its limits; None outside of one."""


@runtime_checkable
class AgentProtocol(Protocol):
    """The player of a role: `await agent(input_json)` returns its answer, as JSON text.

    The trace has its `id`, error texts its `name`. An exception of it ends the run. An agent with `reply`, such
    as `CrystalAgent`, is called by that instead, and reports the tokens that it used.
    """

    @property
    def id(self) -> str:
        """Its id in the trace."""

    @property
    def name(self) -> str:
        """Its name in error texts."""

    @property
    def input_schema(self) -> type[BaseModel]:
        """The schema of its input."""

    @property
    def output_schema(self) -> type[BaseModel]:
        """The schema of its answer."""

    async def __call__(self, input_json: str) -> str:
        """Return its answer to an input, both as JSON."""


class AgentReply(NamedTuple):
    """An answer, and its token usage."""

    text: str
    usage: Usage = Usage()


# ----------------------------------------------------------------------------------------------------------- functions


@dataclass(frozen=True)
class FunctionAgent:
    """An agent that is a function of its typed input, plain or async; its schemas are the function's annotations.

    The function returns an object of the output schema, or JSON text, which may be wrong. Raises TypeError if no schema
    is given and the annotations name none.
    """

    function: Callable[[Any], Any]
    id: str = ""
    name: str = ""
    input_schema: type[BaseModel] = field(default=BaseModel)
    output_schema: type[BaseModel] = field(default=BaseModel)

    def __post_init__(self) -> None:
        check(callable(self.function), "agent", "a function of its typed input", self.function, TypeError)
        title = str(getattr(self.function, "__name__", type(self.function).__name__))
        fields: dict[str, Any] = {"id": self.id or title, "name": self.name or self.id or title}
        hints: dict[str, Any] = {}
        if BaseModel in (self.input_schema, self.output_schema):
            hints = typing.get_type_hints(self.function)
        returned = hints.pop("return", None)
        parameter = next(iter(hints.values()), None)
        for name, hint in (("input_schema", parameter), ("output_schema", returned)):
            schema = getattr(self, name)
            fields[name] = hint if schema is BaseModel else schema
            if not (isinstance(fields[name], type) and issubclass(fields[name], BaseModel)):
                raise TypeError(f"agent {title}: {name}: expected a pydantic model, annotated or given, got {hint!r}")
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    async def __call__(self, input_json: str) -> str:
        """Return the function's answer, as JSON."""
        answer = self.function(self.input_schema.model_validate_json(input_json, by_name=True))
        if inspect.isawaitable(answer):
            answer = await answer
        return answer.model_dump_json(round_trip=True) if isinstance(answer, BaseModel) else answer


# ------------------------------------------------------------------------------------------------------------ crystals


_SHAPE: Final = """\
{instructions}

You are given one JSON object. Answer with one JSON object and nothing else: no prose, no code fence.
Your answer has to follow this JSON Schema:
{schema}"""


@dataclass(frozen=True)
class CrystalAgent:
    """An agent that is a crystal: a name such as "anthropic:…", or any object with `invoke`.

    The role's `instructions` and the schema of the output are the system prompt, the input is the one user message. A
    crystal that can be made to follow a schema does so (`output_schema` among its options). `options` are sampling
    parameters and other fields for the provider; `retry` is for the transport, inside one call. In a run of a
    `Controller` the runtime asks the crystal, with the limits that all its entities share.
    """

    crystal: Crystal | str
    instructions: str
    id: str
    input_schema: type[BaseModel]
    output_schema: type[BaseModel]
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.id)

    def messages(self, input_json: str) -> Sequence[Message]:
        """Return the messages for the crystal."""
        schema = json.dumps(self.output_schema.model_json_schema(), separators=(",", ":"))
        prompt = _SHAPE.format(instructions=self.instructions.strip(), schema=schema)
        return [Message("system", prompt), Message("user", input_json)]

    async def reply(self, input_json: str) -> AgentReply:
        """Return the crystal's answer. Raises CrystalError, ProviderError."""
        options = {"output_schema": self.output_schema.model_json_schema(), **self.options}
        query = Query(Invocation(self.messages(input_json)), options)
        ask = ASK.get()
        if ask is None:
            response = await ask_crystal(self._resolve_crystal, query, retry=self.retry)
        else:
            response = await ask(self.crystal, query, self.retry)
        return AgentReply(strip_fence(response.content or ""), response.usage)

    async def __call__(self, input_json: str) -> str:
        """Return the crystal's answer, without its usage."""
        return (await self.reply(input_json)).text

    @cached_property
    def _resolve_crystal(self) -> Crystal:
        """Return the crystal, resolved at its first use, so that an agent can be made without a key."""
        return resolve(self.crystal)


Player = Crystal | str | AgentProtocol
"""The player of a role: a crystal, or an agent."""


def make_agent(
    player: Player | None,
    function: Callable[[Any], Any],
    instructions: str,
    id: str,
    input_schema: type[BaseModel],
    output_schema: type[BaseModel],
) -> AgentProtocol:
    """Return the agent for a role: `function`, or a crystal that follows `instructions`, or `player` itself."""
    if player is None:
        return FunctionAgent(function, id, id, input_schema, output_schema)
    if isinstance(player, (str, Crystal)):
        return CrystalAgent(player, instructions, id, input_schema, output_schema)
    return player

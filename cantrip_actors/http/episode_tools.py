"""The tools and the form of answer that a client gives a cantrip for one episode (OpenAI's `tools`, `response_format`).

A tool is a deferred gate: the entity waits for its result, which the client sends with its next request. A form is the
schema of the argument of `done`. Both are additions to the cantrip that is offered (`terms/additions.py`): a client
adds, and replaces nothing. The id of a call names the entity that waits, so its result reaches the entity without a
session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from anyio import to_thread

from cantrip_actors import Cantrip, Gate, InvalidCantrip, Usage
from cantrip_actors.http.answer_form import find_reference_fault
from cantrip_actors.http.person_waits import PersonWait
from cantrip_actors.http.problems import Problem
from cantrip_actors.terms.additions import AddedTool
from cantrip_actors.terms.answer import hold_to_schema
from cantrip_actors.terms.extended_cantrip import extend, has_own_form
from cantrip_actors.terms.gate import Refused
from cantrip_actors.terms.json_schema import find_excess, find_schema_fault, load
from cantrip_actors.terms.messages import ToolCall, as_text
from cantrip_actors.terms.schema_shape import is_plain
from cantrip_actors.user_code.threads import get_client_limiter

T = TypeVar("T")

MOST: Final = 128
"""Tools of one request, as OpenAI has it."""
CALL: Final = "call_"


class ToolCallItem(NamedTuple):
    """A call that the client is to carry out; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


class Rest(NamedTuple):
    """Where an episode rests: with calls for the client, and the text beside them; with a text alone, which waits for
    the client's reply; or until a person has decided.

    `usage` is that since the client's last results.
    """

    calls: tuple[ToolCallItem, ...]
    words: str | None
    usage: Usage
    wait: PersonWait | None


def make_client_id(entity_id: str, call_id: str) -> str:
    """Return the id by which a client knows a call."""
    return f"{CALL}{entity_id}.{call_id}"


def split_client_id(id: str) -> tuple[str, str] | None:
    """Return the entity and the call of a client's id; None for an id that was not made here."""
    entity_id, dot, call_id = id.removeprefix(CALL).partition(".")
    return (entity_id, call_id) if id.startswith(CALL) and dot and call_id else None


def get_function(tool: Any) -> dict[str, Any]:
    """Return the function of a tool or a choice: chat completions have it in a member of its own."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return {}
    function = tool.get("function", tool)
    return function if isinstance(function, dict) else {}


async def check_in_thread(work: Callable[[], T]) -> T:
    """Return the result of work that checks schemas of a client, without stopping the event loop meanwhile."""

    def load_and_work() -> T:
        load()
        return work()

    return await to_thread.run_sync(load_and_work, abandon_on_cancel=True, limiter=get_client_limiter())


def read_tools(cantrip: Cantrip, tools: Sequence[Any]) -> dict[str, Gate]:
    """Return a client's tools as deferred gates, by their names. Raises Problem 400.

    The schemas that take long to check are bounded together, as a single one is.
    """
    if len(tools) > MOST:
        raise _refuse("tools", f"expected at most {MOST} tools, got {len(tools)}")
    fault = find_excess([schema for tool in tools if not is_plain(schema := get_function(tool).get("parameters"))])
    if fault is not None:
        raise _refuse("tools", f"expected schemas of common keywords; of what the others have in all: {fault}")
    gates: dict[str, Gate] = {}
    for number, tool in enumerate(tools):
        gate = _read_tool(f"tools[{number}]", tool)
        if gate.name in gates:
            raise _refuse(f"tools[{number}]", f"two tools are called {gate.name!r}: give one of them another name")
        if cantrip.circle.gate(gate.name) is not None:
            text = f"the cantrip has a gate called {gate.name!r}, which no tool replaces: give the tool another name"
            raise _refuse(f"tools[{number}]", text)
        gates[gate.name] = gate
    return gates


def _read_tool(param: str, tool: Any) -> Gate:
    function = get_function(tool)
    if not function:
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind == "function":
            raise _refuse(param, 'expected a function with a name, as in {"name": "look"}, got none')
        raise _refuse(param, f"expected a function, got {kind!r}: tools of a provider are the cantrip's own")
    name, text, schema = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(text, str | None):
        raise _refuse(param, f"description: expected a text, got {text!r}")
    if not isinstance(function.get("strict"), bool | None):
        raise _refuse(param, f"strict: expected true or false, got {function['strict']!r:.50}")
    schema = {"type": "object", "properties": {}} if schema is None else schema
    check_schema(f"{param}.parameters", schema)
    try:
        gate = AddedTool(name or "", schema, text or "").make_gate()
    except InvalidCantrip as problem:
        raise _refuse(param, str(problem)) from problem
    if gate.name != name:
        raise _refuse(param, f"{name!r} is another name of the gate {gate.name!r}: give the tool another name")
    return gate


def check_schema(param: str, schema: Any) -> None:
    """Raise Problem 400 for a client's schema that is not one, or is too large to check."""
    fault = None
    if isinstance(schema, Mapping):
        fault = find_excess(schema) or find_schema_fault(schema, foreign=True) or find_reference_fault(schema)
    if fault is not None or not isinstance(schema, Mapping):
        raise _refuse(param, f"expected a JSON Schema: {fault or f'got {schema!r}'}")


def _refuse(param: str, text: str) -> Problem:
    return Problem(400, "invalid", f"{param}: {text}", param=param)


def add_tools(
    cantrip: Cantrip, tools: Mapping[str, Gate], *, must_call: bool = False, one_call: bool = False
) -> Cantrip:
    """Return a cantrip with a client's tools. With `must_call` each answer of its crystal calls a gate; with `one_call`
    the client gets one call at a time.
    """
    if not tools:
        return cantrip
    added = tuple(AddedTool(gate.name, gate.parameters, gate.description) for gate in tools.values())
    return extend(cantrip.offered, replace(cantrip.additions, tools=added, must_call=must_call, one_call=one_call))


def ask_for_form(cantrip: Cantrip, schema: Mapping[str, Any]) -> Cantrip | None:
    """Return a cantrip whose answers fit a client's schema; None if it has a form of answer of its own."""
    done = cantrip.circle.gate("done")
    if done is None or has_own_form(cantrip):
        return None
    typed = hold_to_schema(done, schema)
    if isinstance(typed, Refused):
        return None
    return extend(cantrip.offered, replace(cantrip.additions, done=typed.parameters))


def list_calls(
    entity_id: str, first: ToolCall, listed: Sequence[ToolCall], tools: Mapping[str, Gate]
) -> Iterator[ToolCallItem]:
    """Yield the calls that a waiting entity has for its client: the one that it waits for, and the later ones of the
    `listed` calls of the same answer, which run in order.
    """
    at = next((number for number, call in enumerate(listed) if call.id == first.id), len(listed))
    later = (call for call in listed[at + 1 :] if call.gate in tools)
    for call in (first, *(call for call in later if not isinstance(tools[call.gate].check(call), Refused))):
        yield ToolCallItem(make_client_id(entity_id, call.id), call.gate, as_text(dict(call.args or {})))

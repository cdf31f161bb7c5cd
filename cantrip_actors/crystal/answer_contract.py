"""The rules for a crystal's answer, and the question to a crystal whose answer breaks one (CRYSTAL-3, CRYSTAL-4,
CRYSTAL-5).

| rule | the answer | if it breaks the rule |
|---|---|---|
| CRYSTAL-3 | has content, a call, code or an image | `CrystalError`: the cast fails, its tokens are booked |
| CRYSTAL-4 | has calls with a gate, arguments and an id of their own | `CrystalError` |
| CRYSTAL-5 | follows `tool_choice` | `NotAsAsked`: asked again, `INSISTENCE` times, then `CrystalError` |
| schema | fits `output_schema` (`provider.py`) | `NotAsAsked`: the same |
| body | can be read by its provider | a failed attempt: retried, with the output quoted |

`read_answer` decides the first three, with `Response.of` for what depends on the answer alone (CRYSTAL-3, CRYSTAL-4).
A `Draft` reports an empty answer earlier, with the provider's reason to stop. `query.py` runs the attempts. The
messages that ask again are never recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.terms.context import Shared, View
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.image import add_handles
from cantrip_actors.terms.messages import NO_USAGE, Invocation, Message, Response, find_named_gate

INSISTENCE: Final = 3
"""How often a crystal is asked again for an answer that follows `tool_choice` (CRYSTAL-5), or a schema."""

QUOTED: Final = 4000
"""Characters of a failed answer that are quoted to the next attempt."""

_UNREADABLE: Final = (
    "[that could not be read as a tool call, and nothing was run. Call a tool by its interface, with arguments as one "
    "JSON object that fits its schema, or answer in words]"
)
_NO_JSON: Final = "[that is not valid JSON for the schema. Answer again, with one JSON value and nothing else]"


class NotAsAsked(ProviderError):
    """An answer that does not fit the query. `ask` asks again; only a `Through` sees this error.

    `wanted` is sent to the crystal, and `advice` is for the caller if the crystal never complies.
    """

    def __init__(self, problem: str, response: Response, wanted: str, advice: str) -> None:
        super().__init__(f"crystal returned {problem}", usage=response.usage)
        self.response = response
        self.wanted = wanted
        self.advice = advice


def read_answer(answer: Any, invocation: Invocation, estimator: Estimator | None = None) -> Response:
    """Return the response in a crystal's answer: a Response, a mapping with its fields, or text.

    `estimator` estimates the usage of an answer that reports none. A response with a handle has no answer yet.

    Raises CrystalError if the answer is empty (CRYSTAL-3) or malformed (CRYSTAL-4), NotAsAsked if it does not follow
    `tool_choice` (CRYSTAL-5).
    """
    try:
        response = Response.of(answer)
    except CrystalError as error:
        if estimator is not None and error.usage is NO_USAGE:
            error.usage = estimator.estimate_usage(invocation)
        raise
    if response.handle is not None:
        return response
    if estimator is not None and response.usage is NO_USAGE:
        response = replace(response, usage=estimator.estimate_usage(invocation, response))
    _check_tool_choice(response, invocation)
    return response


def _check_tool_choice(response: Response, invocation: Invocation) -> None:
    """Raise NotAsAsked if an answer does not follow `tool_choice`. A program counts as a call (CRYSTAL-5)."""
    choice = invocation.tool_choice
    if choice is None or choice == "auto":
        return
    called = [call.gate for call in response.tool_calls]
    offered = ", ".join(tool.name for tool in invocation.tools)
    advice = "use tool_choice='auto', or a crystal that can be made to call"
    gate = find_named_gate(choice)
    if gate is not None and gate not in called and not response.code:
        problem = f"no call of {gate} although tool_choice is {choice}"
        wanted = f"[a call of {gate} is required here: call it]"
    elif choice == "required" and not (called or response.code):
        problem = "no tool call although tool_choice is required"
        wanted = f"[a tool call is required here: call at least one of {offered or 'your tools'}]"
    elif choice == "none" and called:
        problem = f"a tool call ({', '.join(called)}) although tool_choice is none"
        wanted = "[no tool call is allowed here, and none was carried out: answer in words]"
        advice = "use tool_choice='auto', or a crystal that can be kept from calling; no call was carried out"
    else:
        return
    raise NotAsAsked(problem, response, wanted, f"{advice} (tools: {offered or 'none were offered'})")


def ask_again(invocation: Invocation, failed: NotAsAsked) -> Invocation:
    """Return the same question, with the rejected answer and the requirement that it missed."""
    response = failed.response
    text = (
        add_handles(response.content, response.images)
        or f"[called {', '.join(call.gate for call in response.tool_calls)}]"
    )
    blocks = () if response.tool_calls else response.blocks  # the blocks of a call would need its result
    last = Message("assistant", text, thinking=response.thinking, blocks=blocks, images=response.images)
    return _append(invocation, last, Message("user", failed.wanted))


def quote_output(invocation: Invocation, generated: str) -> Invocation:
    """Return the same question, with the output that the provider could not parse."""
    quoted = generated if len(generated) <= QUOTED else f"{generated[:QUOTED]}…"
    last = Message("user", _UNREADABLE if invocation.tools else _NO_JSON)
    return _append(invocation, Message("assistant", quoted), last)


def _append(invocation: Invocation, *more: Message) -> Invocation:
    messages = invocation.messages
    number = messages.query if isinstance(messages, View) else 0
    return Invocation(View(Shared([*messages, *more]), query=number), invocation.tools, invocation.tool_choice)

"""Checks a crystal against its provider: 25 short queries, each for one property that entities rely on.

The queries are live and cost a little. They run only on request: `cantrip crystals check`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import anyio

from cantrip_actors.crystal.query import Query, ask
from cantrip_actors.crystal.shapes import parse_object
from cantrip_actors.stream.wire import ItemDelta
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError, suggest_nearest
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Invocation, Message, Response, ToolCall, ToolChoice, ToolDefinition, Usage
from cantrip_actors.terms.retry import Retry

TIMEOUT: Final = 90.0
"""Seconds for one probe."""

_READ: Final = ToolDefinition(
    "read_file",
    "Read a text file and return its content.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False},
)
_ADD: Final = ToolDefinition(
    "add",
    "Add two whole numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["a", "b"],
    },
)
_PERSON: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "nick": {"type": "string"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_RED: Final = Image(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKklEQVR42mO4IyJCU8QwasGoBaMWjFowasGoBaMWjFowasGoBaMW"
        "DBULAJ3LED19/LmKAAAAAElFTkSuQmCC"
    )
)


class Tried(NamedTuple):
    """The means of a probe: `ask` sends a query, `seen` has the payloads streamed for the last one."""

    ask: Callable[..., Awaitable[Response]]
    seen: list[Any]


RunProbe = Callable[[Tried], Awaitable[str]]
"""Sends one query or two, and checks their answers; returns the fault, or ""."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A property of a crystal, and the function that looks for it."""

    name: str
    shows: str
    run: RunProbe


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe: `why` is "" if it passed; `left_out` names the settings that the crystal did not send."""

    probe: str
    state: Literal["passed", "failed", "left out"]
    why: str = ""
    left_out: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0


async def check(crystal: Crystal, only: Iterable[str] = (), *, timeout: float = TIMEOUT) -> list[ProbeResult]:
    """Run the probes on a crystal, one after the other, and return their results.

    `only` are names of probes; none means all. `timeout` is in seconds, for each. Raises InvalidCantrip for an unknown
    name.
    """
    wanted = list(only)
    probes = {probe.name: probe for probe in PROBES}
    for name in wanted:
        if name not in probes:
            raise InvalidCantrip(f'no probe is called "{name}": {suggest_nearest(name, probes)}')
    return [await _run_probe(crystal, probe, timeout) for probe in PROBES if not wanted or probe.name in wanted]


async def _run_probe(crystal: Crystal, probe: Probe, timeout: float) -> ProbeResult:
    used: list[Usage] = []
    left_out: list[str] = []
    seen: list[Any] = []

    async def ask_crystal(
        context: str | Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        tool_choice: ToolChoice | None = None,
        max_tokens: int = 4000,
        **options: Any,
    ) -> Response:
        seen.clear()
        messages = [Message("user", context)] if isinstance(context, str) else list(context)
        query = Query(Invocation(messages, tools, tool_choice), {"max_tokens": max_tokens, **options}, seen.append)
        response = await ask(crystal, query, retry=Retry(max_retries=2))
        used.append(response.usage)
        left_out.extend(response.metadata.get("left_out", ()))
        return response

    began = time.monotonic()
    why = f"nothing came within {timeout:g} s"
    try:
        with anyio.move_on_after(timeout):
            why = await probe.run(Tried(ask_crystal, seen))
    except CrystalError as error:
        why = str(error)
        used.append(error.usage)
    spent = sum(used, Usage())
    state: Literal["passed", "failed", "left out"] = "failed" if why else "left out" if left_out else "passed"
    return ProbeResult(probe.name, state, why, tuple(dict.fromkeys(left_out)), spent, time.monotonic() - began)


def _check_words(response: Response, *words: str) -> str:
    text = (response.content or "").lower()
    missing = [word for word in words if word.lower() not in text]
    return f"expected {', '.join(map(repr, missing))} in the answer, got {text[:200]!r}" if missing else ""


def _check_call(response: Response, gate: str) -> str:
    names = [call.gate for call in response.tool_calls]
    return "" if gate in names else f"expected a call of {gate}, got {names or (response.content or '')[:200]!r}"


def _expect(*words: str, of: str | Sequence[Message], **options: Any) -> RunProbe:
    """Expect these words in the answer to a text or to a context."""

    async def run(tried: Tried) -> str:
        return _check_words(await tried.ask(of, **options), *words)

    return run


def _expect_json(of: str, schema: Mapping[str, Any], **expected: Any) -> RunProbe:
    async def run(tried: Tried) -> str:
        response = await tried.ask(of, output_schema=schema)
        is_same = parse_object(response.content or "") == expected
        return "" if is_same else f"expected {json.dumps(expected)}, got {(response.content or '')[:200]!r}"

    return run


def _expect_call(gate: ToolDefinition, of: str, tool_choice: ToolChoice | None = None) -> RunProbe:
    async def run(tried: Tried) -> str:
        return _check_call(await tried.ask(of, [gate], tool_choice), gate.name)

    return run


async def _try_streaming(tried: Tried) -> str:
    await tried.ask("Count from 1 to 40, one number a line.")
    pieces = sum(isinstance(payload, ItemDelta) for payload in tried.seen)
    return "" if pieces > 1 else f"expected several pieces, got {pieces}"


async def _try_usage(tried: Tried) -> str:
    usage = (await tried.ask("Say yes.")).usage
    return "its tokens are an estimate" if usage.estimated_tokens else "" if usage.total_tokens else "no tokens"


async def _try_call(tried: Tried) -> str:
    response = await tried.ask("Read the file notes.txt with your tool.", [_READ])
    problem = _check_call(response, "read_file")
    return problem or ("" if (response.tool_calls[0].args or {}).get("path") == "notes.txt" else "other arguments")


async def _try_no_call(tried: Tried) -> str:
    response = await tried.ask("Read notes.txt.", [_READ], "none")
    return "" if not response.tool_calls else "it called"


async def _answer_calls(tried: Tried, question: str, first: Response, results: Message, **options: Any) -> Response:
    """Return the answer after the calls of the `first` one, each with the same result."""
    utterance = Message("assistant", first.content, first.tool_calls, thinking=first.thinking, blocks=first.blocks)
    answers = [replace(results, tool_call_id=call.id, gate=call.gate) for call in first.tool_calls]
    return await tried.ask([Message("user", question), utterance, *answers], **options)


async def _answer_read(tried: Tried, result: Message) -> Response:
    question = "Read the file notes.txt with your tool, then tell me in one word what is in it."
    first = await tried.ask(question, [_READ])
    return await _answer_calls(tried, question, first, result, tools=[_READ]) if first.tool_calls else first


async def _try_result(tried: Tried) -> str:
    return _check_words(await _answer_read(tried, Message("tool", "MARMALADE")), "marmalade")


async def _try_failed_result(tried: Tried) -> str:
    response = await _answer_read(tried, Message("tool", "no such file: notes.txt", is_error=True))
    return "" if response.content or response.tool_calls else "it said nothing"


async def _try_picture_result(tried: Tried) -> str:
    response = await _answer_read(tried, Message("tool", "a picture of one colour follows", images=(_RED,)))
    return _check_words(response, "red") if response.content else ""


async def _try_thinking_calls(tried: Tried) -> str:
    question = "Use your tool to add 17 and 23, and tell me the sum."
    first = await tried.ask(question, [_ADD], effort="low")
    if problem := _check_call(first, "add"):
        return problem
    response = await _answer_calls(tried, question, first, Message("tool", "40"), tools=[_ADD], effort="low")
    return _check_words(response, "40")


async def _try_stop(tried: Tried) -> str:
    response = await tried.ask("Count: 1 2 3 4 5 6 7 8 9, with spaces.", stop=["6"])
    is_left_out = "stop" in response.metadata.get("left_out", ())
    return "" if "9" not in (response.content or "") or is_left_out else "it went on"


async def _try_limit(tried: Tried) -> str:
    response = await tried.ask("Write a story of a thousand words.", max_tokens=64)
    return "" if response.usage.completion_tokens <= 256 else f"{response.usage.completion_tokens} tokens of 64"


async def _try_cache(tried: Tried) -> str:
    call = Message("system", "You are terse. " + "These are the rules of the house, rule by rule. " * 400)
    await tried.ask([call, Message("user", "Say one.")])
    usage = (await tried.ask([call, Message("user", "Say two.")])).usage
    return "" if usage.cached_tokens else f"none of {usage.prompt_tokens} tokens came from the cache"


async def _try_errors(tried: Tried) -> str:
    try:
        await tried.ask("Say one.", temperature=-17.0)
    except ProviderError as error:
        return "" if error.status is not None and str(error) else f"got {error!r}"
    return ""


_SYSTEM: Final = (
    Message("system", "You answer every question with the one word BLUE."),
    Message("user", "What is two and two?"),
)
_MEMORY: Final = (
    Message("user", "Remember the word OBELISK."),
    Message("assistant", "I will."),
    Message("user", "Which word was it?"),
)
_OTHER: Final = (
    Message("user", "What is 20 + 3?"),
    Message(
        "assistant",
        None,
        (ToolCall("call_other/1", "add", {"a": 20, "b": 3}),),
        thinking="I add.",
        blocks=({"provider": "somebody-else", "model": "m", "content": [{"type": "thinking", "thinking": "?"}]},),
    ),
    Message("tool", "23", (), "call_other/1", "add"),
)
_LONG: Final = (
    " ".join(f"line {n} says nothing." for n in range(500))
    + " The password is HELIOTROPE. "
    + "More. " * 1500
    + "\nWhat is the password? One word."
)
_AGES: Final = {"type": "object", "additionalProperties": {"type": "integer"}}
_NAMES: Final = "Ada is 36, Bob is 7: ages by name."
_TWO_CALLS: Final = "Call add for 1 and 2, and add for 3 and 4, both now, in parallel."

_UNICODE: Final = "Repeat exactly: žluťoučký 猫 🔑"
_PICTURE: Final = (Message("user", "Which colour is this? One word.", images=(_RED,)),)

PROBES: Final = (
    Probe("text", "it answers", _expect("pong", of="Answer with the one word PONG.")),
    Probe("streaming", "its answer comes in pieces", _try_streaming),
    Probe("system", "it follows its call", _expect("blue", of=_SYSTEM)),
    Probe("memory", "it remembers earlier messages", _expect("obelisk", of=_MEMORY)),
    Probe("unicode", "characters beyond ASCII come back", _expect("žluťoučký", "猫", "🔑", of=_UNICODE)),
    Probe("usage", "tokens are counted", _try_usage),
    Probe("call", "it calls a gate", _try_call),
    Probe("forced call", "it calls where it has to", _expect_call(_READ, "Good morning.", "required")),
    Probe("no call", "it does not call where it must not", _try_no_call),
    Probe("two calls", "it calls twice in one answer, or says one after the other", _expect_call(_ADD, _TWO_CALLS)),
    Probe("result", "it reads what a gate returned", _try_result),
    Probe("failed result", "it sees the failure of a gate", _try_failed_result),
    Probe("picture in a result", "it sees a gate's picture", _try_picture_result),
    Probe("another's history", "it continues the thread of another model", _expect("23", of=_OTHER, tools=[_ADD])),
    Probe("schema", "an answer follows a schema", _expect_json("Ada is 36 years old.", _PERSON, name="Ada", age=36)),
    Probe("schema with a map", "and one that few providers can express", _expect_json(_NAMES, _AGES, Ada=36, Bob=7)),
    Probe("thinking", "it thinks before it answers", _expect("391", of="What is 17 * 23?", effort="low")),
    Probe("thinking and calls", "and its thinking goes back to it", _try_thinking_calls),
    Probe("temperature", "it takes a temperature", _expect("pong", of="Answer PONG.", temperature=0.0)),
    Probe("stop", "it stops at a stop sequence", _try_stop),
    Probe("limit", "an answer keeps to its length", _try_limit),
    Probe("picture", "it sees a picture", _expect("red", of=_PICTURE)),
    Probe("long context", "it finds a word in 20,000 characters", _expect("heliotrope", of=_LONG)),
    Probe("cache", "what it has read before costs less", _try_cache),
    Probe("errors", "what it refuses has a status and words", _try_errors),
)
"""The probes, in order."""

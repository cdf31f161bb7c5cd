"""Checks a crystal against its provider: 25 short queries, each for one property that entities rely on.

The queries are live and cost a little. They run only on request: `cantrip crystals check`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import anyio

from cantrip_actors.crystal.query import Query, ask
from cantrip_actors.crystal.shapes import parse_object
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError, suggest_nearest
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Invocation, Message, Response, ToolCall, ToolDefinition, Usage
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


@dataclass(frozen=True, slots=True)
class Probe:
    """One query or two, and the check of their answers: `run` returns the fault, or ""."""

    name: str
    shows: str
    run: Callable[[Tried], Awaitable[str]]


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
        messages: Sequence[Message], tools: Sequence[ToolDefinition] = (), **options: Any
    ) -> Response:
        seen.clear()
        choice = options.pop("tool_choice", None)
        query = Query(Invocation(list(messages), list(tools), choice), options, emit=seen.append)
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


def _make_message(text: str, *images: Image) -> Message:
    return Message("user", text, images=tuple(images))


def _check_words(response: Response, *words: str) -> str:
    text = (response.content or "").lower()
    missing = [word for word in words if word.lower() not in text]
    return f"expected {', '.join(map(repr, missing))} in the answer, got {text[:200]!r}" if missing else ""


def _check_json(response: Response, expected: Mapping[str, Any]) -> str:
    is_same = parse_object(response.content or "") == expected
    return "" if is_same else f"expected {json.dumps(expected)}, got {(response.content or '')[:200]!r}"


def _check_call(response: Response, gate: str) -> str:
    names = [call.gate for call in response.tool_calls]
    return "" if gate in names else f"expected a call of {gate}, got {names or (response.content or '')[:200]!r}"


def _add_probe(
    name: str, shows: str
) -> Callable[[Callable[[Tried], Awaitable[str]]], Callable[[Tried], Awaitable[str]]]:
    def add(run: Callable[[Tried], Awaitable[str]]) -> Callable[[Tried], Awaitable[str]]:
        PROBES.append(Probe(name, shows, run))
        return run

    return add


PROBES: Final[list[Probe]] = []
"""The probes, in order."""


@_add_probe("text", "it answers")
async def _try_text(tried: Tried) -> str:
    return _check_words(await tried.ask([_make_message("Answer with the one word PONG.")], max_tokens=2000), "pong")


@_add_probe("streaming", "its answer comes in pieces")
async def _try_streaming(tried: Tried) -> str:
    await tried.ask([_make_message("Count from 1 to 40, one number a line.")], max_tokens=4000)
    pieces = sum(type(payload).__name__ == "ItemDelta" for payload in tried.seen)
    return "" if pieces > 1 else f"expected several pieces, got {pieces}"


@_add_probe("system", "it follows its call")
async def _try_system(tried: Tried) -> str:
    call = Message("system", "You answer every question with the one word BLUE.")
    return _check_words(await tried.ask([call, _make_message("What is two and two?")], max_tokens=2000), "blue")


@_add_probe("memory", "it remembers earlier messages")
async def _try_memory(tried: Tried) -> str:
    messages = [
        _make_message("Remember the word OBELISK."),
        Message("assistant", "I will.", ()),
        _make_message("Which word was it?"),
    ]
    return _check_words(await tried.ask(messages, max_tokens=2000), "obelisk")


@_add_probe("unicode", "characters beyond ASCII come back")
async def _try_unicode(tried: Tried) -> str:
    return _check_words(
        await tried.ask([_make_message("Repeat exactly: žluťoučký 猫 🔑")], max_tokens=2000), "žluťoučký", "猫", "🔑"
    )


@_add_probe("usage", "tokens are counted")
async def _try_usage(tried: Tried) -> str:
    usage = (await tried.ask([_make_message("Say yes.")], max_tokens=2000)).usage
    return "its tokens are an estimate" if usage.estimated_tokens else "" if usage.total_tokens else "no tokens"


@_add_probe("call", "it calls a gate")
async def _try_call(tried: Tried) -> str:
    response = await tried.ask([_make_message("Read the file notes.txt with your tool.")], [_READ], max_tokens=2000)
    problem = _check_call(response, "read_file")
    return problem or ("" if (response.tool_calls[0].args or {}).get("path") == "notes.txt" else "other arguments")


@_add_probe("forced call", "it calls where it has to")
async def _try_forced_call(tried: Tried) -> str:
    response = await tried.ask([_make_message("Good morning.")], [_READ], tool_choice="required", max_tokens=2000)
    return _check_call(response, "read_file")


@_add_probe("no call", "it does not call where it must not")
async def _try_no_call(tried: Tried) -> str:
    response = await tried.ask([_make_message("Read notes.txt.")], [_READ], tool_choice="none", max_tokens=2000)
    return "" if not response.tool_calls else "it called"


@_add_probe("two calls", "it calls twice in one answer, or says one after the other")
async def _try_two_calls(tried: Tried) -> str:
    wanted = "Call add for 1 and 2, and add for 3 and 4, both now, in parallel."
    return _check_call(await tried.ask([_make_message(wanted)], [_ADD], max_tokens=2000), "add")


async def _answer_call(
    tried: Tried, result: str, *, is_error: bool = False, images: tuple[Image, ...] = ()
) -> Response:
    messages = [_make_message("Read the file notes.txt with your tool, then tell me in one word what is in it.")]
    first = await tried.ask(messages, [_READ], max_tokens=2000)
    if not first.tool_calls:
        return first
    utterance = Message("assistant", first.content, first.tool_calls, thinking=first.thinking, blocks=first.blocks)
    results = [
        Message("tool", result, (), call.id, call.gate, is_error=is_error, images=images) for call in first.tool_calls
    ]
    return await tried.ask([*messages, utterance, *results], [_READ], max_tokens=2000)


@_add_probe("result", "it reads what a gate returned")
async def _try_result(tried: Tried) -> str:
    return _check_words(await _answer_call(tried, "MARMALADE"), "marmalade")


@_add_probe("failed result", "it sees the failure of a gate")
async def _try_failed_result(tried: Tried) -> str:
    response = await _answer_call(tried, "no such file: notes.txt", is_error=True)
    return "" if response.content or response.tool_calls else "it said nothing"


@_add_probe("picture in a result", "it sees a gate's picture")
async def _try_picture_result(tried: Tried) -> str:
    response = await _answer_call(tried, "a picture of one colour follows", images=(_RED,))
    return _check_words(response, "red") if response.content else ""


@_add_probe("another's history", "it continues the thread of another model")
async def _try_history(tried: Tried) -> str:
    block = {"provider": "somebody-else", "model": "m", "content": [{"type": "thinking", "thinking": "?"}]}
    call = ToolCall("call_other/1", "add", {"a": 20, "b": 3})
    utterance = Message("assistant", None, (call,), thinking="I add.", blocks=(block,))
    result = Message("tool", "23", (), "call_other/1", "add")
    return _check_words(
        await tried.ask([_make_message("What is 20 + 3?"), utterance, result], [_ADD], max_tokens=2000), "23"
    )


@_add_probe("schema", "an answer follows a schema")
async def _try_schema(tried: Tried) -> str:
    response = await tried.ask([_make_message("Ada is 36 years old.")], output_schema=_PERSON, max_tokens=2000)
    return _check_json(response, {"name": "Ada", "age": 36})


@_add_probe("schema with a map", "and one that few providers can express")
async def _try_map(tried: Tried) -> str:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    response = await tried.ask(
        [_make_message("Ada is 36, Bob is 7: ages by name.")], output_schema=schema, max_tokens=2000
    )
    return _check_json(response, {"Ada": 36, "Bob": 7})


@_add_probe("thinking", "it thinks before it answers")
async def _try_thinking(tried: Tried) -> str:
    return _check_words(await tried.ask([_make_message("What is 17 * 23?")], effort="low", max_tokens=4000), "391")


@_add_probe("thinking and calls", "and its thinking goes back to it")
async def _try_thinking_calls(tried: Tried) -> str:
    messages = [_make_message("Use your tool to add 17 and 23, and tell me the sum.")]
    first = await tried.ask(messages, [_ADD], effort="low", max_tokens=4000)
    if problem := _check_call(first, "add"):
        return problem
    utterance = Message("assistant", first.content, first.tool_calls, thinking=first.thinking, blocks=first.blocks)
    results = [Message("tool", "40", (), call.id, call.gate) for call in first.tool_calls]
    return _check_words(await tried.ask([*messages, utterance, *results], [_ADD], effort="low", max_tokens=4000), "40")


@_add_probe("temperature", "it takes a temperature")
async def _try_temperature(tried: Tried) -> str:
    return _check_words(await tried.ask([_make_message("Answer PONG.")], temperature=0.0, max_tokens=2000), "pong")


@_add_probe("stop", "it stops at a stop sequence")
async def _try_stop(tried: Tried) -> str:
    response = await tried.ask([_make_message("Count: 1 2 3 4 5 6 7 8 9, with spaces.")], stop=["6"], max_tokens=2000)
    return (
        "" if "9" not in (response.content or "") or "stop" in response.metadata.get("left_out", ()) else "it went on"
    )


@_add_probe("limit", "an answer keeps to its length")
async def _try_limit(tried: Tried) -> str:
    response = await tried.ask([_make_message("Write a story of a thousand words.")], max_tokens=64)
    return "" if response.usage.completion_tokens <= 256 else f"{response.usage.completion_tokens} tokens of 64"


@_add_probe("picture", "it sees a picture")
async def _try_picture(tried: Tried) -> str:
    return _check_words(
        await tried.ask([_make_message("Which colour is this? One word.", _RED)], max_tokens=2000), "red"
    )


@_add_probe("long context", "it finds a word in 20,000 characters")
async def _try_long_context(tried: Tried) -> str:
    text = " ".join(f"line {n} says nothing." for n in range(500)) + " The password is HELIOTROPE. " + "More. " * 1500
    return _check_words(
        await tried.ask([_make_message(f"{text}\nWhat is the password? One word.")], max_tokens=2000), "heliotrope"
    )


@_add_probe("cache", "what it has read before costs less")
async def _try_cache(tried: Tried) -> str:
    call = Message("system", "You are terse. " + "These are the rules of the house, rule by rule. " * 400)
    await tried.ask([call, _make_message("Say one.")], max_tokens=2000)
    usage = (await tried.ask([call, _make_message("Say two.")], max_tokens=2000)).usage
    return "" if usage.cached_tokens else f"none of {usage.prompt_tokens} tokens came from the cache"


@_add_probe("errors", "what it refuses has a status and words")
async def _try_errors(tried: Tried) -> str:
    try:
        await tried.ask([_make_message("Say one.")], temperature=-17.0, max_tokens=2000)
    except ProviderError as error:
        return "" if error.status is not None and str(error) else f"got {error!r}"
    return ""

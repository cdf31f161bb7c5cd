"""Chat Completions, as OpenAI and every compatible server answer it, brought to the crystal contract (CRYSTAL-6).

`normalise_chat` reads one whole response body. It is pure and lenient where servers differ (null content, arguments as
an object, ids left out, `finish_reason` that contradicts the calls) and strict where guessing would change what was
said. `replayed` makes a crystal of a recorded body, for conformance suites and regression tests.

The provider's own fields are kept as metadata, and nothing needs them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.crystal.draft import Counts, tokens
from cantrip_actors.crystal.failures import failure
from cantrip_actors.crystal.scripted import Scripted, scripted
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, nearest
from cantrip_actors.terms.messages import Response, ToolCall

__all__ = ["counts_of", "mended", "normalise_chat", "replayed"]

CUT_OFF: Final = frozenset({"length", "content_filter"})
"""Reasons to stop in the midst of something."""

_THINK: Final = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)


def normalise_chat(body: Any) -> Response:
    """The response that a Chat Completions body holds.

    Raises ProviderError where the body is an error (they come with status 200, too), CrystalError where it holds no
    response or one that breaks the contract.
    """
    if not isinstance(body, Mapping):
        raise CrystalError(f"provider returned {type(body).__name__}: expected a Chat Completions object")
    _raise_error(body.get("error") or (body.get("object") == "error" and dict(body)))
    choices = body.get("choices")
    if not choices and isinstance(body.get("provider"), Mapping):
        return normalise_chat(body["provider"])  # a proxy that passes the completion on one level down
    choice = _first(choices)
    _raise_error(choice.get("error"))
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {}
    content, thinking = _content(message)
    refusal = _text(message.get("refusal"))
    calls = tuple(_calls(message))
    reason = choice.get("finish_reason") or choice.get("native_finish_reason")
    if calls and reason in CUT_OFF and not calls[-1].args and calls[-1].raw is None:
        calls = (*calls[:-1], replace(calls[-1], args=None, raw="{"))  # nothing of them had come, see `Draft.cut_off`
    if not (content or refusal or calls):
        raise CrystalError(
            f"crystal returned neither content nor tool_calls: the provider's finish_reason is {reason!r}"
        )
    metadata = {name: body[name] for name in ("id", "model", "provider") if isinstance(body.get(name), str)}
    if isinstance(reason, str):
        metadata["stop_reason"] = reason
    if refusal:
        metadata["refusal"] = refusal
    # what has to come back to the provider unchanged: signatures and encrypted reasoning, not what was said anyhow
    keep = {"reasoning_details", "extra_content"}
    signed = keep & message.keys() or any(keep & call.keys() for call in _listed(message.get("tool_calls")))
    return Response.of(
        Response(
            content=content or (refusal if not calls else None) or None,
            tool_calls=calls,
            usage=counts_of(body.get("usage")).usage(),
            thinking=thinking,
            blocks=(dict(message),) if signed else (),
            metadata=metadata,
        )
    )


def _first(choices: Any) -> Mapping[str, Any]:
    found = next(iter(_listed(choices)), None)
    if found is None:
        raise CrystalError("crystal returned neither content nor tool_calls: the provider's answer has no choices")
    return found


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, (list, tuple)) else []


def _text(value: Any) -> str | None:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value or None
    texts = (part.get("text") or part.get("refusal") for part in _listed(value))
    return "".join(text for text in texts if isinstance(text, str)) or None


def _content(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What was said and what was thought; reasoning has three names and one place inside the text."""
    content = _text(message.get("content"))
    thinking = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    for part in _listed(message.get("content")):
        thinking = thinking or _text(part.get("thinking"))
    if thinking is None and content is not None and (found := _THINK.match(content)):
        content, thinking = content[found.end() :] or None, found[1].strip() or None
    return content, thinking


def _calls(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    calls: Iterable[Mapping[str, Any]] = _listed(message.get("tool_calls"))
    if not calls and isinstance(message.get("function_call"), Mapping):
        calls = [{"function": message["function_call"]}]
    for call in calls:
        function = call.get("function")
        if isinstance(call.get("custom"), Mapping):  # its input is a text and no JSON
            custom = call["custom"]
            yield ToolCall.of(
                {"id": call.get("id"), "gate": custom.get("name"), "args": {"input": custom.get("input")}}
            )
            continue
        function = function if isinstance(function, Mapping) else call
        arguments = function.get("arguments")
        given = mended(arguments) if isinstance(arguments, str) else arguments
        yield ToolCall.of({"id": call.get("id"), "gate": function.get("name"), "args": given})


def mended(arguments: str) -> Any:
    """Arguments as some servers send them: encoded twice, or several objects in a row of which one says something."""
    found: list[Any] = []
    decoder, at = json.JSONDecoder(), 0
    text = arguments.strip()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return arguments  # for the gate to refuse, with what was sent
        found.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    if len(found) == 1 and isinstance(found[0], str):
        return found[0]
    told = [value for value in found if value != {}]
    if len(found) > 1 and all(isinstance(value, dict) for value in found) and all(one == told[0] for one in told):
        return told[0] if told else {}
    return arguments


def counts_of(given: Any) -> Counts:
    """The counts, as far as they are counts: a server's bookkeeping is no reason to lose its answer."""
    if not isinstance(given, Mapping):
        return Counts()
    details, further = given.get("prompt_tokens_details"), given.get("completion_tokens_details")
    details = details if isinstance(details, Mapping) else {"cached_tokens": given.get("prompt_cache_hit_tokens")}
    prompt, completion = tokens(given.get("prompt_tokens")), tokens(given.get("completion_tokens"))
    reasoning = tokens(further.get("reasoning_tokens")) if isinstance(further, Mapping) else 0
    if reasoning and tokens(given.get("total_tokens")) == prompt + completion + reasoning:
        completion += reasoning  # xAI counts it apart
    cost = given.get("cost")
    priced = isinstance(cost, (int, float)) and not isinstance(cost, bool) and 0 <= cost < math.inf
    return Counts(
        prompt,
        completion,
        cached=tokens(details.get("cached_tokens")),
        written=tokens(details.get("cache_write_tokens")),
        reasoning=reasoning,
        cost=float(cost) if priced and cost is not None else None,
    )


def _raise_error(error: Any) -> None:
    if error:
        raise failure("provider", None, {"error": error})


NORMALISERS: Final[Mapping[str, Callable[[Any], Response]]] = {
    "openai": normalise_chat,
    "mock_openai": normalise_chat,
}


def replayed(provider: str, raw_response: Any) -> Scripted:
    """A crystal that answers every query with a recorded response body of `provider`, normalised.

    Raises InvalidCantrip for a provider that is not known.
    """
    normalise = NORMALISERS.get(provider)
    if normalise is None:
        raise InvalidCantrip(f'no recordings of provider "{provider}": {nearest(provider, NORMALISERS)}')
    return scripted(lambda _: normalise(raw_response), name=provider)

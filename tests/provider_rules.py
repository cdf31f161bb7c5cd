"""What providers refuse in a request beyond its shape, in tests: patterns, pairs and blanks, as they document them.

`list_refusals` returns what a provider would say about a request; `StrictProvider` is a provider without a socket that
answers with such a refusal, or with the next of its answers. The patterns are written anew here, from the providers'
pages and from the texts of their refusals, so that a mistake in the product's table is found.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx

WORDS = r"[a-zA-Z0-9_-]"
PATTERNS = {
    "anthropic": rf"{WORDS}{{1,128}}",
    "openai": rf"{WORDS}{{1,128}}",
    "openai-chat": rf"{WORDS}{{1,64}}",
    "google": r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",
    "bedrock": rf"{WORDS}{{1,64}}",
    "mistral": rf"{WORDS}{{1,64}}",
    "cohere": r"[a-zA-Z_][a-zA-Z0-9_]*",
    "ollama": r".+",
}
"""The names of tools that each interface accepts."""

NESTING = {"google": 100}
"""Levels of objects and lists that a provider reads."""


def find_interface(provider: str, path: str) -> str:
    """Return the interface that a request is written for."""
    if path.endswith("/converse-stream"):
        return "bedrock"
    if "/publishers/google/" in path or path.startswith("/models/"):
        return "google"
    if path.endswith(("/messages", ":streamRawPredict")):
        return "anthropic"
    if path.endswith("/responses"):
        return "openai"
    return provider if provider in ("mistral", "cohere", "ollama") else "openai-chat"


def list_refusals(provider: str, path: str, body: bytes) -> list[str]:
    """Return what the provider would refuse in a request; an empty list if nothing."""
    request, interface = json.loads(body), find_interface(provider, path)
    check = {"anthropic": _anthropic, "openai": _responses, "google": _google, "bedrock": _bedrock}.get(
        interface, _chat
    )
    return [f"{interface}: {problem}" for problem in check(request, interface)]


def _name(interface: str, name: Any) -> Iterator[str]:
    if not isinstance(name, str) or not re.fullmatch(PATTERNS[interface], name):
        yield f"name {name!r:.60} does not match {PATTERNS[interface]}"


def _object_text(arguments: Any) -> Iterator[str]:
    try:
        value = json.loads(arguments)
    except ValueError:
        yield f"arguments {arguments!r:.60} are not JSON"
        return
    if not isinstance(value, dict):
        yield f"arguments {arguments!r:.60} are not an object"


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)


def _anthropic(request: dict[str, Any], interface: str) -> Iterator[str]:
    for tool in request.get("tools", ()):
        yield from _name(interface, tool["name"])
    messages, served = request["messages"], {}
    for at, message in enumerate(messages):
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if not blocks:
            yield f"messages.{at}: content is empty"
        used = [block["id"] for block in blocks if block["type"] == "tool_use"]
        following = messages[at + 1]["content"] if used and at + 1 < len(messages) else []
        answered = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if sorted(used) != sorted(answered) or len({*used}) < len(used):
            yield f"messages.{at}: tool_use {used} without tool_result blocks right after it: {answered}"
        for block in blocks:
            kind = block["type"]
            yield from (f"messages.{at}: {problem}" for problem in _anthropic_block(interface, kind, block))
            if kind == "server_tool_use":
                served[block["id"]] = at
            elif kind.endswith("_tool_result"):
                served.pop(block["tool_use_id"], None)
    yield from (f"messages.{at}: {call} was found without its result" for call, at in served.items())
    if messages[-1]["role"] == "assistant":
        yield "the conversation must end with a user message"


def _anthropic_block(interface: str, kind: str, block: dict[str, Any]) -> Iterator[str]:
    if kind == "text" and not block["text"].strip():
        yield "text content blocks must contain non-whitespace text"
    elif kind == "thinking" and not block.get("signature"):
        yield "thinking.signature: field required"
    elif kind == "tool_use":
        yield from _name(interface, block["name"])
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
            yield f"tool_use.id {block['id']!r}"
        if not isinstance(block["input"], dict):
            yield "tool_use.input should be an object"


def _responses(request: dict[str, Any], interface: str) -> Iterator[str]:
    for tool in request.get("tools", ()):
        if tool["type"] == "function":
            yield from _name(interface, tool["name"])
    called: list[str] = []
    for at, item in enumerate(request["input"]):
        kind = item.get("type", "message")
        if kind == "function_call":
            if item["call_id"] in called:
                yield f"input.{at}: duplicate call_id {item['call_id']}"
            called.append(item["call_id"])
            yield from _name(interface, item["name"])
            yield from _object_text(item["arguments"])
        elif kind == "function_call_output" and item["call_id"] not in called:
            yield f"input.{at}: no tool call found for {item['call_id']}"
        elif kind == "reasoning" and not item.get("encrypted_content"):
            yield f"input.{at}: reasoning {item.get('id')} was not stored"
    answered = [item["call_id"] for item in request["input"] if item.get("type") == "function_call_output"]
    yield from (f"no tool output found for {call}" for call in called if call not in answered)


def _chat(request: dict[str, Any], interface: str) -> Iterator[str]:
    for tool in request.get("tools", ()):
        yield from _name(interface, tool["function"]["name"])
    opened: list[str] = []
    for at, message in enumerate(request["messages"]):
        if message["role"] == "tool":
            if interface == "ollama":
                continue  # it has no ids
            if message["tool_call_id"] not in opened:
                yield f"messages.{at}: role 'tool' must follow its 'tool_calls'"
            else:
                opened.remove(message["tool_call_id"])
            continue
        yield from (f"messages.{at}: {call} has no response" for call in opened)
        opened = []
        for call in message.get("tool_calls") or ():
            yield from _name(interface, call["function"]["name"])
            if interface == "ollama":
                continue
            yield from _object_text(call["function"]["arguments"])
            if call["id"] in opened:
                yield f"messages.{at}: duplicate id {call['id']}"
            if interface == "mistral" and not re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"]):
                yield f"messages.{at}: tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9"
            opened.append(call["id"])
    yield from (f"{call} has no response" for call in opened)


def _google(request: dict[str, Any], interface: str) -> Iterator[str]:
    for tool in request.get("tools", ()):
        for declaration in tool.get("functionDeclarations", ()):
            yield from _name(interface, declaration["name"])
    called: list[str] = []
    for at, content in enumerate(request["contents"]):
        if not content["parts"]:
            yield f"contents.{at}: parts are empty"
        answered = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
        if answered != called:
            yield f"contents.{at}: function responses {answered} for the function calls {called}"
        called = [part["functionCall"]["name"] for part in content["parts"] if part.get("functionCall")]
        for name in (*called, *answered):
            yield from _name(interface, name)
        if _depth(content) > NESTING["google"]:
            yield f"contents.{at}: nests too deeply"


def _bedrock(request: dict[str, Any], interface: str) -> Iterator[str]:
    for tool in request.get("toolConfig", {}).get("tools", ()):
        yield from _name(interface, tool["toolSpec"]["name"])
    before, called = None, []
    for at, message in enumerate(request["messages"]):
        if message["role"] == before:
            yield f"messages.{at}: roles must alternate"
        before = message["role"]
        answered = [block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block]
        if sorted(answered) != sorted(called):
            yield f"messages.{at}: toolResult blocks {answered} for the toolUse blocks {called}"
        called = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        for block in message["content"]:
            if "toolUse" in block:
                yield from _name(interface, block["toolUse"]["name"])
            if "text" in block and not block["text"].strip():
                yield f"messages.{at}: the text field is blank"


Answer = httpx.Response | bytes | Callable[[dict[str, Any]], httpx.Response | bytes]


class StrictProvider:
    """A provider without a socket, that refuses what the real one refuses.

    It answers requests that it accepts with `answers`, in order, the last one for ever. An answer is a stream, a
    response, or a function of the request's body that returns one. `refuse` says what else it refuses: it returns the
    response to a request, or None. `refused` has the refusals, `requests` the bodies of all requests.
    """

    def __init__(
        self, family: str, *answers: Answer, refuse: Callable[[dict[str, Any]], httpx.Response | None] = lambda _: None
    ) -> None:
        self.family = family
        self.answers = list(answers)
        self.refuse = refuse
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the response to a request."""
        body = json.loads(request.content)
        self.requests.append(body)
        path = request.url.path.removeprefix("/v1beta")
        if problems := list_refusals(self.family, path, request.content):
            self.refused += problems
            return httpx.Response(400, json={"error": {"message": problems[0], "type": "invalid_request_error"}})
        if (refusal := self.refuse(body)) is not None:
            self.refused.append(refusal.text)
            return refusal
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(body)
        return httpx.Response(200, content=answer) if isinstance(answer, bytes) else answer

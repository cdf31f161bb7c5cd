"""One answer, as each family streams it: what the tests of decoders and clients share."""

import itertools
import json
import struct
import zlib
from typing import NamedTuple

from hypothesis import strategies as st

from cantrip_actors.crystal.families.anthropic import AnthropicDecoder
from cantrip_actors.crystal.families.bedrock import BedrockDecoder
from cantrip_actors.crystal.families.chat import ChatDecoder
from cantrip_actors.crystal.families.cohere import CohereDecoder
from cantrip_actors.crystal.families.google import GoogleDecoder
from cantrip_actors.crystal.families.mistral import MistralDecoder
from cantrip_actors.crystal.families.ollama import OllamaDecoder
from cantrip_actors.crystal.families.responses import ResponsesDecoder
from cantrip_actors.crystal.testing import events
from cantrip_actors.terms.errors import CrystalError


class Said(NamedTuple):
    """An answer: what was thought, said and called, in this order."""

    thinking: str = ""
    text: str = ""
    calls: tuple[tuple[str, dict], ...] = ()


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def anthropic(said: Said) -> list[dict]:
    made = [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "model": "claude-test",
                "role": "assistant",
                "content": [],
                "usage": {"input_tokens": 10, "output_tokens": 1},
            },
        }
    ]
    index = itertools.count()

    def block(start, kind, field, parts, *more):
        at = next(index)
        yield {"type": "content_block_start", "index": at, "content_block": start}
        for part in parts:
            yield {"type": "content_block_delta", "index": at, "delta": {"type": kind, field: part}}
        for delta in more:
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}

    if said.thinking:
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        start = {"type": "thinking", "thinking": "", "signature": ""}
        made += block(start, "thinking_delta", "thinking", pieces(said.thinking), signed)
    if said.text:
        made += block({"type": "text", "text": ""}, "text_delta", "text", pieces(said.text))
    for n, (name, args) in enumerate(said.calls):
        start = {"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": {}}
        made += block(start, "input_json_delta", "partial_json", pieces(json.dumps(args)))
    reason = "tool_use" if said.calls else "end_turn"
    made.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}})
    return [*made, {"type": "message_stop"}]


def responses(said: Said) -> list[dict]:
    made = [{"type": "response.created", "response": {"id": "resp_1", "model": "gpt-test", "output": []}}]
    output = []

    def item(raw, kind, parts, **done):
        at, own = len(output), raw["id"]
        yield {"type": "response.output_item.added", "output_index": at, "item": raw}
        for part in parts:
            yield {"type": kind, "output_index": at, "item_id": own, "delta": part}
        output.append({**raw, **done})
        yield {"type": "response.output_item.done", "output_index": at, "item": output[-1]}

    if said.thinking:
        raw = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "partial"}
        summary = [{"type": "summary_text", "text": said.thinking}]
        kind = "response.reasoning_summary_text.delta"
        made += item(raw, kind, pieces(said.thinking), summary=summary, encrypted_content="whole")
    if said.text:
        raw = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        content = [{"type": "output_text", "text": said.text}]
        made += item(raw, "response.output_text.delta", pieces(said.text), content=content)
    for n, (name, args) in enumerate(said.calls):
        raw = {"id": f"fc_{n}", "type": "function_call", "call_id": f"call_{n}", "name": name, "arguments": ""}
        text = json.dumps(args)
        made += item(raw, "response.function_call_arguments.delta", pieces(text), arguments=text)
    usage = {"input_tokens": 10, "output_tokens": 7}
    last = {"id": "resp_1", "model": "gpt-test", "status": "completed", "output": output, "usage": usage}
    made.append({"type": "response.completed", "response": last})
    return [{**event, "sequence_number": n} for n, event in enumerate(made)]


def chat(said: Said) -> list[dict]:
    def chunk(delta, reason=None):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "chatcmpl-1", "model": "gpt-test", "object": "chat.completion.chunk", "choices": [choice]}

    made = [chunk({"role": "assistant", "content": ""})]
    made += [chunk({"reasoning_content": part}) for part in pieces(said.thinking)]
    made += [chunk({"content": part}) for part in pieces(said.text)]
    for n, (name, args) in enumerate(said.calls):
        call = {"index": n, "id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": ""}}
        made.append(chunk({"tool_calls": [call]}))
        made += [
            chunk({"tool_calls": [{"index": n, "function": {"arguments": part}}]}) for part in pieces(json.dumps(args))
        ]
    made.append(chunk({}, "tool_calls" if said.calls else "stop"))
    usage = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    return [*made, {"id": "chatcmpl-1", "model": "gpt-test", "choices": [], "usage": usage}]


def google(said: Said) -> list[dict]:
    def chunk(part, **more):
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 7}
        named = {"modelVersion": "gemini-test", "responseId": "r1", "usageMetadata": usage}
        return {"candidates": [{"content": content, "index": 0, **more}], **named}

    made = [chunk({"text": part, "thought": True}) for part in pieces(said.thinking)]
    made += [chunk({"text": part}) for part in pieces(said.text)]
    for n, (name, args) in enumerate(said.calls):
        part = {"functionCall": {"name": name, "args": args}}
        made.append(chunk({**part, "thoughtSignature": "c2ln"} if n == 0 else part))
    return [*made, chunk({"text": ""}, finishReason="STOP")]


def bedrock(said: Said) -> list[dict]:
    made: list[dict] = [{"messageStart": {"role": "assistant"}}]
    index = itertools.count()

    def block(parts, start=None):
        at = next(index)
        if start is not None:
            yield {"contentBlockStart": {"start": start, "contentBlockIndex": at}}
        for part in parts:
            yield {"contentBlockDelta": {"delta": part, "contentBlockIndex": at}}
        yield {"contentBlockStop": {"contentBlockIndex": at}}

    if said.thinking:
        thoughts = [{"reasoningContent": {"text": part}} for part in pieces(said.thinking)]
        made += block([*thoughts, {"reasoningContent": {"signature": "c2lnbmVk"}}])
    if said.text:
        made += block([{"text": part} for part in pieces(said.text)])
    for n, (name, args) in enumerate(said.calls):
        parts = [{"toolUse": {"input": part}} for part in pieces(json.dumps(args))]
        made += block(parts, {"toolUse": {"toolUseId": f"toolu_{n}", "name": name}})
    made.append({"messageStop": {"stopReason": "tool_use" if said.calls else "end_turn"}})
    usage = {"inputTokens": 10, "outputTokens": 7, "totalTokens": 17}
    return [*made, {"metadata": {"usage": usage, "metrics": {"latencyMs": 5}}}]


def mistral(said: Said) -> list[dict]:
    made = chat(Said("", said.text, said.calls))
    for chunk in made:
        chunk.pop("object", None)
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                call.setdefault("id", "null")
    thoughts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": part}], "closed": False}
        for part in pieces(said.thinking)
    ]
    thought = [
        {"id": "chatcmpl-1", "model": "gpt-test", "choices": [{"index": 0, "delta": {"content": [one]}}]}
        for one in thoughts
    ]
    return [made[0], *thought, *made[1:]]


def cohere(said: Said) -> list[dict]:
    made: list[dict] = [{"type": "message-start", "id": "c-1", "delta": {"message": {"role": "assistant"}}}]
    index = itertools.count()

    def block(kind, text):
        at = next(index)
        start = {"content": {"type": kind, kind: ""}}
        yield {"type": "content-start", "index": at, "delta": {"message": start}}
        for part in pieces(text):
            yield {"type": "content-delta", "index": at, "delta": {"message": {"content": {kind: part}}}}
        yield {"type": "content-end", "index": at}

    if said.thinking:
        made += block("thinking", said.thinking)
    if said.text and said.calls:
        made += [{"type": "tool-plan-delta", "delta": {"message": {"tool_plan": part}}} for part in pieces(said.text)]
    elif said.text:
        made += block("text", said.text)
    for n, (name, args) in enumerate(said.calls):
        call = {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": ""}}
        made.append({"type": "tool-call-start", "index": n, "delta": {"message": {"tool_calls": call}}})
        made += [
            {
                "type": "tool-call-delta",
                "index": n,
                "delta": {"message": {"tool_calls": {"function": {"arguments": part}}}},
            }
            for part in pieces(json.dumps(args))
        ]
        made.append({"type": "tool-call-end", "index": n})
    counted = {"input_tokens": 10, "output_tokens": 7}
    usage = {"billed_units": {"input_tokens": 3, "output_tokens": 7}, "tokens": counted}
    reason = "TOOL_CALL" if said.calls else "COMPLETE"
    return [*made, {"type": "message-end", "delta": {"finish_reason": reason, "usage": usage}}]


def ollama(said: Said) -> list[dict]:
    def piece(**more):
        return {"model": "llama-test", "message": {"role": "assistant", "content": "", **more}, "done": False}

    made = [piece(thinking=part) for part in pieces(said.thinking)]
    made += [piece(content=part) for part in pieces(said.text)]
    made += [piece(tool_calls=[{"function": {"name": name, "arguments": args}}]) for name, args in said.calls]
    last = {"done": True, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 7}
    return [*made, {**piece(), **last}]


def frames(*values: dict, kind: str = "event") -> bytes:
    """Binary frames, as Amazon's event streams have them."""
    return b"".join(frame(name, json.dumps(value).encode(), kind) for one in values for name, value in one.items())


def frame(name: str, payload: bytes, kind: str = "event") -> bytes:
    told = {f":{'exception' if kind == 'exception' else 'event'}-type": name, ":message-type": kind}
    headers = b"".join(
        struct.pack(f"!B{len(key)}sBH{len(value)}s", len(key), key.encode(), 7, len(value), value.encode())
        for key, value in told.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return head + struct.pack("!I", zlib.crc32(head))


STREAMS = {"anthropic": anthropic, "openai": responses, "openai-chat": chat, "google": google, "bedrock": bedrock}
STREAMS |= {"mistral": mistral, "cohere": cohere, "ollama": ollama}
DECODERS = {
    "anthropic": AnthropicDecoder,
    "openai": ResponsesDecoder,
    "openai-chat": ChatDecoder,
    "google": GoogleDecoder,
    "bedrock": BedrockDecoder,
    "mistral": MistralDecoder,
    "cohere": CohereDecoder,
    "ollama": OllamaDecoder,
}
FAMILIES = tuple(STREAMS)


def framed(family: str, said: Said) -> bytes:
    if family == "bedrock":
        return frames(*bedrock(said))
    if family == "ollama":
        return b"".join(json.dumps(one).encode() + b"\n" for one in ollama(said))
    return events(*STREAMS[family](said), done=family in ("openai-chat", "mistral"))


def decode(family, chunks, **more):
    """The response that chunks of bytes come to, and its payloads; what went wrong is raised."""
    decoder, payloads = DECODERS[family](**more), []
    framing = decoder.framing()
    for chunk in chunks:
        for event in framing.feed(chunk):
            payloads += decoder.feed(event)
    for event in framing.close():
        payloads += decoder.feed(event)
    response = decoder.finish()
    return response, payloads + decoder.draft.take()


def fed(family, *values, done=False, **more):
    """The response that these events come to."""
    return decode(family, [events(*values, done=done)], **more)[0]


def outcome(family, chunks, **more):
    """The response, or the error."""
    try:
        return decode(family, chunks, **more)[0]
    except CrystalError as error:
        return error


arguments = st.dictionaries(
    st.text(min_size=1, max_size=6), st.integers(-5, 5) | st.text(max_size=8) | st.none() | st.booleans(), max_size=3
)
names = st.sampled_from(
    ["read", "write", "done", "", "browser.tabs.open", "$lookup", "naïve tool", "größe", "x" * 200, "1st", "-a", "a:b"]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Names of calls: of tools that were offered, and whatever else a model may answer."""
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def make_answers(called: st.SearchStrategy[str]) -> st.SearchStrategy[Said]:
    """Answers whose calls have these names."""
    return st.builds(
        Said,
        words.filter(lambda text: text.strip() == text),
        words.filter(lambda text: not text.lstrip().startswith("<")),
        st.lists(st.tuples(called, arguments), max_size=3).map(tuple),
    ).filter(lambda said: said.text or said.calls)


answers = make_answers(st.sampled_from(["read", "write", "done"]))

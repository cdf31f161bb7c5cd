"""OpenAI's Responses API: its stream decoded, contexts encoded for it.

The provider stores nothing (`store: false`): every request has the whole context. Reasoning arrives encrypted and is
sent back unchanged, right before the items that it led to. An item is identified by its index in the output, because
its id may change on the way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import orjson

from cantrip_actors.crystal.client_tools import APPROVAL_REQUEST, make_output_item
from cantrip_actors.crystal.draft import Counts, Decoder, DraftItem, count_modalities, tokens
from cantrip_actors.crystal.encode import CallAnswer, Writer
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.history import fit_block
from cantrip_actors.crystal.images import OFFICE, Shown, Takes, estimate_by_patches, make_data_url, name_file
from cantrip_actors.crystal.prices import Model
from cantrip_actors.crystal.provider import STRICT_REFUSED, Counting, Family, ProviderQuery
from cantrip_actors.crystal.schemas import fit_for_openai
from cantrip_actors.crystal.server_tools import KINDS
from cantrip_actors.crystal.shapes import mapping, objects, parse_object
from cantrip_actors.crystal.typed_settings import RESPONSES, Table, read_logprobs
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message, ToolCall, ToolDefinition, find_named_gate
from cantrip_actors.terms.own_gate_names import MCP_APPROVAL

_WRAPPERS: Final = frozenset({"multi_tool_use.parallel", "multi_tool_use_parallel", "parallel"})
"""A tool that was not offered, in which some models wrap several calls."""

_WAITING: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_MORE: Final = "response.output_text.delta"
_LIFE: Final = (b'{"type":"response.created"', b'{"type":"response.in_progress"', b'{"type":"response.completed"')


class _Slot:
    """One item of the output. `item` is its item in the draft, None if it has none."""

    __slots__ = ("done", "final", "id", "item", "kind", "parts", "raw")

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.id = raw.get("id")
        self.kind = raw.get("type")
        self.item: DraftItem | None = None
        self.parts = 0
        self.final: str | None = None
        self.done = False


class ResponsesDecoder(Decoder):
    """The stream of a response."""

    provider: ClassVar[str] = "openai"
    joint: ClassVar[str] = "\n\n"

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._slots: dict[int, _Slot] = {}
        self._last = -1

    def read(self, value: dict[str, Any], name: str) -> None:
        """Read one event, or a whole response."""
        kind = str(value.get("type") or name)
        if kind == "response.created":  # before its number is looked at, which begins anew with each response
            self.note_beginning(mapping(value.get("response")).get("id"))
        if not self._is_repeated(value.get("sequence_number")) and not (kind == _MORE and self._try_extend(value)):
            self._read(kind, value)

    def _read(self, kind: str, value: dict[str, Any]) -> None:
        self.moves = kind.startswith("response.") and kind not in _WAITING
        if kind.endswith(".delta"):
            self._extend_item(kind, value)
        elif kind == "response.output_item.added":
            self._add_item(value)
        elif kind == "response.output_item.done":
            self._end_item(self._find_index(value), mapping(value.get("item")))
        elif kind == "response.reasoning_summary_part.added":
            self._begin_paragraph(value)
        elif kind in ("response.function_call_arguments.done", "response.custom_tool_call_input.done"):
            final = value.get("arguments", value.get("input"))
            slot = self._slots.get(self._find_index(value))
            if slot is not None and isinstance(final, str):
                slot.final = final  # some servers send arguments here only
        elif kind in ("response.completed", "response.incomplete"):
            self._end_response(mapping(value.get("response")))
        elif kind in ("error", "response.failed") or (value.get("error") and "output" not in value):
            raise self._make_failure(value)
        elif kind in _WAITING:
            self._begin_response(mapping(value.get("response")))
        elif value.get("object") == "response":
            self._read_body(value)

    def _try_extend(self, value: dict[str, Any]) -> bool:
        """Add a piece to the text with this index and id; return whether it was added."""
        index, text = value.get("output_index"), value.get("delta")
        slot = self._slots.get(index) if type(index) is int else None
        if slot is None or slot.item is None or slot.done or slot.id != value.get("item_id"):
            return False
        if type(text) is not str or not text:
            return False
        self.moves = True
        self.draft.add(slot.item, text)
        return True

    def _parse_leniently(self, data: bytes) -> Any:
        """Parse an event. Some gateways lose the last brace of the events that contain the whole response."""
        if data.startswith(_LIFE):
            with suppress(orjson.JSONDecodeError):
                return orjson.loads(data + b"}")
        return super()._parse_leniently(data)

    def get_own_content(self) -> Any:
        """Return the items if one of them is more than text and calls."""
        items = [slot.raw for _, slot in sorted(self._slots.items()) if slot.done]
        plain = all(set(_list_own_parts(item)) <= _PLAIN for item in items)
        return None if plain else [dict(item) for item in items]

    def _is_repeated(self, number: Any) -> bool:
        if not isinstance(number, int):
            return False
        if number <= self._last:
            return True
        self._last = number
        return False

    # The response

    def _begin_response(self, response: Mapping[str, Any]) -> None:
        self.draft.start(response.get("model"))
        self.note(id=response.get("id"), model=response.get("model"))

    def _read_body(self, response: Mapping[str, Any]) -> None:
        if response.get("error") or response.get("status") == "failed":
            raise self._make_failure(response)
        self._begin_response(response)
        self._end_response(response)

    def _end_response(self, response: Mapping[str, Any]) -> None:
        self._begin_response(response)
        if response.get("status") == "failed":
            raise self._make_failure({"response": response})
        output = response.get("output")
        streamed = _StreamedItems(self._slots)
        for index, item in enumerate(output if isinstance(output, list) else ()):
            if not isinstance(item, Mapping):
                continue
            slot = streamed.find(item, index)
            if slot is None:  # indexes differ from the stream's if an item is missing in one of them
                self._end_item(index if index not in self._slots else 1 + max(self._slots), item)
            elif not slot.done:  # the event that ends it is missing
                self._finish(slot, item)
        for slot in self._slots.values():
            if not slot.done:
                self._finish(slot, slot.raw)
        self._call_built_in()
        self._read_usage(response.get("usage"))
        used = Counter(name for slot in self._slots.values() if (name := _find_billable_tool(slot)))
        self.counts = self.counts._replace(uses=tuple(sorted(used.items())))
        details = mapping(response.get("incomplete_details"))
        self.note(stop_reason=details.get("reason") or response.get("status") or "completed")
        self.complete = self.over = True

    def _read_usage(self, usage: Any) -> None:
        if isinstance(usage, Mapping):
            read, written = mapping(usage.get("input_tokens_details")), mapping(usage.get("output_tokens_details"))
            self.counts = Counts(
                prompt=tokens(usage.get("input_tokens")),  # cached ones among them
                completion=tokens(usage.get("output_tokens")),
                cached=tokens(read.get("cached_tokens")),
                written=tokens(read.get("cache_write_tokens")),
                reasoning=tokens(written.get("reasoning_tokens")),
                modalities=count_modalities(read, written),
            )

    def _make_failure(self, value: Mapping[str, Any]) -> ProviderError:
        """Return the error, which may be in any of three places, or missing."""
        self._read_usage(mapping(value.get("response", value)).get("usage"))
        error = value.get("error") or mapping(value.get("response")).get("error")
        if not error and value.get("message"):
            error = {name: value.get(name) for name in ("message", "code", "param")}
        return make_failure(self.draft.provider, None, {"error": error or {"message": "the response failed"}})

    # Its items

    def _find_index(self, value: Mapping[str, Any]) -> int:
        index = value.get("output_index")
        item_id = value.get("item_id") or mapping(value.get("item")).get("id")
        number = next((n for n, slot in self._slots.items() if item_id and slot.id == item_id), None)
        if isinstance(index, int) and not isinstance(index, bool):
            slot = self._slots.get(index)
            return index if number is None or slot is None or slot.id == item_id or not slot.done else number
        return number if number is not None else len(self._slots)

    def _add_item(self, value: Mapping[str, Any]) -> None:
        index, raw = self._find_index(value), mapping(value.get("item"))
        if index in self._slots:
            return
        slot = self._slots[index] = _Slot(raw)
        if slot.kind == "message":
            slot.item = self.draft.begin("message")
        elif slot.kind in _CALLS and self._is_theirs(raw):
            slot.kind = "theirs"  # a call of the provider's own tool, which has run there
            name = str(raw.get("name") or slot.kind)
            slot.item = self.draft.serve(KINDS.get(name, name), raw.get("id"))
        elif slot.kind in KINDS:
            slot.item = self.draft.serve(KINDS[str(slot.kind)], raw.get("id"), _name_mcp_tool(raw))
        elif slot.kind in ("function_call", "custom_tool_call"):
            if raw.get("name") in _WRAPPERS - self.tools:
                return
            slot.item = self.draft.call(raw.get("name"), raw.get("call_id"))

    def _extend_item(self, kind: str, value: Mapping[str, Any]) -> None:
        slot = self._slots.get(self._find_index(value))
        if slot is None and kind in ("response.output_text.delta", "response.refusal.delta"):
            # some servers send no event for the beginning
            self._add_item({**value, "item": {"type": "message", "id": value.get("item_id"), "role": "assistant"}})
            slot = self._slots.get(self._find_index(value))
        if slot is None or slot.done:
            return
        if kind.startswith("response.reasoning") and slot.item is None:
            slot.item = self.draft.begin("reasoning")
        if kind == "response.refusal.delta":
            self.metadata["refusal"] = str(self.metadata.get("refusal") or "") + str(value.get("delta") or "")
        if slot.item is not None and kind.removeprefix("response.") in _SHOWN:
            self.draft.add(slot.item, value.get("delta"))

    def _begin_paragraph(self, value: Mapping[str, Any]) -> None:
        slot = self._slots.get(self._find_index(value))
        if slot is not None:
            if slot.parts and slot.item is not None:
                self.draft.add(slot.item, "\n\n")
            slot.parts += 1

    def _end_item(self, index: int, item: Mapping[str, Any]) -> None:
        slot = self._slots.get(index)
        if slot is None:
            self._add_item({"output_index": index, "item": item})
            slot = self._slots[index]
        if not slot.done:
            # the event "added" may have only a part of the encrypted reasoning
            self._finish(slot, item or slot.raw)

    def _finish(self, slot: _Slot, raw: Mapping[str, Any]) -> None:
        slot.done, slot.raw = True, raw
        kind = raw.get("type")
        if slot.item is not None and slot.item.kind == "server_call":
            args, result, is_error = _parse_server_call(raw)
            slot.item.arguments = args
            self.draft.end(slot.item)
            self.draft.add_server_result(slot.item.call_id, result, is_error=is_error)
            return
        text = _read_text(raw)
        if kind == "reasoning":
            if slot.item is None and text:
                slot.item = self.draft.begin("reasoning")
                self.draft.add(slot.item, text)
            if slot.item is not None:
                self.draft.end(slot.item, text or None)
        elif kind == "message":
            self._end_message(slot, raw, text)
        elif kind == "function_call":
            self._end_call(slot, raw)
        elif kind == APPROVAL_REQUEST:
            self._ask_for_approval(slot, raw)
        elif kind == "image_generation_call":
            image_text = self.draft.add_image(raw.get("result"))
            if image_text is not None:
                slot.raw = {**raw, "result": image_text}
        elif kind == "custom_tool_call" and slot.item is not None:
            slot.item.arguments = {"input": raw.get("input") or slot.final or slot.item.text}
            self.draft.end(slot.item)

    def _end_message(self, slot: _Slot, raw: Mapping[str, Any], text: str) -> None:
        if slot.item is None:
            slot.item = self.draft.begin("message")
        for part in objects(raw.get("content")):
            if part.get("type") == "refusal":
                self.metadata["refusal"] = text
            self.logprobs += read_logprobs(part.get("logprobs"))
            for annotation in objects(part.get("annotations")):
                self._cite(annotation, str(part.get("text") or ""))
        self.draft.end(slot.item, text or None)

    def _is_theirs(self, raw: Mapping[str, Any]) -> bool:
        return raw.get("call_id") == "" and raw.get("name") not in self.tools

    def _cite(self, annotation: Mapping[str, Any], text: str) -> None:
        start, end = annotation.get("start_index"), annotation.get("end_index")
        quoted = text[start:end] if isinstance(start, int) and isinstance(end, int) else None
        self.draft.cite(
            annotation.get("url") or annotation.get("file_id"),
            annotation.get("title") or annotation.get("filename"),
            quoted,
        )

    def _end_call(self, slot: _Slot, raw: Mapping[str, Any]) -> None:
        arguments = raw.get("arguments") or slot.final
        if slot.item is None:
            self._unwrap(slot, raw, str(arguments or ""))
            return
        slot.raw = {**raw, "call_id": slot.item.call_id}
        if isinstance(arguments, Mapping):
            slot.item.arguments = arguments
        self.draft.end(slot.item, arguments if isinstance(arguments, str) else None)

    def _ask_for_approval(self, slot: _Slot, raw: Mapping[str, Any]) -> None:
        """Call the gate that asks a person. Arguments that are not an object are shown as their text."""
        text = str(raw.get("arguments") or "")
        args = parse_object(text)
        slot.item = self.draft.call(MCP_APPROVAL, raw.get("id"))
        slot.item.arguments = {
            "server": str(raw.get("server_label") or ""),
            "tool": str(raw.get("name") or ""),
            "arguments": text if args is None else args,
        }
        slot.raw = {**raw, "call_id": slot.item.call_id}
        self.draft.end(slot.item)

    def _call_built_in(self) -> None:
        """Call the built-in tools that the client runs: their items have a call id, and no output yet."""
        items = [slot.raw for _, slot in sorted(self._slots.items())]
        answered = {item.get("call_id") for item in items if str(item.get("type")).endswith("_output")}
        for item in items:
            kind, call_id = str(item.get("type")), item.get("call_id")
            if kind in _CALLS or not kind.endswith("_call") or not isinstance(call_id, str) or call_id in answered:
                continue
            if item.get("execution") == "server":
                continue
            call = self.draft.call(kind.removesuffix("_call"), call_id)
            call.arguments = {name: value for name, value in item.items() if name not in _LABELS}
            self.draft.end(call)

    def _unwrap(self, slot: _Slot, raw: Mapping[str, Any], arguments: str) -> None:
        """Make a call of each call in a wrapper; a wrapper without calls is a call like any other."""
        try:
            uses = parse_exactly(arguments)["tool_uses"]
            calls = [(use["recipient_name"].removeprefix("functions."), use.get("parameters") or {}) for use in uses]
        except (ValueError, LookupError, TypeError, AttributeError):
            calls = []
        if not calls:
            slot.item = self.draft.call(raw.get("name"), raw.get("call_id"))
            self.draft.add(slot.item, arguments)
            self.draft.end(slot.item)
        for n, (name, parameters) in enumerate(calls, 1):
            item = self.draft.call(name, f"{raw.get('call_id') or 'call'}_{n}")
            item.arguments = parameters
            self.draft.end(item)
        slot.kind, slot.raw = "wrapper", {"type": "wrapper"}


class _StreamedItems:
    """The items that have streamed, in which those of the final output are found."""

    def __init__(self, slots: Mapping[int, _Slot]) -> None:
        self._by_index = dict(slots)
        self._by_mark: dict[tuple[str, str], _Slot] = {}
        self._by_text: dict[tuple[str, str], _Slot] = {}
        for slot in slots.values():
            for mark in _list_marks(slot.raw):
                self._by_mark.setdefault(mark, slot)
            text = slot.item.text if slot.item is not None and not slot.done else _read_text(slot.raw)
            self._by_text.setdefault((str(slot.kind), text), slot)

    def find(self, item: Mapping[str, Any], index: int) -> _Slot | None:
        """Return the slot of an item, if it streamed: by its ids, by its content, else by its index."""
        marks, text = _list_marks(item), _read_text(item)
        slot = next((self._by_mark[mark] for mark in marks if mark in self._by_mark), None)
        if slot is None and text:  # its id may have changed on the way
            slot = self._by_text.get((str(item.get("type")), text))
        if slot is not None:
            return slot
        at_place = self._by_index.get(index)
        if at_place is None or at_place.kind != item.get("type"):
            return None
        return at_place if not marks or not at_place.id else None


def _list_marks(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, own) for name in ("id", "call_id") if isinstance(own := item.get(name), str) and own]


_SHOWN: Final = frozenset(
    {
        "output_text.delta",
        "refusal.delta",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
        "reasoning_summary_text.delta",
        "reasoning_text.delta",
    }
)

_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_LABELS: Final = frozenset({"type", "id", "call_id", "status"})
_PLAIN: Final = frozenset({"message", "function_call", "wrapper"})


def _list_own_parts(item: Mapping[str, Any]) -> Iterable[str]:
    """Yield the parts of an item that a `Response` does not keep: its type, and fields that have to be sent back."""
    yield str(item.get("type"))
    # these fields of a call have to be sent back with it, and so has a message's phase
    yield from (name for name in ("phase", "namespace", "caller", "async") if item.get(name) is not None)


def _find_billable_tool(slot: _Slot) -> str:
    """Return the tool of a call that has a price of its own, else "": of the calls that browse the web, only searches
    do.
    """
    if slot.item is None or slot.item.kind != "server_call":
        return ""
    action = mapping(slot.raw.get("action")).get("type", "search")
    return slot.item.name if slot.item.name != "web_search" or action == "search" else ""


def _name_mcp_tool(item: Mapping[str, Any]) -> str:
    """Return the tool that is called within an MCP server, else ""."""
    return f"{item.get('server_label')}.{item.get('name')}" if item.get("type") == "mcp_call" else ""


def _parse_server_call(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any, bool]:
    """Return the arguments of a call of the provider's own tool, its result, and whether that is an error."""
    is_error = bool(item.get("error")) or item.get("status") in ("failed", "incomplete")
    match item.get("type"):
        case "web_search_call":
            action = mapping(item.get("action"))
            sources = [{"url": source["url"]} for source in objects(action.get("sources")) if source.get("url")]
            args = {
                name: value for name, value in action.items() if name not in ("sources", "type") and value is not None
            }
            return args, sources or None, is_error
        case "file_search_call":
            sources = [
                {
                    name: result[name]
                    for name in ("file_id", "filename", "score", "text")
                    if result.get(name) is not None
                }
                for result in objects(item.get("results"))
            ]
            return {"queries": item.get("queries") or []}, sources or None, is_error
        case "code_interpreter_call":
            outputs = objects(item.get("outputs"))
            logs = "".join(str(output.get("logs") or output.get("url") or "") for output in outputs)
            return {"code": item.get("code") or ""}, logs or None, is_error
        case "mcp_call":
            return (
                parse_object(str(item.get("arguments") or "")) or {},
                item.get("output") or item.get("error"),
                is_error,
            )
        case _:
            text = str(item.get("arguments") or item.get("input") or "")
            return parse_object(text) or ({"input": text} if text else {}), item.get("output"), is_error


def _read_text(item: Mapping[str, Any]) -> str:
    """Return the text of a message, the arguments of a call, or the summary of a reasoning."""
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        return str(item.get("arguments") or item.get("input") or "")
    if kind == "message":
        parts = objects(item.get("content"))
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
    if kind == "reasoning":
        parts = objects(item.get("summary") or item.get("content"))
        return "\n\n".join(str(part.get("text") or "") for part in parts if part.get("text"))
    return ""


class ResponsesWriter(Writer):
    """Writes contexts as lists of items."""

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """Yield an utterance: its own items if it has any, else a message and calls."""
        items = self._replay_items(message, ids)
        if items is None:
            items = []
            if message.content:
                content = [{"type": "output_text", "text": message.content, "annotations": []}]
                items.append({"type": "message", "role": "assistant", "content": content})
            for call, own in zip(message.tool_calls, ids, strict=True):
                arguments = call.arguments if call.args is not None else "{}"
                items.append({"type": "function_call", "call_id": own, "name": call.gate, "arguments": arguments})
        return map(dump_exactly, items)

    def can_show_images(self, message: Message, ids: Sequence[str]) -> bool:
        """Return whether the images are sent as part of the call that made them."""
        return self._replay_items(message, ids) is not None

    def _replay_items(self, message: Message, ids: Sequence[str]) -> list[dict[str, Any]] | None:
        own_content = self.find_own_content(message)
        if not isinstance(own_content, (list, tuple)):
            return None
        renamed = {call.id: (call, own) for call, own in zip(message.tool_calls, ids, strict=True)}
        items: list[dict[str, Any]] = []
        for original in own_content:
            kind = str(original.get("type"))
            item = fit_block({name: value for name, value in original.items() if value is not None}, kind, self.rules)
            if item is None:
                continue
            if item.get("type") == "image_generation_call":
                item = {name: item[name] for name in ("type", "id", "status", "result") if name in item}
            if item.get("type") == "reasoning":
                item = {name: item[name] for name in ("type", "encrypted_content", "summary") if name in item}
                item.setdefault("summary", [])
            if item.get("type") == "message":
                item["content"] = [_add_annotations(part) for part in objects(item.get("content"))]
            if "call_id" in item:
                call_and_id = renamed.pop(str(item["call_id"]), None)
                if call_and_id is not None:
                    _rename_call(item, kind, *call_and_id)
                elif str(item.get("type")) in _CALLS:
                    return None  # a call of another message; the provider itself answered the calls of its tools
            items.append(item)
        return None if renamed else items

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield the results, one item each, then the texts."""
        for answer in answers:
            if not (answer.utterance.blocks or answer.images):
                yield dump_exactly({"type": "function_call_output", "call_id": answer.id, "output": answer.text})
                continue
            call, parts = self._find_call(answer), self.list_result_parts(answer, answer.text)
            item = make_output_item(call, answer, parts)
            if item is None:
                kind = call.get("type", "function_call")
                item = {"type": f"{kind}_output", "call_id": answer.id, "output": _write_content(parts)}
            yield dump_exactly(item)
        for text in texts:
            yield dump_exactly({"role": "user", "content": _write_content(self.list_parts(text))})

    def _find_call(self, answer: CallAnswer) -> Mapping[str, Any]:
        """Return the call as the provider sent it, {} if another model made it: the type of a result depends on it."""
        own = self.find_own_content(answer.utterance) or ()
        return next((item for item in own if item.get("call_id") == answer.call.id), {})


def _rename_call(item: dict[str, Any], kind: str, call: ToolCall, call_id: str) -> None:
    """Give the item of a call the id, the name and the arguments that this request has for the call."""
    if kind == APPROVAL_REQUEST:  # "call_id" is our mark; the provider knows the request by its "id"
        del item["call_id"]
        item["id"] = call_id
        return
    item["call_id"] = call_id
    if kind in _CALLS:
        item["name"] = call.gate
    if kind == "function_call":
        item["arguments"] = call.arguments if call.args is not None else "{}"


def _add_annotations(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part with annotations: the provider requires them in a text, even if the answer had none."""
    return {"annotations": [], **part} if part.get("type") == "output_text" else part


def _write_content(parts: Sequence[str | File]) -> str | list[dict[str, Any]]:
    """Return texts, images and files as parts; a single text is a string."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "input_text", "text": part})
        elif part.file_id is not None and part.media_type.startswith("image/"):
            content.append({"type": "input_image", "file_id": part.file_id, "detail": part.detail or "auto"})
        elif isinstance(part, Image):
            content.append({"type": "input_image", "image_url": make_data_url(part), "detail": part.detail or "auto"})
        else:
            content.append({"type": "input_file", **_write_file(part)})
    return content


def _write_file(file: File) -> dict[str, Any]:
    if file.file_id is not None:
        return {"file_id": file.file_id}
    if file.url is not None:
        return {"file_url": file.url}
    return {"filename": name_file(file), "file_data": make_data_url(file)}


def write_functions(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the tools as functions. Few are `strict`, because strict functions require every property and gates have
    optional ones.
    """
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": tool.is_strict,
        }
        for tool in tools
    ]


class Responses(Family):
    """The Responses API."""

    provider: ClassVar[str] = "openai"
    seller: ClassVar[str | None] = "openai"
    base_url: ClassVar[str] = "https://api.openai.com/v1"
    keys: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    is_strict: ClassVar[bool] = True
    lessons: ClassVar[Mapping[str, str]] = {
        "strict": STRICT_REFUSED,
        "temperature": r"temperature",
        "top_p": r"top_p",
        "effort": r"reasoning\.effort|reasoning_effort|'reasoning'",
        "include": r"encrypted|include",
        "tool_choice": r"tool_choice",
        "schema": r"text\.format|json_schema|schema",
    }

    serves: ClassVar[str] = "openai"
    written: ClassVar[Table] = RESPONSES
    lacks: ClassVar[frozenset[str]] = frozenset({"stop"})
    reasons: ClassVar[re.Pattern[str]] = re.compile(r"(o\d|gpt-[5-9]|codex)(?!.*chat)")
    """The names of models that return encrypted reasoning; others refuse a request for it."""
    counts: ClassVar[bool] = True
    """Whether the provider counts the tokens of a query without answering it."""
    path = "/responses"
    items: ClassVar[str] = "input"
    decodes: ClassVar[type[Decoder]] = ResponsesDecoder
    writes: ClassVar[type[Writer]] = ResponsesWriter
    takes: ClassVar[Takes] = Takes(files=("application/pdf", *OFFICE), fetched=("*/*",), ids=frozenset({"openai"}))
    fit = staticmethod(fit_for_openai)

    def __init__(self, model: str, facts: Model, *, by_schema: bool = False) -> None:
        super().__init__(model, facts, by_schema=by_schema)
        if not self.reasons.match(model):
            self.refused.add("include")

    @property
    def counting(self) -> Counting | None:
        """How the provider counts tokens: as for a query."""
        fields = ("model", "input", "instructions", "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls")
        return Counting(f"{self.path}/input_tokens", fields, "input_tokens") if self.counts else None

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the fields. The system prompt is sent as `instructions`; this API has no stop sequences."""
        settings = query.settings
        yield "", {"model": self.model, "stream": True, "store": False, "instructions": system or None}
        yield "", {"max_output_tokens": settings.max_tokens}
        yield "temperature", {"temperature": settings.temperature}
        yield "top_p", {"top_p": settings.top_p}
        yield "include", {"include": ["reasoning.encrypted_content"]}
        summary = settings.typed.get("reasoning_summary", "auto")
        if settings.effort is not None:
            yield (
                "effort",
                {"reasoning": {"effort": settings.effort, "summary": None if summary == "none" else summary}},
            )
        if settings.schema is not None:
            fitted = self.fit_schema(settings.schema)
            answer = {"type": "json_schema", "name": "answer", "schema": fitted.schema, "strict": fitted.strict}
            yield "schema", {"text": {"format": answer}}
        if query.tools:
            yield "", {"tools": self.encoder.encode_tools(query.tools, write_functions)}
            if query.choice in ("required", "none"):
                yield "tool_choice", {"tool_choice": query.choice}
            elif (gate := find_named_gate(query.choice)) is not None:
                yield "tool_choice", {"tool_choice": {"type": "function", "name": gate}}

    image_tokens = staticmethod(estimate_by_patches)

"""The canonical stream: eight kinds of events that report a turn while it runs, as values and as JSON.

An adapter turns a provider's stream into payloads (`ItemStart`, `ItemDelta`, …), `turn.py` puts them into envelopes
with the ids of turn and entity, and `observe/` folds envelopes into what subscribers see. This file knows no provider,
no clock and no subscriber.

Values that our own code makes are trusted. JSON from elsewhere is validated (`Envelope.parse`, `Envelope.from_json`),
and `InvalidStreamEvent` lists every problem with its path. On the wire names are in camelCase, fields that are None are
left out, and unknown keys are ignored.

The life of an item: `item_start`, any number of `item_delta`, then one of `item_done`, `item_error`, `item_cancelled`.
The content of `item_done` is authoritative; deltas are a preview. Items of one response may interleave.

Seed decision 001: the `item_start` of a function call comes before its arguments are known; its `item_done` has them.
Seed decision 002: `response_done` with status "error" may name the error. `response_error` describes it better, so a
producer that can send both sends `response_error` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from cantrip_actors.terms.errors import CantripError
from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.value import Value

EventType = Literal[
    "response_start",
    "item_start",
    "item_delta",
    "item_done",
    "item_error",
    "item_cancelled",
    "response_done",
    "response_error",
]
ItemType = Literal["message", "reasoning", "function_call", "function_call_output", "image"]
Origin = Literal["user", "agent", "system"]
CancelReason = Literal["user_cancel", "timeout", "process_death"]
ResponseStatus = Literal["completed", "cancelled", "error"]


class WireValue(Value, frozen=True, rename="camel", gc=False):
    """Base of the values of a stream. A class with a `tag` writes it as its `type`."""


def as_wire(value: WireValue) -> dict[str, Any]:
    """Return the wire form of a value, for `json.dumps` or orjson: camelCase, without the fields that are None."""
    form: dict[str, Any] = msgspec.to_builtins(value, enc_hook=dict)  # arguments may be any mapping
    return form


class ItemId(NamedTuple):
    """The id of an item: `turn:attempt:block`. Attempts count from 1; a block is a name within its attempt."""

    turn_id: str
    attempt: int
    block: str

    def __str__(self) -> str:
        return f"{self.turn_id}:{self.attempt}:{self.block}"

    @classmethod
    def parse(cls, text: str, turn_id: str) -> ItemId | None:
        """Return the parts of an item's id in the turn `turn_id`, None for an id that another program made."""
        turn = f"{turn_id}:"
        attempt, colon, block = text.removeprefix(turn).partition(":")
        is_ours = text.startswith(turn) and colon and attempt.isdecimal()
        return cls(turn_id, int(attempt), block) if is_ours else None


class StreamError(WireValue, frozen=True):
    """An error: a code for programs, a message for people."""

    code: str
    message: str


class StreamUsage(WireValue, frozen=True):
    """Tokens of a response as the wire counts them. `input_tokens` includes those read from a cache."""

    input_tokens: int | float
    output_tokens: int | float
    cache_read_input_tokens: int | float | None = None
    cache_creation_input_tokens: int | float | None = None


# ------------------------------------------------------------------------------------------------------ finished items


class FinalMessage(WireValue, frozen=True, tag="message"):
    """The full text of a message."""

    type: ClassVar[Literal["message"]] = "message"
    content: str
    origin: Origin


class FinalReasoning(WireValue, frozen=True, tag="reasoning"):
    """The full text of a reasoning, and the provider that made it."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    content: str
    provider_id: str


class FinalFunctionCall(WireValue, frozen=True, tag="function_call"):
    """A call. `arguments` is an object, never JSON text."""

    type: ClassVar[Literal["function_call"]] = "function_call"
    name: str
    call_id: str
    arguments: Mapping[str, Any]


class FinalFunctionCallOutput(WireValue, frozen=True, tag="function_call_output"):
    """The result of a call, as text."""

    type: ClassVar[Literal["function_call_output"]] = "function_call_output"
    call_id: str
    output: str
    is_error: bool


class FinalImage(WireValue, frozen=True, tag="image"):
    """An image that the model made: its description, never its bytes (our extension; streams from elsewhere lack it).

    `digest`, SHA-256 of its bytes in hex, names it in the loom; `url` is set where it is only an address.
    """

    type: ClassVar[Literal["image"]] = "image"
    label: str
    media_type: str
    digest: str
    size: int
    width: int | None = None
    height: int | None = None
    url: str | None = None

    @classmethod
    def of(cls, image: Image) -> FinalImage:
        """Return the finished item of an image."""
        facts = (image.label, image.media_type, image.digest, image.size, image.width, image.height)
        return cls(*facts, image.url)


FinalItem = FinalMessage | FinalReasoning | FinalFunctionCall | FinalFunctionCallOutput | FinalImage


# ------------------------------------------------------------------------------------------------------------ payloads


class ResponseStart(WireValue, frozen=True, tag="response_start"):
    """A turn begins: the model that answers, and its provider."""

    type: ClassVar[Literal["response_start"]] = "response_start"
    model_id: str
    provider_id: str


class ItemStart(WireValue, frozen=True, tag="item_start"):
    """An item begins. A function call has its `name` and `call_id` from here on."""

    type: ClassVar[Literal["item_start"]] = "item_start"
    item_id: str
    item_type: ItemType
    initial_content: str | None = None
    name: str | None = None
    call_id: str | None = None


class ItemDelta(WireValue, frozen=True, tag="item_delta"):
    """A piece of an item: text, thinking, or a fragment of JSON arguments."""

    type: ClassVar[Literal["item_delta"]] = "item_delta"
    item_id: str
    delta_content: str


class ItemDone(WireValue, frozen=True, tag="item_done"):
    """An item is finished; `final_item` replaces its deltas."""

    type: ClassVar[Literal["item_done"]] = "item_done"
    item_id: str
    final_item: FinalItem


class ItemError(WireValue, frozen=True, tag="item_error"):
    """An item will not be finished, because of an error."""

    type: ClassVar[Literal["item_error"]] = "item_error"
    item_id: str
    error: StreamError


class ItemCancelled(WireValue, frozen=True, tag="item_cancelled"):
    """An item will not be finished, because its turn was stopped."""

    type: ClassVar[Literal["item_cancelled"]] = "item_cancelled"
    item_id: str
    reason: CancelReason | None = None


class Step(WireValue, frozen=True):
    """The recorded turn that a `response_done` ends (our extension; streams from elsewhere lack it).

    `sequence` counts the entity's turns from 1. `result` is the entity's answer if the turn `terminated` it.
    """

    sequence: int
    # factories, because msgspec leaves out a field that has its default, and these two are always written
    terminated: bool = msgspec.field(default_factory=bool)
    truncated: bool = msgspec.field(default_factory=bool)
    result: Any = None


class ResponseDone(WireValue, frozen=True, tag="response_done"):
    """A turn is over, its gates included. `error` belongs to status "error", and may be missing there (D2)."""

    type: ClassVar[Literal["response_done"]] = "response_done"
    status: ResponseStatus
    finish_reason: str | None = None
    error: StreamError | None = None
    usage: StreamUsage | None = None
    step: Step | None = None


class ResponseError(WireValue, frozen=True, tag="response_error"):
    """A turn failed."""

    type: ClassVar[Literal["response_error"]] = "response_error"
    error: StreamError


Payload = ResponseStart | ItemStart | ItemDelta | ItemDone | ItemError | ItemCancelled | ResponseDone | ResponseError
_TYPES: Final[tuple[str, ...]] = get_args(EventType)


class AttemptFailed(Value, frozen=True, gc=False):
    """An attempt of the crystal failed: the items emitted so far are void, and the next attempt numbers its own anew.

    It never leaves the process. The turn's stream closes the open items of the attempt with `error`.
    """

    type: ClassVar[Literal["attempt_failed"]] = "attempt_failed"
    error: StreamError


Emitted = Payload | AttemptFailed
"""A payload that a query emits while its crystal answers."""


def check_emitted(emitted: object) -> None:
    """Check a payload that a user's crystal emits. Raises InvalidStreamEvent with every problem of it."""
    if type(emitted) is ItemDelta and type(emitted.item_id) is str and type(emitted.delta_content) is str:
        return
    if isinstance(emitted, AttemptFailed):
        emitted = ResponseError(emitted.error)
    if not isinstance(emitted, Payload):
        names = ", ".join(one.__name__ for one in get_args(Payload))
        raise InvalidStreamEvent([Problem("", f"expected one of {names}, got {type(emitted).__name__}")])
    problems = list(_find_payload_problems(as_wire(emitted)))
    if problems:
        raise InvalidStreamEvent(problems)


# ------------------------------------------------------------------------------------------------------------ envelope


class Parent(WireValue, frozen=True):
    """The turn that spawned a child entity, and that turn's session (our extension; root entities have no parent)."""

    session_id: str
    turn_id: str | None = None


class Envelope(WireValue, frozen=True):
    """One event of the stream: a payload, its time (ISO 8601, UTC, with Z), and its turn and session.

    The session is the entity. `type` is the payload's, so the two cannot differ.
    """

    event_id: str
    timestamp: str
    turn_id: str
    session_id: str
    payload: Payload
    parent: Parent | None = None

    @property
    def type(self) -> EventType:
        """The kind of this event, one of eight."""
        return self.payload.type

    @classmethod
    def parse(cls, value: object) -> Envelope:
        """Return the envelope that has the wire form `value`. Raises InvalidStreamEvent with every problem of it."""
        problems = list(_find_envelope_problems(value)) if isinstance(value, Mapping) else []
        try:
            envelope = msgspec.convert(value, cls)
        except msgspec.ValidationError:
            problems += _find_problems(value, cls, "")
        else:
            if not problems:
                return envelope
        raise InvalidStreamEvent(problems)

    @classmethod
    def from_json(cls, text: str | bytes) -> Envelope:
        """Return the envelope of a JSON text; raises InvalidStreamEvent as `parse` does."""
        try:
            value = parse_exactly(text)
        except ValueError as error:
            raise InvalidStreamEvent([Problem("", f"expected JSON: {error}")]) from error
        return cls.parse(value)

    def as_wire(self) -> dict[str, Any]:
        """Return the wire form: camelCase, without the fields that are None."""
        return {"type": self.type, **as_wire(self)}

    def to_json(self) -> bytes:
        """Return the wire form as JSON. Raises TypeError for arguments or a result that JSON cannot express."""
        return dump_exactly(self.as_wire())


class Problem(NamedTuple):
    """A problem of an event, and its path on the wire (`payload.callId`); the path of the whole event is empty."""

    path: str
    message: str


class InvalidStreamEvent(CantripError):
    """A value is not an event of the stream; `problems` lists every reason."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        listed = "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in problems)
        super().__init__(f"invalid stream event: {listed}")


# ------------------------------------------------------------------------------------------------------------- reading

_INSTANT: Final = re.compile(r"[0-9]{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)


def _find_problems(value: Any, kind: Any, path: str) -> Iterator[Problem]:
    """Yield every problem that keeps `value` from being a `kind`; msgspec itself stops at the first."""
    options = get_args(kind) or (kind,)
    classes = [one for one in options if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    if classes and isinstance(value, Mapping):
        yield from _find_object_problems(value, classes, f"{path}." if path else "")
    elif classes and not (value is None and NoneType in options):
        yield Problem(path, f"expected an object, got {type(value).__name__}")
    elif not classes:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            words = [word for one in (kind, *options) if get_origin(one) is Literal for word in get_args(one)]
            message = f"expected one of {', '.join(words)}, got {value!r}" if words else str(error).replace("`", "")
            yield Problem(path, message)


def _find_object_problems(
    value: Mapping[str, Any], classes: list[type[msgspec.Struct]], below: str
) -> Iterator[Problem]:
    """Yield the problems of an object that has to be one of `classes`, which the `type` of the object selects."""
    tags = {cls.__struct_config__.tag: cls for cls in classes}
    tag = value.get("type") if len(tags) > 1 else next(iter(tags))
    if not (tag is None or isinstance(tag, str)) or tag not in tags:
        yield Problem(f"{below}type", f"expected one of {', '.join(map(str, tags))}, got {tag!r}")
        return
    for field in msgspec.structs.fields(tags[tag]):
        if field.encode_name in value:
            yield from _find_problems(value[field.encode_name], field.type, f"{below}{field.encode_name}")
        elif field.required:
            yield Problem(f"{below}{field.encode_name}", "is missing")


def _find_envelope_problems(value: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems that lie between the fields of an envelope, and those of its time."""
    kind, stamp, payload = value.get("type"), value.get("timestamp"), value.get("payload")
    if isinstance(stamp, str) and not _is_instant(stamp):
        yield Problem("timestamp", f"expected ISO 8601 in UTC, ending in Z, got {stamp!r}")
    if kind not in _TYPES:
        yield Problem("type", f"expected one of {', '.join(_TYPES)}, got {kind!r}")
    elif isinstance(payload, Mapping) and payload.get("type") != kind:
        yield Problem("type", "Envelope type must match payload.type")
    if isinstance(payload, Mapping):
        yield from _find_call_problems(payload, "payload.")


def _find_payload_problems(payload: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of a payload that has no envelope yet."""
    yield from _find_problems(payload, Payload, "")
    yield from _find_call_problems(payload, "")


def _find_call_problems(payload: Mapping[str, Any], below: str) -> Iterator[Problem]:
    if (payload.get("type"), payload.get("itemType")) == ("item_start", "function_call"):
        for name in ("name", "callId"):
            if not payload.get(name):
                yield Problem(f"{below}{name}", f"function_call requires a non-empty {name}")


def _is_instant(text: str) -> bool:
    if _INSTANT.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:  # the 30th of February
        return False
    return True

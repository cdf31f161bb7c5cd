"""The canonical stream: what a crystal and a circle say while a turn is in the making, as eight kinds of events.

This file holds the values and their wire shape, and knows no provider, no clock and no subscriber. An adapter turns a
provider's own stream into payloads (`ItemStart`, `ItemDelta`, …); `turn_stream.py` puts them into envelopes under a
turn's id; `observe/` makes of envelopes what subscribers are shown.

Two doors lead in. What we make ourselves is a frozen dataclass and is trusted: it is made once for each chunk that a
provider sends. What comes as JSON (`Envelope.parse`, `Envelope.from_json`) is checked in full, and everything that is
wrong with it is said at once (`InvalidStreamEvent`), by the paths and in the words of the wire. On the wire names are
in camelCase, what is absent is left out, and unknown keys are dropped.

The life of an item: `item_start`, any number of `item_delta`, then one of `item_done`, `item_error`, `item_cancelled`.
What `item_done` holds is authoritative; deltas were a preview. Items of one response may interleave.

Seed decision 001: a function call is announced by its `item_start`, before its arguments are known; they come with its
`item_done`. Seed decision 002: `response_done` with status "error" may say which error; a `response_error` says it
better, so whoever knows both sends that one first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, get_args

import orjson
from pydantic import ConfigDict, Discriminator, Strict, Tag, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from cantrip_actors.model.errors import CantripError

__all__ = [
    "CancelReason",
    "Envelope",
    "EventType",
    "FinalFunctionCall",
    "FinalFunctionCallOutput",
    "FinalItem",
    "FinalMessage",
    "FinalReasoning",
    "InvalidStreamEvent",
    "ItemCancelled",
    "ItemDelta",
    "ItemDone",
    "ItemError",
    "ItemStart",
    "ItemType",
    "Origin",
    "Parent",
    "Payload",
    "Problem",
    "ResponseDone",
    "ResponseError",
    "ResponseStart",
    "ResponseStatus",
    "Step",
    "StreamError",
    "StreamUsage",
    "as_wire",
]

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
ItemType = Literal["message", "reasoning", "function_call", "function_call_output"]
Origin = Literal["user", "agent", "system"]
CancelReason = Literal["user_cancel", "timeout", "process_death"]
ResponseStatus = Literal["completed", "cancelled", "error"]

_WIRE: Final = ConfigDict(alias_generator=to_camel, validate_by_alias=True, validate_by_name=False, extra="ignore")
"""How pydantic reads our dataclasses from the wire."""

_Flag = Annotated[bool, Strict()]
_Whole = Annotated[int, Strict()]
_Count = Annotated[int, Strict()] | Annotated[float, Strict()]


@dataclass(frozen=True, slots=True)
class StreamError:
    """What went wrong: a code for programs, a message for people."""

    __pydantic_config__: ClassVar = _WIRE
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Tokens of a response as the wire counts them. `input_tokens` includes those read from a cache."""

    __pydantic_config__: ClassVar = _WIRE
    input_tokens: _Count
    output_tokens: _Count
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None


# ------------------------------------------------------------------------------------------------------ finished items


@dataclass(frozen=True, slots=True)
class FinalMessage:
    """Text, in full."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["message"]] = "message"
    content: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class FinalReasoning:
    """Reasoning, in full, and whose it is."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["reasoning"]] = "reasoning"
    content: str
    provider_id: str


@dataclass(frozen=True, slots=True)
class FinalFunctionCall:
    """A call with its arguments as they are meant: an object, never JSON text."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["function_call"]] = "function_call"
    name: str
    call_id: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinalFunctionCallOutput:
    """What a call came to, as text."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["function_call_output"]] = "function_call_output"
    call_id: str
    output: str
    is_error: _Flag


FinalItem = FinalMessage | FinalReasoning | FinalFunctionCall | FinalFunctionCallOutput
_FINAL: Final[Mapping[str, type[FinalItem]]] = {cls.type: cls for cls in get_args(FinalItem)}


def _kind(value: object) -> str | None:
    """The tag of a finished item on the wire; tags are class names, so that no path of a field looks like one."""
    given = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    found = _FINAL.get(given) if isinstance(given, str) else None
    return None if found is None else found.__name__


_FinalOnWire = Annotated[
    Annotated[FinalMessage, Tag("FinalMessage")]
    | Annotated[FinalReasoning, Tag("FinalReasoning")]
    | Annotated[FinalFunctionCall, Tag("FinalFunctionCall")]
    | Annotated[FinalFunctionCallOutput, Tag("FinalFunctionCallOutput")],
    Discriminator(
        _kind,
        custom_error_type="final_item_type",
        custom_error_message=f"expected an object with a type, one of {', '.join(_FINAL)}",
    ),
]


# ------------------------------------------------------------------------------------------------------------ payloads


@dataclass(frozen=True, slots=True)
class ResponseStart:
    """A turn begins, and who answers."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["response_start"]] = "response_start"
    model_id: str
    provider_id: str


@dataclass(frozen=True, slots=True)
class ItemStart:
    """An item begins. A function call has its `name` and `call_id` from here on."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["item_start"]] = "item_start"
    item_id: str
    item_type: ItemType
    initial_content: str | None = None
    name: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ItemDelta:
    """A piece of an item: text, thinking, or a raw fragment of JSON arguments."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["item_delta"]] = "item_delta"
    item_id: str
    delta_content: str


@dataclass(frozen=True, slots=True)
class ItemDone:
    """An item is finished; `final_item` replaces whatever its deltas said."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["item_done"]] = "item_done"
    item_id: str
    final_item: _FinalOnWire


@dataclass(frozen=True, slots=True)
class ItemError:
    """An item will not be finished, for this reason."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["item_error"]] = "item_error"
    item_id: str
    error: StreamError


@dataclass(frozen=True, slots=True)
class ItemCancelled:
    """An item was given up, on purpose."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["item_cancelled"]] = "item_cancelled"
    item_id: str
    reason: CancelReason | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a turn that is in the loom came to (our extension of `response_done`; streams from elsewhere lack it).

    `sequence` counts the entity's turns from 1. `result` is its answer, where the turn `terminated` it.
    """

    __pydantic_config__: ClassVar = _WIRE
    sequence: _Whole
    terminated: _Flag = False
    truncated: _Flag = False
    result: Any = None


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """A turn is over, its gates included. `error` belongs to status "error", and may be missing there (D2)."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["response_done"]] = "response_done"
    status: ResponseStatus
    finish_reason: str | None = None
    error: StreamError | None = None
    usage: StreamUsage | None = None
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class ResponseError:
    """A turn failed."""

    __pydantic_config__: ClassVar = _WIRE
    type: ClassVar[Literal["response_error"]] = "response_error"
    error: StreamError


Payload = ResponseStart | ItemStart | ItemDelta | ItemDone | ItemError | ItemCancelled | ResponseDone | ResponseError
_PAYLOADS: Final[Mapping[str, type[Payload]]] = {cls.type: cls for cls in get_args(Payload)}


# ------------------------------------------------------------------------------------------------------------ envelope


@dataclass(frozen=True, slots=True)
class Parent:
    """The turn that a child entity hangs from, and that turn's session (our extension; absent for root entities)."""

    __pydantic_config__: ClassVar = _WIRE
    session_id: str
    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event of the stream: a payload, when it was (ISO 8601, UTC, with Z), and which turn of which session.

    The session is the entity. There is no `type` to set: it is its payload's, so the two cannot differ.
    """

    event_id: str
    timestamp: str
    turn_id: str
    session_id: str
    payload: Payload
    parent: Parent | None = None

    @property
    def type(self) -> EventType:
        """Which of the eight kinds of events this is."""
        return self.payload.type

    @classmethod
    def parse(cls, value: object) -> Envelope:
        """A checked envelope from its wire shape. Raises InvalidStreamEvent with everything that is wrong with it."""
        if not isinstance(value, Mapping):
            raise InvalidStreamEvent([Problem("", f"expected an object, got {_json_type(value)}")])
        frame, payload, problems = None, None, []
        try:
            frame = _frame().validate_python(value)
        except ValidationError as error:
            problems += _problems(error, "")
        try:
            payload = _payload(value.get("payload"), problems)
        except ValidationError as error:
            problems += _problems(error, "payload")
        problems += _type_problems(value)
        if problems or frame is None or payload is None:
            raise InvalidStreamEvent(problems)
        return cls(frame.event_id, frame.timestamp, frame.turn_id, frame.session_id, payload, frame.parent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Envelope:
        """A checked envelope from JSON text; raises InvalidStreamEvent as `parse` does."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidStreamEvent([Problem("", f"no JSON: {error}")]) from error
        return cls.parse(value)

    def as_wire(self) -> dict[str, Any]:
        """The wire shape: camelCase, without what is absent."""
        made = {
            "eventId": self.event_id,
            "timestamp": self.timestamp,
            "turnId": self.turn_id,
            "sessionId": self.session_id,
            "type": self.payload.type,
            "payload": as_wire(self.payload),
        }
        if self.parent is not None:
            made["parent"] = as_wire(self.parent)
        return made

    def to_json(self) -> bytes:
        """The wire shape as JSON text. Raises TypeError for arguments or a result that JSON cannot say."""
        return orjson.dumps(self.as_wire())


class Problem(NamedTuple):
    """What is wrong with an event, and where: a path of the wire (`payload.callId`), empty for the whole."""

    path: str
    message: str


class InvalidStreamEvent(CantripError):
    """What was to be read is no event of the stream; `problems` has all that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        said = "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in problems)
        super().__init__(f"invalid stream event: {said}")


# ------------------------------------------------------------------------------------------------------------- reading

_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@dataclass(frozen=True, slots=True)
class _Frame:
    """An envelope without its payload, whose class depends on its type."""

    __pydantic_config__: ClassVar = _WIRE
    event_id: str
    timestamp: str
    turn_id: str
    session_id: str
    parent: Parent | None = None


@cache
def _frame() -> TypeAdapter[_Frame]:
    return TypeAdapter(_Frame)


@cache
def _reader(kind: str) -> TypeAdapter[Payload]:
    """Built when the first such event is read: whoever only writes streams never pays for it."""
    return TypeAdapter(_PAYLOADS[kind])


def _payload(value: object, problems: list[Problem]) -> Payload | None:
    """The payload, or None where its type says nothing; what pydantic cannot know is added to `problems`."""
    if not isinstance(value, Mapping):
        problems.append(Problem("payload", f"expected an object, got {_json_type(value)}"))
        return None
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _PAYLOADS:
        problems.append(Problem("payload.type", f"expected one of {', '.join(_PAYLOADS)}, got {kind!r}"))
        return None
    payload = _reader(kind).validate_python(value)
    if isinstance(payload, ItemStart) and payload.item_type == "function_call":
        for name, given in (("name", payload.name), ("callId", payload.call_id)):
            if not given:
                problems.append(Problem(f"payload.{name}", f"function_call requires a non-empty {name}"))
    return payload


def _type_problems(value: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the envelope itself that holds for its text as a whole."""
    found: list[Problem] = []
    stamp = value.get("timestamp")
    if isinstance(stamp, str) and not _is_instant(stamp):
        found.append(Problem("timestamp", f"expected ISO 8601 in UTC, ending in Z, got {stamp!r}"))
    kind, payload = value.get("type"), value.get("payload")
    if not isinstance(kind, str) or kind not in _PAYLOADS:
        found.append(Problem("type", f"expected one of {', '.join(_PAYLOADS)}, got {kind!r}"))
    elif isinstance(payload, Mapping) and payload.get("type") != kind:
        found.append(Problem("type", "Envelope type must match payload.type"))
    return found


def _is_instant(text: str) -> bool:
    if _INSTANT.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:  # the 30th of February
        return False
    return True


_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dataclass_type", "dict_type", "mapping_type"), "expected an object"),
    **dict.fromkeys(("int_type", "float_type"), "expected a number"),
}
"""pydantic speaks of Python's types, the wire has JSON's."""


def _problems(error: ValidationError, below: str) -> list[Problem]:
    tags = {cls.__name__ for cls in _FINAL.values()}
    found: list[Problem] = []
    for detail in error.errors(include_url=False, include_input=False):
        path = [str(part) for part in detail["loc"] if part not in tags and part not in {"int", "float"}]
        message = _WORDS.get(detail["type"], detail["msg"])
        problem = Problem(".".join([below, *path] if below else path), message)
        if problem.path not in {earlier.path for earlier in found}:  # `int | float` says it twice
            found.append(problem)
    return found


def _json_type(value: object) -> str:
    names = {
        NoneType: "nothing",
        str: "a string",
        list: "a list",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


# ------------------------------------------------------------------------------------------------------------- writing


_names: dict[type, tuple[tuple[str, str], ...]] = {}


def as_wire(value: Any) -> dict[str, Any]:
    """The wire shape of one of this file's values, or of another frozen dataclass made in their way.

    Names are in camelCase, what is None is left out, and what has a `type` says it first.
    """
    made: dict[str, Any] = {}
    if (kind := getattr(value, "type", None)) is not None:
        made["type"] = kind
    cls = type(value)
    if (names := _names.get(cls)) is None:
        names = _names[cls] = tuple((f.name, to_camel(f.name)) for f in fields(cls))
    for name, on_wire in names:
        given = getattr(value, name)
        if given is not None:
            made[on_wire] = as_wire(given) if hasattr(given, "__pydantic_config__") else given
    return made

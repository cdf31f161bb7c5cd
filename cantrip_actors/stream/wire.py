"""What a crystal emits while it answers: payloads, of which the runtime makes streamed events (`answer.py`).

An adapter turns a provider's stream into payloads; a user's crystal may emit them, too. This file knows no provider, no
clock and no subscriber. Values that our own code makes are trusted; `check_emitted` checks those of users.

The life of an item: `ItemStart`, any number of `ItemDelta`, then one of `ItemDone`, `ItemError`, `ItemCancelled`. An
item is named by its block, a text that is unique within the attempt. The content of `ItemDone` is authoritative; deltas
are a preview. Items of one response may interleave.

Seed decision 001: the `ItemStart` of a function call comes before its arguments are known; its `ItemDone` has them.
Seed decision 002: `ResponseDone` with status "error" may name the error. `ResponseError` describes it better, so a
producer that can send both sends `ResponseError` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import msgspec

from cantrip_actors.terms.errors import CantripError
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.value import Value

__all__ = [
    "CancelReason",
    "FinalFunctionCall",
    "FinalFunctionCallOutput",
    "FinalImage",
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
    "ResponseDone",
    "ResponseError",
    "ResponseStart",
    "StreamError",
    "StreamUsage",
    "as_wire",
]

ItemType = Literal["message", "reasoning", "function_call", "function_call_output", "image"]
Origin = Literal["user", "agent", "system"]
CancelReason = Literal["user_cancel", "timeout", "process_death"]
ResponseStatus = Literal["completed", "cancelled", "error"]


class WireValue(Value, frozen=True, rename="camel", gc=False):
    """Base of values with a wire form. A class with a `tag` writes it as its `type`."""


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
    """An image that the model made: its description, never its bytes (an extension of this project).

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
    """A response begins: the model that answers, and its provider."""

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
    """An item will not be finished, because the response was stopped."""

    type: ClassVar[Literal["item_cancelled"]] = "item_cancelled"
    item_id: str
    reason: CancelReason | None = None


class ResponseDone(WireValue, frozen=True, tag="response_done"):
    """The response is complete. `error` belongs to status "error", and may be missing there."""

    type: ClassVar[Literal["response_done"]] = "response_done"
    status: ResponseStatus
    finish_reason: str | None = None
    error: StreamError | None = None
    usage: StreamUsage | None = None


class ResponseError(WireValue, frozen=True, tag="response_error"):
    """The response failed."""

    type: ClassVar[Literal["response_error"]] = "response_error"
    error: StreamError


Payload = ResponseStart | ItemStart | ItemDelta | ItemDone | ItemError | ItemCancelled | ResponseDone | ResponseError


class AttemptFailed(Value, frozen=True, gc=False):
    """An attempt of the crystal failed: the items emitted so far are void, and the next attempt numbers its own anew.

    The open items of the attempt end with `error`.
    """

    error: StreamError


Emitted = Payload | AttemptFailed
"""A payload that a query emits while its crystal answers."""


class InvalidStreamEvent(CantripError):
    """A value is not a payload that a crystal may emit."""


def check_emitted(emitted: object) -> None:
    """Check a payload that a user's crystal emits. Raises InvalidStreamEvent."""
    if type(emitted) is ItemDelta and type(emitted.item_id) is str and type(emitted.delta_content) is str:
        return
    payload = ResponseError(emitted.error) if isinstance(emitted, AttemptFailed) else emitted
    if not isinstance(payload, Payload):
        names = ", ".join(kind.__name__ for kind in get_args(Payload))
        raise InvalidStreamEvent(f"invalid stream event: expected one of {names}, got {type(payload).__name__}")
    try:
        msgspec.convert(as_wire(payload), Payload)
    except msgspec.ValidationError as error:
        raise InvalidStreamEvent(f"invalid stream event: {type(payload).__name__}: {error}") from None
    if isinstance(payload, ItemStart) and payload.item_type == "function_call":
        for name in ("name", "call_id"):
            if not getattr(payload, name):
                raise InvalidStreamEvent(f"invalid stream event: ItemStart: function_call requires a non-empty {name}")

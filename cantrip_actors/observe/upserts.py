"""The outputs for subscribers: the whole state of an item at each change, and turn events.

An upsert replaces everything known of its item, so a subscriber needs only the latest one for each `item_id`,
and merging several loses only the steps in between. A turn event says that a turn began or how it ended; a failed turn
is a `TurnError` and nothing else. `processor.py` decides when each of these is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from cantrip_actors.stream.wire import ItemId, Origin, StreamUsage, WireValue, as_wire

Status = Literal["create", "update", "complete", "error"]


class _Item(WireValue, frozen=True, kw_only=True):
    """The fields that all upserts have.

    `session_id` is the id of the entity; the wire format has this name for it.
    `source_timestamp` is the time of the event that brought the content, `emitted_at` the time of the upsert; both are
    ISO 8601 in UTC. `complete` and `error` are terminal: no upsert of the item comes after.
    """

    status: Status
    turn_id: str
    session_id: str
    item_id: str
    source_timestamp: str
    emitted_at: str
    error_code: str | None = None
    error_message: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether this is the last upsert of its item."""
        return self.status in {"complete", "error"}

    @property
    def key(self) -> tuple[str, str, str]:
        """The item that it replaces: entity, turn and item id."""
        return (self.session_id, self.turn_id, self.item_id)


class MessageUpsert(_Item, frozen=True, kw_only=True, tag="message"):
    """A message, always in full. Its origin is the agent until the finished item says otherwise."""

    type: ClassVar[Literal["message"]] = "message"
    content: str
    origin: Origin = msgspec.field(default_factory=lambda: "agent")  # a factory's value is always written


class ThinkingUpsert(_Item, frozen=True, kw_only=True, tag="thinking"):
    """A reasoning, always in full, and the provider that it may be sent back to."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    content: str
    provider_id: str


class ToolCallUpsert(_Item, frozen=True, kw_only=True, tag="tool_call"):
    """A call and, once it exists, its output. The item is the call's, never the output's.

    `create` comes before the arguments are known: do not rely on its `tool_arguments`. An `update`
    has the arguments as soon as they are complete; later ones have the tool's progress, its latest line, as
    `tool_output`. A call that failed is `complete` with
    `tool_output_is_error`; `error` means that no output will come.
    """

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    tool_name: str
    tool_arguments: Mapping[str, Any]
    call_id: str
    tool_output: str | None = None
    tool_output_is_error: bool | None = None


class ImageUpsert(_Item, frozen=True, kw_only=True, tag="image"):
    """A complete image that the model made: its description, never its bytes (`FinalImage`)."""

    type: ClassVar[Literal["image"]] = "image"
    label: str
    media_type: str
    digest: str
    size: int
    width: int | None = None
    height: int | None = None
    url: str | None = None


Upsert = MessageUpsert | ThinkingUpsert | ToolCallUpsert | ImageUpsert


class Parent(WireValue, frozen=True):
    """The turn that spawned a child entity, and its entity, whose id is `session_id`."""

    session_id: str
    turn_id: str | None = None


class TurnStarted(WireValue, frozen=True, tag="turn_started"):
    """The crystal is asked. `session_id` is the id of the entity, `parent` the turn that spawned a child entity."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    turn_id: str
    session_id: str
    model_id: str
    provider_id: str
    parent: Parent | None = None


class TurnComplete(WireValue, frozen=True, tag="turn_complete"):
    """The turn is over, its gates included. Close the items of it that are still open."""

    type: ClassVar[Literal["turn_complete"]] = "turn_complete"
    turn_id: str
    session_id: str
    status: Literal["completed", "cancelled"]
    usage: StreamUsage | None = None
    parent: Parent | None = None


class TurnError(WireValue, frozen=True, tag="turn_error"):
    """The turn failed. Every open item of it had its `error` before this."""

    type: ClassVar[Literal["turn_error"]] = "turn_error"
    turn_id: str
    session_id: str
    error_code: str
    error_message: str
    parent: Parent | None = None


class FinalResponse(WireValue, frozen=True, tag="final_response"):
    """The entity's answer, after the `TurnComplete` of the turn that gave it (SPEC 7.2; Epic 02 has none)."""

    type: ClassVar[Literal["final_response"]] = "final_response"
    turn_id: str
    session_id: str
    result: Any = None
    parent: Parent | None = None


TurnEvent = TurnStarted | TurnComplete | TurnError | FinalResponse
Output = Upsert | TurnEvent


def as_message(output: Output) -> dict[str, Any]:
    """Return the message for one output: `session:upsert` or `session:turn`, with the payload in camelCase."""
    kind = "session:upsert" if isinstance(output, Upsert) else "session:turn"
    return {"type": kind, "sessionId": output.session_id, "payload": as_wire(output)}


def history(session_id: str, outputs: Iterable[Output]) -> dict[str, Any]:
    """Return the `session:history` message: the terminal upserts of a session among `outputs`, in their order."""
    entries = [
        as_wire(output)
        for output in outputs
        if isinstance(output, Upsert) and output.terminal and output.session_id == session_id
    ]
    return {"type": "session:history", "sessionId": session_id, "entries": entries}


def fold(outputs: Iterable[Output]) -> dict[tuple[str, str, str], Upsert]:
    """Return the latest upsert of each item, in the order in which items appeared."""
    standing: dict[tuple[str, str, str], Upsert] = {}
    for output in outputs:
        if isinstance(output, Upsert):
            standing[output.key] = output
    return standing


def standing(outputs: Iterable[Output]) -> list[Upsert]:
    """Return the latest upserts of the turns' items, without those of attempts that failed."""
    newest = fold(outputs).values()
    last: dict[tuple[str, str], int] = {}
    for upsert in newest:
        turn = (upsert.session_id, upsert.turn_id)
        last[turn] = max(last.get(turn, 0), _attempt(upsert))
    return [u for u in newest if u.error_code != "RETRY" and _attempt(u) == last[u.session_id, u.turn_id]]


def _attempt(upsert: Upsert) -> int:
    """Return the attempt that an item belongs to, 0 for an id that another program made."""
    item_id = ItemId.parse(upsert.item_id, upsert.turn_id)
    return 0 if item_id is None else item_id.attempt

"""What subscribers are shown: the state of an item, whole, each time it changes; and what becomes of turns.

An upsert replaces all that was known of its item, so a subscriber needs no history, only the latest for each `item_id`
(U-10); merging several into one loses nothing but steps in between. A turn event says that a turn began or how it
ended; a turn that failed is a `TurnError` and nothing else (U-41).

There is no rule here about when which of these is made: that is `processor.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cantrip_actors.model.stream import Origin, Parent, StreamUsage, as_wire

__all__ = [
    "FinalResponse",
    "MessageUpsert",
    "Output",
    "Status",
    "ThinkingUpsert",
    "ToolCallUpsert",
    "TurnComplete",
    "TurnError",
    "TurnEvent",
    "TurnStarted",
    "Upsert",
    "as_message",
    "fold",
    "history",
    "standing",
]

Status = Literal["create", "update", "complete", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """What upserts have in common.

    `source_timestamp` is when the event happened that the content came with, `emitted_at` when this was made; both are
    ISO 8601 in UTC. `complete` and `error` are terminal: nothing of the item comes after.
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
        """Whether this is the last of its item."""
        return self.status in {"complete", "error"}

    @property
    def key(self) -> tuple[str, str, str]:
        """What it replaces: the item, of this turn, of this session."""
        return (self.session_id, self.turn_id, self.item_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUpsert(_Item):
    """Text, always in full. It is the agent's until the finished item says otherwise."""

    type: ClassVar[Literal["message"]] = "message"
    content: str
    origin: Origin = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingUpsert(_Item):
    """Reasoning, always in full, and the provider that it is replayed to."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    content: str
    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallUpsert(_Item):
    """A call and, once it is there, its output. The item is the call's, never the output's.

    `create` comes before the arguments are known: its `tool_arguments` are not to be relied on (seed decision 001).
    A call that failed is `complete` with `tool_output_is_error`; `error` means that no output will ever come.
    """

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    tool_name: str
    tool_arguments: Mapping[str, Any]
    call_id: str
    tool_output: str | None = None
    tool_output_is_error: bool | None = None


Upsert = MessageUpsert | ThinkingUpsert | ToolCallUpsert


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The crystal is asked. `parent` is the turn that a child entity hangs from."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    turn_id: str
    session_id: str
    model_id: str
    provider_id: str
    parent: Parent | None = None


@dataclass(frozen=True, slots=True)
class TurnComplete:
    """The turn is over, its gates included. What is still open of it will not go on: close it."""

    type: ClassVar[Literal["turn_complete"]] = "turn_complete"
    turn_id: str
    session_id: str
    status: Literal["completed", "cancelled"]
    usage: StreamUsage | None = None
    parent: Parent | None = None


@dataclass(frozen=True, slots=True)
class TurnError:
    """The turn failed. Every item of it that was open has had its `error` before this."""

    type: ClassVar[Literal["turn_error"]] = "turn_error"
    turn_id: str
    session_id: str
    error_code: str
    error_message: str
    parent: Parent | None = None


@dataclass(frozen=True, slots=True)
class FinalResponse:
    """The entity's answer, after the `TurnComplete` of the turn that gave it (SPEC 7.2; Epic 02 has none)."""

    type: ClassVar[Literal["final_response"]] = "final_response"
    turn_id: str
    session_id: str
    result: Any
    parent: Parent | None = None


TurnEvent = TurnStarted | TurnComplete | TurnError | FinalResponse
Output = Upsert | TurnEvent


def as_message(output: Output) -> dict[str, Any]:
    """What goes over a wire for one output: `session:upsert` or `session:turn`, with the payload in camelCase."""
    kind = "session:upsert" if isinstance(output, Upsert) else "session:turn"
    return {"type": kind, "sessionId": output.session_id, "payload": as_wire(output)}


def history(session_id: str, outputs: Iterable[Output]) -> dict[str, Any]:
    """The `session:history` message: the terminal upserts among `outputs` that are this session's, in their order."""
    entries = [
        as_wire(output)
        for output in outputs
        if isinstance(output, Upsert) and output.terminal and output.session_id == session_id
    ]
    return {"type": "session:history", "sessionId": session_id, "entries": entries}


def fold(outputs: Iterable[Output]) -> dict[tuple[str, str, str], Upsert]:
    """The latest upsert of each item, in the order in which items appeared: what a subscriber knows (U-60)."""
    known: dict[tuple[str, str, str], Upsert] = {}
    for output in outputs:
        if isinstance(output, Upsert):
            known[output.key] = output
    return known


def standing(outputs: Iterable[Output]) -> list[Upsert]:
    """The latest upserts of the items that are their turns': without those of attempts that failed (U-59, U-60)."""
    known = fold(outputs).values()
    last: dict[tuple[str, str], int] = {}
    for upsert in known:
        turn = (upsert.session_id, upsert.turn_id)
        last[turn] = max(last.get(turn, 0), _attempt(upsert))
    return [u for u in known if u.error_code != "RETRY" and _attempt(u) == last[u.session_id, u.turn_id]]


def _attempt(upsert: Upsert) -> int:
    """The number that the item's id has for its attempt, `turn:attempt:block`; 0 for ids that others have made."""
    number = upsert.item_id.removeprefix(f"{upsert.turn_id}:").partition(":")[0]
    return int(number) if number.isdecimal() else 0

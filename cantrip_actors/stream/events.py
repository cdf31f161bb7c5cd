"""What happened to an entity, as users see it: the one vocabulary of every reader (SPEC 7.2, 0105).

    recorded   made from a record (`reading.py`), after it is in the loom
    live       in no log: `StepStartEvent`, `StepFailedEvent`, `ServerChangedEvent`, `MissedEvent`
    streamed   a `StreamedEvent`: a piece of an answer while the crystal gives it (`answer.py`), in no log

The events of one turn, in order; those in parentheses are streamed, those in brackets may be missing:

    StepStart  (Delta, ItemEnd, AttemptFailed) …  [Thinking]  [Text]  [ToolCall] …  Usage
    [ToolStart]  [Requested, Decided]  [Delegated]  ToolResult …  StepComplete  [FinalResponse]

Events inform and never control. Observers get the real result of an ephemeral gate; images are labels, never bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from cantrip_actors.records.records import RequestKind
from cantrip_actors.stream.wire import FinalImage, FinalItem, ItemType, StreamError
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.messages import NO_USAGE, Response, Usage
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.value import Value
from cantrip_actors.terms.work_id import make_work_id


class NumberedEvent(Value, frozen=True, kw_only=True, gc=False):
    """Base of all events: `id` names the event's position in the entity's log, if it was read from there, else ""."""

    id: str = ""


class EntityEvent(NumberedEvent, frozen=True, gc=False):
    """Something about an entity: which one, and when (seconds since the epoch)."""

    entity_id: str
    at: float


CRASHED: Final = StreamError("PROCESS_CRASH", "the process that ran this turn is gone")


# ------------------------------------------------------------------------------------------------------------ entities


class EntityStartedEvent(EntityEvent, frozen=True, gc=False):
    """An entity was cast, or given a further intent. Children name their parent and the turn that spawned them.

    `intent` contains a label for each image that came with it; `images` are those labels, never bytes. `by` is the
    sender, `key` that of the mail, and `trace` the `traceparent` of the span of the episode. `history` are the messages
    of an earlier conversation that came with the intent, without the bytes of their images. A further intent
    (`is_further`) has no facts about the entity: no parent, name, cantrip and crystal.
    """

    intent: str
    parent_entity: str | None = None
    parent_turn: str | None = None
    depth: int = 0
    name: str | None = None
    crystal: str | None = None
    images: tuple[str, ...] = ()
    cantrip: str | None = None
    lasting: bool = False
    forked: bool = False
    is_further: bool = False
    key: str | None = None
    by: str = ""
    trace: str | None = None
    history: tuple[PastMessage, ...] = ()


class SteeredEvent(EntityEvent, frozen=True, gc=False):
    """The person or program `by` sent a message to the entity, between two turns."""

    text: str
    by: str = ""


class ResumedEvent(EntityEvent, frozen=True, gc=False):
    """The person or program `by` resumed the entity after a crash."""

    by: str


class AdoptedEvent(EntityEvent, frozen=True, gc=False):
    """From here on the entity works with another cantrip: the one with this id, and the name if it has one."""

    cantrip_id: str
    cantrip: str | None = None


class FoldedEvent(EntityEvent, frozen=True, gc=False):
    """The crystal sees `marker` instead of the turns `first` … `last` from here on. `usage` is that of the summary."""

    first: int
    last: int
    marker: str
    usage: Usage = NO_USAGE


class UndoneEvent(EntityEvent, frozen=True, gc=False):
    """The entity is back before its last intent: the turns `first` … `last` are in force no longer.

    If the intent had no turn, `last` is less than `first`. `by` asked for it.
    """

    first: int
    last: int
    by: str = ""


class EpisodeEndedEvent(EntityEvent, frozen=True, gc=False):
    """An intent of a long-lived entity is done. `by` ended it from outside, if it was ended so."""

    outcome: Outcome
    by: str = ""

    @property
    def work_id(self) -> str:
        """The id by which `Runtime.work` finds the intent."""
        return make_work_id(self.entity_id, self.outcome.key)

    @property
    def reason(self) -> str:
        """Why the episode ended."""
        return self.outcome.reason

    @property
    def detail(self) -> str | None:
        """The error of an episode that failed, or a summary of one that was cut short."""
        return self.outcome.error or self.outcome.summary


class EntityEndedEvent(EntityEvent, frozen=True, gc=False):
    """The entity is over; `reason` says why.

    `by` ended it, if it was ended from outside. `usage` is the cost of answers that broke the crystal's contract.
    `outcome` is None if a runtime ended an entity that it had not loaded.
    """

    reason: str
    detail: str | None = None
    ward: str | None = None
    usage: Usage = NO_USAGE
    by: str = ""
    outcome: Outcome | None = None


class ForgottenEvent(EntityEvent, frozen=True, gc=False):
    """The content of the entity's log was erased. `by` asked for it, and `why` says the reason."""

    by: str
    why: str


class ServerChangedEvent(EntityEvent, frozen=True, gc=False):
    """An MCP server of the entity has changed its list of "tools", "prompts" or "resources".

    It is in no log: the entity keeps the tools that it was made with (CALL-3), and a new one gets the changed ones.
    """

    server: str
    what: str


class MissedEvent(EntityEvent, frozen=True, gc=False):
    """The subscriber was too slow and lost `count` events, wanted or not. The loom has their content."""

    count: int


# --------------------------------------------------------------------------------------------------------------- turns


class StepEvent(EntityEvent, frozen=True, gc=False):
    """Base of the events of a turn."""

    turn_id: str


class StepStartEvent(StepEvent, frozen=True, gc=False):
    """The crystal is queried for the turn with this id.

    A turn that continues after a crash, or in another process, begins again with the `utterance` that the loom has.
    Children name their parent, and the turn that spawned them.
    """

    crystal: str = ""
    parent_entity: str | None = None
    parent_turn: str | None = None
    utterance: Response | None = None


class ThinkingEvent(StepEvent, frozen=True, gc=False):
    """The crystal's reasoning."""

    text: str


class TextEvent(StepEvent, frozen=True, gc=False):
    """Text of the utterance; in a code circle also its program (`is_code`)."""

    text: str
    is_code: bool = False


class ImageEvent(StepEvent, frozen=True, gc=False):
    """The crystal made an image: its description."""

    image: FinalImage


class ToolCallEvent(StepEvent, frozen=True, gc=False):
    """The utterance, or its program, calls a gate."""

    tool_call_id: str
    gate: str
    args: Mapping[str, Any] | None


class UsageEvent(StepEvent, frozen=True, gc=False):
    """Tokens of one crystal invocation, after `seconds`. It is the last event of an utterance.

    `metadata` are facts about the answer, such as the model that gave it.
    """

    usage: Usage
    metadata: Mapping[str, Any] = {}  # nothing writes to it
    seconds: float = 0.0


class ToolStartEvent(StepEvent, frozen=True, gc=False):
    """A gate is about to run. Gates that may run again after a crash have no such event."""

    tool_call_id: str
    gate: str


class ToolResultEvent(StepEvent, frozen=True, gc=False):
    """A gate answered after `seconds`; or a program has ended, then `tool_call_id` is None, and `gate` its medium.

    Observers get the real result, ephemeral or not; `images` are labels, never bytes. `args` are those of a program's
    call; others are in the `ToolCallEvent`.
    """

    tool_call_id: str | None
    gate: str
    result: Any
    is_error: bool
    images: tuple[str, ...] = ()
    args: Mapping[str, Any] | None = None
    seconds: float = 0.0


class DelegatedEvent(StepEvent, frozen=True, gc=False):
    """A child begins; `trace` is the `traceparent` of the span of the call. The call does not wait for a child in the
    background (`is_background`).
    """

    tool_call_id: str
    child: str
    trace: str | None = None
    is_background: bool = False


class RequestedEvent(StepEvent, frozen=True, gc=False):
    """The entity waits for a person: `runtime.decide(request_id, …)`; `text` says why, or is the question.

    The answer to a question has to match `schema`. A deferred call waits for `runtime.deliver(request_id, …)`.
    """

    request_id: str
    gate: str
    args: Mapping[str, Any] | None
    text: str
    expires_at: str | None
    tool_call_id: str = ""
    is_question: bool = False
    schema: Mapping[str, Any] | None = None
    is_deferred: bool = False
    is_utterance: bool = False
    """Whether the question is an utterance in a circle with medium="person", whose text came before this event."""
    to: str | None = None
    """The name of the person whom the utterance addresses, if it addresses one."""

    @property
    def kind(self) -> RequestKind:
        """The kind of the request: the approval of a call, a question, or a deferred call."""
        return "deferred" if self.is_deferred else "question" if self.is_question else "approval"

    def with_call_id(self, tool_call_id: str) -> RequestedEvent:
        """Return the event with another id of its call, as a reader of several entities needs it."""
        return replace(self, tool_call_id=tool_call_id)


class DecidedEvent(StepEvent, frozen=True, gc=False):
    """A request was decided: "allow", "deny", "answer" or "expired"; a deferred call got an "answer" or an "error".

    `by` and `door` say who decided, and how that is known.
    """

    request_id: str
    decision: str
    by: str
    note: str
    door: str = ""


class SampledEvent(StepEvent, frozen=True, gc=False):
    """A crystal answered a server of tools during a call, and the entity pays for the answer."""

    tool_call_id: str
    crystal: str
    usage: Usage


class StepCompleteEvent(StepEvent, frozen=True, gc=False):
    """A turn is in the loom, `seconds` after it began.

    `ward` truncated it; a truncated turn without a ward was cut off from outside. With children between them, several
    turns share one utterance: later ones name in `continues` the turn that has it (LOOM-8).
    """

    sequence: int
    terminated: bool
    truncated: bool
    ward: str | None = None
    continues: str | None = None
    seconds: float = 0.0


class StepFailedEvent(StepEvent, frozen=True, gc=False):
    """The actor that ran the turn crashed. A restart begins the turn again."""

    error: StreamError = CRASHED


class FinalResponseEvent(EntityEvent, frozen=True, gc=False):
    """The entity's answer, and the turn that gave it."""

    result: Any
    turn_id: str = ""


class RewardedEvent(StepEvent, frozen=True, gc=False):
    """A turn got a reward; it may come after the end of the entity. `by` names who gave it."""

    reward: float
    by: str = ""


# ------------------------------------------------------------------------------------------------- pieces of an answer


class StreamedEvent(StepEvent, frozen=True, gc=False):
    """A piece of an answer that the crystal is giving: a preview of the recorded events that follow."""


class DeltaEvent(StreamedEvent, frozen=True, gc=False):
    """An item of the answer begins (`is_start`), or grows by `text`; or a running gate reports its progress.

    A "function_call" begins with its gate and its call id; its texts are fragments of JSON. The text of a
    "function_call_output" is one line of progress, of the call with this id.
    """

    item_id: str
    kind: ItemType
    text: str
    is_start: bool = False
    gate: str = ""
    tool_call_id: str = ""


class ItemEndEvent(StreamedEvent, frozen=True, gc=False):
    """An item of the answer ends: with its final content, which replaces its deltas, or with an error.

    With neither, it was given up.
    """

    item_id: str
    final: FinalItem | None = None
    error: StreamError | None = None


class AttemptFailedEvent(StreamedEvent, frozen=True, gc=False):
    """The crystal's answer failed: its open items are void. Another attempt follows if it `is_retried`."""

    error: StreamError
    is_retried: bool = True


def build_event_fields(event: EntityEvent) -> dict[str, Any]:
    """Return an event as a mapping, with the name of its class as `type`: the form for logs and programs."""
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {"type": type(event).__name__, **fields}

"""The records of a loom: what happened to an entity, one frozen value each (SPEC 6).

The log of an entity is a sequence of small records. A record never repeats what an earlier record of the same turn
holds, apart from the arguments in a `Requested`. A turn consists of its `Utterance`, its `GateFinished` records and its
`Committed` record. An utterance without a `Committed` is a turn that a crash cut short. No record is ever changed: a
reward is a record of its own (LOOM-3), and an `Ended` record says how an entity ended between two turns.

One utterance may become several turns. If a child ran, the part before it is one turn, and the rest is a continuation
of the same utterance (LOOM-8). Only the first of these turns has the utterance's usage.

The order of the fields is the order in a line of the loom (`codec.py`), and `rename` gives their names there.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec

from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.door import name_decider
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.image import NO_IMAGES, Image, select_files
from cantrip_actors.terms.messages import NO_USAGE, ToolCall, Usage, as_text
from cantrip_actors.terms.outcome import EndReason
from cantrip_actors.terms.value import Value

OnClose = Literal["end", "keep"]
"""The treatment of a one-shot entity without a key that is at work when its runtime closes: it ends, or it is left for
the next process."""

RequestKind = Literal["approval", "question", "deferred"]
"""The event that an entity waits for: the approval of a call, the answer of a person, or the result of a deferred
call."""

SCHEMA = 1
"""The version of the records' format. Every header states it; from version 2 on every line does."""


class Observation(Value, frozen=True, gc=False):
    """The circle's answer to one gate call, in the canonical shape (D-005).

    `result` is a JSON value; it contains the handle of each of `images` that the gate returned. The crystal sees
    an `ephemeral` result for `visible_for` queries, then a placeholder.
    """

    gate: str
    args: Mapping[str, Any] | None
    result: Any
    is_error: bool = False
    tool_call_id: str | None = None
    ephemeral: bool = False
    images: tuple[File, ...] = NO_IMAGES
    """The images and other files of the result, in order."""
    attempts: int = 1
    """How often the gate was called for it, if it has a `retry`."""
    children: tuple[str, ...] = ()
    """The background children whose answers are in the result."""

    @property
    def files(self) -> tuple[File, ...]:
        """The members of `images` that are not images."""
        return select_files(self.images)

    @property
    def content(self) -> str:
        """The result as text, as the crystal reads it."""
        return as_text(self.result)


_get_observed = attrgetter(*Observation.__struct_fields__)
"""Returns the fields of an observation, which are also fields of its record."""

_IDS = {"entity_id": "entity", "turn_id": "turn"}


class _Record(Value, frozen=True, gc=False, tag_field="kind", rename=_IDS):
    """The configuration that all records share."""


class Header(
    _Record,
    frozen=True,
    kw_only=True,
    tag="header",
    rename={**_IDS, "cantrip_id": "cantrip"},
):
    """An entity begins: which cantrip, under which call (CALL-4), below which parent. The root context of its thread.

    A `lasting` entity takes further intents. It is over when it is stopped or a budget of its life is used up.

    `parent_turn` is the turn that the entity's first turn follows: the spawning turn of a child (`parent_entity` is
    then its parent), or the turn that a fork continues (`forked`). `key` is the caller's, if it gave one: the entity's
    id is derived from it. `name` is the entity's name among those of its `tenant`, `cantrip_name` its cantrip's.
    `queue` is the queue that the entity was submitted to: it keeps a place there until it is over.

    `on_close` says whether the entity is left as it is if its runtime closes while it works ("keep"), or ends ("end");
    None for the runtime's own setting.

    An entity that `waits` was made without an intent: its first one comes like those after it. Any other gets it in the
    transaction that records the header.
    """

    entity_id: str
    schema: int = msgspec.field(default_factory=lambda: SCHEMA)  # a factory, so that it is always written
    cantrip_id: str
    at: str
    crystal: str
    call: Mapping[str, Any]
    circle: Mapping[str, Any]
    parent_entity: str | None = None
    parent_turn: str | None = None
    forked: bool = False
    depth: int = 0
    name: str | None = None
    lasting: bool = False
    key: str | None = None
    cantrip_name: str | None = None
    tenant: str = ""
    queue: str = ""
    waits: bool = False
    on_close: OnClose | None = None

    @property
    def scoped_name(self) -> str | None:
        """The name as stores keep it, unique in the loom."""
        return None if self.name is None else scope_name(self.tenant, self.name)


class IntentGiven(_Record, frozen=True, tag="intent"):
    """An intent: the first is the entity's for life (INTENT-3), later ones come with `send` or a fork.

    `images` are those of the intent, then those whose handles are in `context`. `key` is the key of the mail that this
    record takes, and `sender` names its sender. `trace` is the W3C `traceparent` of the span of the episode that begins
    here, if the episode is traced. `dependencies` says which dependencies the gates of its episode have: a mark, and
    not their values. `history` are messages of an earlier conversation, which come before the intent in the context;
    their images are the last of `images`. `note` is JSON that the sender keeps with the intent for itself: it is in no
    context.
    """

    entity_id: str
    intent: str
    at: str
    context: Any = None
    images: tuple[File, ...] = NO_IMAGES
    key: str | None = None
    sender: str | None = None
    trace: str | None = None
    dependencies: str | None = None
    history: tuple[PastMessage, ...] = ()
    note: Any = None

    @property
    def own_images(self) -> tuple[File, ...]:
        """The images of the intent and of its data."""
        return self.images[: len(self.images) - sum(message.images for message in self.history)]

    @property
    def past_images(self) -> tuple[File, ...]:
        """The images of the history."""
        return self.images[len(self.own_images) :]


class Steered(_Record, frozen=True, tag="steer"):
    """A message inserted between two turns; `key` and `sender` as in `IntentGiven`. A `pinned` one survives folds.

    `child` is the background child whose answer it is.
    """

    entity_id: str
    text: str
    at: str
    images: tuple[File, ...] = NO_IMAGES
    key: str | None = None
    sender: str | None = None
    pinned: bool = False
    child: str | None = None


class MailRefused(_Record, frozen=True, tag="refused"):
    """Mail was taken that could not be carried out, or was withdrawn: `mail` is its kind, `reason` says why.

    `sender` is that of the mail. Of a withdrawn intent `mail` is "intent", `reason` is "withdrawn", `sender` says who
    withdrew it, and `why` why; `why` is None for mail that was refused.
    """

    entity_id: str
    key: str
    mail: str
    reason: str
    at: str
    sender: str | None = None
    why: str | None = None

    @property
    def is_withdrawn(self) -> bool:
        """Whether the mail was withdrawn, and not refused."""
        return self.why is not None


class Adopted(_Record, frozen=True, tag="adopted", rename={**_IDS, "cantrip_id": "cantrip", "cantrip_name": "name"}):
    """From here on the entity works with the cantrip `cantrip_id` instead of `previous`: its call, circle, crystal.

    `release` is that of the node on which it moved, if that has one.
    """

    entity_id: str
    cantrip_id: str
    previous: str
    at: str
    crystal: str
    call: Mapping[str, Any]
    circle: Mapping[str, Any]
    cantrip_name: str | None = None
    release: str | None = None


class QueryPosted(_Record, frozen=True, tag="query_posted"):
    """The crystal took the query of turn `turn_id` and will answer later; `handle` is the key to the answer."""

    entity_id: str
    turn_id: str
    handle: Any
    at: str


class Asked(_Record, frozen=True, tag="asked"):
    """The entity waits for the episode of the intent with key `key` that it sent to entity `to`."""

    entity_id: str
    turn_id: str
    tool_call_id: str
    to: str
    key: str
    at: str


class Requested(_Record, frozen=True, kw_only=True, tag="requested"):
    """The entity waits: for a decision about a call, for the answer to a `question`, or for the result of a call.

    Nothing of the gate has run, unless the gate itself asks: the `round` of its first question is 1, and `state` is
    what it continues with once it has the answer. `args` are the arguments of the call, for the person, also if the
    utterance has them. `why` is the text that the condition of `ask_first` returned. `question` is the text for the
    person, None for an approval, and `answer_schema` the JSON Schema of the answer. `snapshot` is the program that
    waits, in the middle of its call. If it is `deferred`, any program delivers the result of the call.
    """

    entity_id: str
    turn_id: str
    tool_call_id: str
    gate: str
    at: str
    args: Mapping[str, Any] | None = None
    why: str = ""
    question: str | None = None
    answer_schema: Mapping[str, Any] | None = None
    expires_at: str | None = None
    snapshot: Snapshot | None = None
    round: int = 0
    state: Any = None
    deferred: bool = False

    @property
    def call_id(self) -> str:
        """The id of the call, as `GateCall.id`; an earlier request about the same call has this id as well."""
        return _call_id(self)

    @property
    def kind(self) -> RequestKind:
        """The kind of the request."""
        return "deferred" if self.deferred else "approval" if self.question is None else "question"

    @property
    def is_utterance(self) -> bool:
        """Whether the question is an utterance for a person, in a circle with medium="person"."""
        return self.gate == "person" and self.question is not None and not self.round

    @property
    def to(self) -> str | None:
        """The name of the person whom the utterance addresses, if it addresses one."""
        return (self.args or {}).get("to") if self.is_utterance else None

    @property
    def id(self) -> str:
        """The id of the request, unique in the loom."""
        return _request_id(self)


Decision = Literal["allow", "deny", "answer", "error", "expired"]
"""How a request was decided. The result of a deferred call is an "answer", or an "error"."""


class Decided(_Record, frozen=True, kw_only=True, tag="decided"):
    """A request was decided by the person `by`, who may have left a `note`; or it has expired.

    `args` replaces the arguments of the call; `answer` is that of a question, or the result of a deferred call with its
    `images`, or the text of its error. `later` has those of later calls of the same answer, by their ids: each as a
    `decision` and an `answer`, with the number of its `images`, which come after the others in `images`. With
    `remember` the decision holds for later calls of the gate by this entity for which the condition says the same.
    `key` and `sender` are those of the mail that this record takes. `door` is the door that the decision came through
    (`door.py`). `memo` is JSON that the sender keeps with the decision for itself: it is in no context.
    """

    entity_id: str
    turn_id: str
    tool_call_id: str
    decision: Decision
    at: str
    by: str = ""
    note: str = ""
    args: Mapping[str, Any] | None = None
    answer: Any = None
    remember: bool = False
    key: str | None = None
    sender: str | None = None
    door: str = ""
    round: int = 0
    """That of the request."""
    images: tuple[File, ...] = NO_IMAGES
    later: Mapping[str, Any] | None = None
    memo: Any = None

    def split(self) -> dict[str, Decided]:
        """Return the decisions about this call and about later ones, by their ids."""
        later = self.later or {}
        first = len(self.images) - sum(result["images"] for result in later.values())
        own = msgspec.structs.replace(self, images=self.images[:first], later=None)
        decisions = {self.tool_call_id: own}
        for id, result in later.items():
            end = first + result["images"]
            decisions[id] = msgspec.structs.replace(
                own,
                tool_call_id=id,
                decision=result["decision"],
                answer=result["answer"],
                images=self.images[first:end],
            )
            first = end
        return decisions

    @property
    def decider(self) -> str:
        """The author of the decision, and how that is known; empty for a request that has expired."""
        return "" if self.decision == "expired" else name_decider(self.by, self.door)

    @property
    def in_words(self) -> str:
        """Return the decision, its author and how that is known, its time, and the note."""
        if self.decision == "expired":
            return f"nobody in time, {self.at}"
        words = {"allow": "allowed", "deny": "denied", "answer": "answered", "error": "reported as failed"}
        what = words[self.decision]
        note = f": {self.note}" if self.note else ""
        return f"{what} by {self.decider}, {self.at}{note}"

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return _request_id(self)


def _request_id(about: Requested | Decided) -> str:
    return f"{_call_id(about)}:{about.round}" if about.round else _call_id(about)


def _call_id(about: Requested | Decided) -> str:
    return f"{about.entity_id}:{about.turn_id}:{about.tool_call_id}"


class Utterance(_Record, frozen=True, kw_only=True, tag="utterance"):
    """The crystal's response. It is recorded before it is acted on, so that no response is paid for twice."""

    entity_id: str
    turn_id: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    code: str | None = None
    thinking: str | None = None
    usage: Usage = NO_USAGE
    duration_ms: float
    blocks: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    images: tuple[Image, ...] = ()
    """Images that the crystal made; `content` has their handles."""


class GateStarted(_Record, frozen=True, tag="gate_started"):
    """A gate is about to run. `args` is set only if the utterance does not contain the arguments (code circles).

    `snapshot` is the program that waits for the gate, in the middle of its call.
    """

    entity_id: str
    turn_id: str
    tool_call_id: str
    gate: str
    args: Mapping[str, Any] | None = None
    snapshot: Snapshot | None = None


class GateFinished(_Record, frozen=True, kw_only=True, tag="gate_finished"):
    """A gate's observation, written before the next gate starts or the turn is committed.

    `children` are the background children whose answers are in it. `snapshot` is the resource of the gate, such as a
    browser, as the call left it.
    """

    entity_id: str
    turn_id: str
    gate: str
    tool_call_id: str | None = None
    args: Mapping[str, Any] | None = None
    result: Any = None
    is_error: bool = False
    ephemeral: bool = False
    images: tuple[File, ...] = NO_IMAGES
    duration_ms: float = 0.0
    attempts: int = 1
    children: tuple[str, ...] = ()
    snapshot: Snapshot | None = None

    @classmethod
    def of(cls, entity_id: str, turn_id: str, seen: Observation, duration_ms: float = 0.0) -> GateFinished:
        """Return the record of an observation."""
        observed = zip(Observation.__struct_fields__, _get_observed(seen), strict=True)
        return cls(entity_id=entity_id, turn_id=turn_id, duration_ms=duration_ms, **dict(observed))

    @property
    def observation(self) -> Observation:
        """The observation that was recorded."""
        return Observation(*_get_observed(self))


class Committed(
    _Record,
    frozen=True,
    kw_only=True,
    tag="turn",
    rename={**_IDS, "parent_id": "parent", "continues": "utterance"},
):
    """A turn is complete (LOOM-1).

    `continues` is the turn with the utterance if that is an earlier turn (LOOM-8).

    `duration_ms` is wall clock from the query (for a continuation: from the turn before) to the commit.

    `snapshot` is the sandbox of a code circle as this turn left it.

    If it ends the episode of a long-lived entity, `children` says whether background children of the entity continue.
    """

    entity_id: str
    turn_id: str
    parent_id: str | None = None
    sequence: int
    continues: str | None = None
    at: str
    duration_ms: float
    terminated: bool = False
    truncated: bool = False
    ward: str | None = None
    snapshot: Snapshot | None = None
    children: bool = False

    @property
    def utterance_id(self) -> str:
        """The turn that holds the utterance: this one, or the one that it continues."""
        return self.continues or self.turn_id


class ChildStarted(_Record, frozen=True, tag="child", rename={**_IDS, "child_id": "child"}):
    """A child is about to run below turn `turn_id` (COMP-5, LOOM-8); `index` is its place in the request, from 0.

    `trace` is the `traceparent` of the span of the call that delegates, if it is traced. The parent does not wait for a
    `background` child: its answer comes in with a `Steered` or a `GateFinished` that names it.
    """

    entity_id: str
    turn_id: str
    tool_call_id: str
    child_id: str
    index: int = 0
    trace: str | None = None
    background: bool = False


class Folded(_Record, frozen=True, tag="fold"):
    """From here on the working context shows turns `first` … `last` as `marker` (LOOM-5).

    `usage` is the cost of the summary in the marker, if a crystal wrote one. `key` and `sender` are those of the mail
    that asked for the fold, if mail did. A `selective` fold takes out only the results of these turns.
    """

    entity_id: str
    first: int
    last: int
    marker: str
    at: str
    usage: Usage = NO_USAGE
    key: str | None = None
    sender: str | None = None
    selective: bool = False


class Undone(_Record, frozen=True, tag="undone"):
    """The entity is back before its last intent: the records since then are in force no longer (`undone.py`).

    They include the turns `first` … `last`; without any turn, `last` is less than `first`. `key` and `sender` are those
    of the mail that this record takes. `children` says whether background children from before that intent continue.
    """

    entity_id: str
    first: int
    last: int
    at: str
    key: str | None = None
    sender: str | None = None
    children: bool = False


class Sampled(_Record, frozen=True, kw_only=True, tag="sampled"):
    """A crystal answered a server of tools during a call, and the entity pays the `usage` of the answer.

    It is written before the server gets the answer. `asked` is the beginning of the server's question.
    """

    entity_id: str
    turn_id: str
    tool_call_id: str
    server: str
    crystal: str
    asked: str
    answer: str
    at: str
    usage: Usage = NO_USAGE


class Rewarded(_Record, frozen=True, tag="reward"):
    """A reward for a turn; the latest counts (LOOM-3). `by` says who gave it, and `key` names the request that did."""

    entity_id: str
    turn_id: str
    reward: float
    at: str
    by: str = ""
    key: str = ""


class Resumed(_Record, frozen=True, tag="resumed"):
    """The person or program `by` resumed an episode that a crash had interrupted; its next records continue it.

    An episode that a runtime resumes automatically has no such record.
    """

    entity_id: str
    at: str
    by: str

    @property
    def in_words(self) -> str:
        """By whom and when."""
        return f"by {self.by.removeprefix('token:')}, {self.at}"


class Ended(_Record, frozen=True, tag="ended"):
    """An entity, or one episode of it, is over; its log stays (ENTITY-4).

    `reason` says how it ended, and `detail` explains that to a person. `ward` is the ward that ended it. `usage` is the
    cost of answers that broke the crystal's contract, which no utterance includes. `key` and `sender` are those of the
    mail that this record takes. If only an episode is over, `children` says whether background children continue.
    """

    entity_id: str
    reason: EndReason
    at: str
    detail: str | None = None
    result: Any = None
    ward: str | None = None
    usage: Usage = NO_USAGE
    key: str | None = None
    sender: str | None = None
    children: bool = False


class ForgottenRecord(_Record, frozen=True, kw_only=True, tag="forgotten"):
    """The content of all records before this one is deleted, and tombstones replace them (`tombstone.py`).

    `by` is the author of the deletion, and `why` its reason. `records` and `bytes` count the original lines; `sum` is
    the checksum of the tombstones, so that a loom can show that nothing else was replaced by one.
    """

    entity_id: str
    at: str
    records: int
    bytes: int
    sum: str
    by: str = ""
    why: str = ""


Record = (
    Header
    | IntentGiven
    | Steered
    | Utterance
    | GateStarted
    | GateFinished
    | Committed
    | ChildStarted
    | Folded
    | Undone
    | Sampled
    | Rewarded
    | Resumed
    | Ended
    | MailRefused
    | Adopted
    | QueryPosted
    | Asked
    | Requested
    | Decided
    | ForgottenRecord
)

R = TypeVar("R", bound=Record)

WITH_IMAGES = frozenset({Decided, GateFinished, IntentGiven, Steered, Utterance})
"""The kinds that have `images`."""
WITH_SNAPSHOT = frozenset({Committed, GateFinished, GateStarted, Requested})
"""The kinds that have a `snapshot`."""


def get_images(record: Record) -> tuple[File, ...]:
    """Return the images of a record."""
    return record.images if type(record) in WITH_IMAGES else ()  # type: ignore[union-attr]  # its type says so


def get_snapshot(record: Record) -> Snapshot | None:
    """Return the snapshot that a record refers to."""
    return record.snapshot if type(record) in WITH_SNAPSHOT else None  # type: ignore[union-attr]  # likewise


def replace_images(record: R, images: tuple[File, ...]) -> R:
    """Return a record that has images with others, as many and in the same places."""
    return msgspec.structs.replace(record, images=images)


def replace_snapshot(record: R, snapshot: Snapshot) -> R:
    """Return a record that has a snapshot with another one."""
    return msgspec.structs.replace(record, snapshot=snapshot)

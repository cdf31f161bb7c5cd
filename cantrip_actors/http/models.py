"""The bodies, queries and answers of the native API, as pydantic models: requests are validated by them, and the
OpenAPI document is made of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from cantrip_actors.http.bodies import Strict
from cantrip_actors.terms.messages import Role

Text = Annotated[str, StringConstraints(min_length=1)]
WaitField = Annotated[float | None, Field(gt=0, description="Wait so many seconds for the episode.")]
EntityState = Literal[
    "active",
    "waiting",
    "idle",
    "terminated",
    "truncated",
    "failed",
    "crashed",
    "cancelled",
    "parent_ended",
    "interrupted",
    "abandoned",
    "forgotten",
]
"""The states that `Loom.state` returns: an entity that a timeout or a budget ended is truncated."""
Disconnect = Annotated[
    Literal["cancel", "continue"] | None,
    Field(description="The entity's treatment if its client hangs up while it waits. Default: cancel without a key."),
]


class NoBody(Strict):
    """An empty object, or no body."""


class NoQuery(Strict):
    """No parameters."""


class GivenFile(Strict):
    """A document, a text, audio or video for an entity."""

    url: Text = Field(description="A data: URL in base64, or an https:// address, which the provider fetches.")
    filename: Text | None = Field(default=None, description="The name of the file, as the entity sees it.")


class GivenCall(Strict):
    """A call in a message of an earlier conversation."""

    id: str = ""
    gate: Text
    args: dict[str, Any] = Field(default_factory=dict)


class GivenMessage(Strict):
    """A message of an earlier conversation."""

    role: Role
    content: str = ""
    images: list[str] = Field(default_factory=list, description="Images, as data: URLs or https:// addresses.")
    tool_calls: list[GivenCall] = Field(default_factory=list, description="The calls of an assistant.")
    tool_call_id: str | None = Field(default=None, description="The call whose result a tool message is.")
    gate: str | None = None
    is_error: bool = False
    thinking: str | None = None


class IntentBody(Strict):
    """An intent for an entity."""

    intent: Text
    context: Any = Field(default=None, description="Data for the entity, any JSON value.")
    history: list[GivenMessage] = Field(
        default_factory=list, description="An earlier conversation, which comes before the intent."
    )
    images: list[str] = Field(default_factory=list, description="Images, as data: URLs or https:// addresses.")
    files: list[GivenFile] = Field(default_factory=list, description="PDFs, texts, audio and video.")
    wait: WaitField = None
    on_disconnect: Disconnect = None


class CastBody(IntentBody):
    """Cast a cantrip on an intent."""

    cantrip: Text


class SubmitBody(Strict):
    """Submit a cast to the nodes of the loom."""

    cantrip: Text
    intent: Text
    queue: str = Field(default="", description="The queue that it waits in: one of the loom's.")
    priority: int = Field(default=0, ge=-100, le=100, description="Those of a higher priority begin first.")
    wait: WaitField = None


class BeginBody(IntentBody):
    """Make a long-lived entity."""

    cantrip: Text
    name: Text


class EnsureBody(Strict):
    """Make a long-lived entity without an intent, unless it is there already."""

    cantrip: Text


class SendBody(IntentBody):
    """A further intent for a long-lived entity."""


class ForkBody(IntentBody):
    """Continue from a turn with a new entity."""

    cantrip: Text | None = None
    crystal: Text | None = None


class SteerBody(Strict):
    """A message before the entity's next query."""

    text: Text
    pin: bool = Field(default=False, description="Keep it in the context when the turns around it are folded.")


class InterruptBody(Strict):
    """End the present episode."""

    why: Text = "interrupted"
    now: bool = Field(default=False, description="Cancel the query or the gate under way, too.")


class CompactBody(Strict):
    """Fold the context now."""

    instructions: Text | None = Field(default=None, description="Instructions for the summary.")


class DecideBody(Strict):
    """Decide a request: a decision about a call, the answer to a question, or the result of a deferred call."""

    decision: Literal["allow", "deny"] | None = None
    answer: Any = None
    images: list[str] = Field(default_factory=list, description="Images of the answer, as those of an intent.")
    files: list[GivenFile] = Field(default_factory=list, description="Other files of the answer.")
    result: Any = Field(default=None, description="The result of a deferred call; null is one, too.")
    error: str | None = Field(default=None, description="The text of an error, instead of a result.")
    note: str = ""
    args: dict[str, Any] | None = Field(default=None, description="With allow: other arguments for the call.")
    remember: Literal["once", "entity"] = "once"


class RewardBody(Strict):
    """A reward for a turn."""

    reward: float = Field(allow_inf_nan=False)
    by: str | None = Field(default=None, description="Its author; by default the name of the token.")


class EntitiesQuery(Strict):
    """The query of a list of entities."""

    state: EntityState | None = None
    kind: Literal["root", "child", "fork", "lasting"] | None = None
    cantrip: str | None = Field(default=None, description="The name of the cantrip that it works with.")
    name: str | None = None
    prefix: str | None = Field(default=None, description="The beginning of its name.")
    since: AwareDatetime | None = Field(default=None, description="Only those that began at this time or later.")
    parent: str | None = Field(default=None, description="An entity, by id or name: only its children.")
    cursor: str | None = None
    limit: int = Field(default=50, ge=1, le=200)


class TurnsQuery(Strict):
    """The query of a list of turns: those with a sequence after a number."""

    after: int = Field(default=0, ge=0)
    limit: int = Field(default=50, ge=1, le=200)


class StoryQuery(Strict):
    """The query of a list of events: those before or after one, those around a turn, or the newest."""

    before: str | None = Field(default=None, description="An id of the entity's event stream.")
    after: str | None = Field(default=None, description="An id of the entity's event stream.")
    turn: int | None = Field(default=None, ge=1, description="The number of a turn: the events around it.")
    limit: int = Field(default=100, ge=1, le=500)


class StopQuery(Strict):
    """The query of a stop: its reason."""

    reason: Text = "stopped"


class WithdrawQuery(Strict):
    """The query of a withdrawal: why."""

    why: Text = "withdrawn"


class RequestsQuery(Strict):
    """The query of a list of requests: of one entity, or of all, a page of waiting entities at a time."""

    entity: str | None = None
    to: str | None = Field(default=None, description="Without those that address another person than this one.")
    cursor: str | None = None
    limit: int = Field(default=200, ge=1, le=1000)


class SearchQuery(Strict):
    """The query of a search."""

    q: str | None = None
    regex: str | None = None
    gate: str | None = None
    errors: bool = False
    entity: str | None = None
    since: AwareDatetime | None = Field(default=None, description="Only what was recorded at this time or later.")
    until: AwareDatetime | None = Field(default=None, description="Only what was recorded before this time.")
    by: str | None = Field(default=None, description="Only messages of this sender, and the work for its intents.")
    limit: int = Field(default=50, ge=1, le=200)


class StatsQuery(Strict):
    """The query of statistics: of one entity and its subtree, or of all."""

    entity: str | None = None


class ExportQuery(Strict):
    """The query of an export: its format, and its entity."""

    format: Literal["jsonl", "chat", "pairs", "atif"] = "jsonl"
    entity: str | None = None


class EventsQuery(Strict):
    """The query of a stream: the id of an event to start after, or 0 for the beginning. `Last-Event-ID` takes
    precedence.
    """

    after: str | None = None


class FirehoseQuery(EventsQuery):
    """The query of the stream of all entities."""

    subtree: str | None = Field(default=None, description="An entity: only its events, and those of all below it.")
    kinds: str | None = Field(default=None, description="Kinds of events, separated by commas.")


# Answers


class UsageJson(BaseModel):
    """Tokens, and their cost in US dollars."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    cost: float


class StartedJson(BaseModel):
    """An entity that has begun, or is running."""

    entity_id: str
    name: str | None
    state: str


class SubmissionJson(BaseModel):
    """A cast that is durable; `entity_id` is the id that its entity has or will have."""

    entity_id: str
    key: str
    has_begun: bool


class EpisodeJson(BaseModel):
    """How an episode ended."""

    entity_id: str
    result: Any
    terminated: bool
    truncated: bool
    reason: str
    ward: str | None
    cut_off: Literal["length", "filter"] | None = Field(
        default=None, description="Why the provider ended the answer before the model did."
    )
    summary: str | None
    error: str | None
    last_turn: str | None
    usage: UsageJson
    subtree_usage: UsageJson


class ReceiptJson(BaseModel):
    """One intent that was sent. `episode` is set once the intent is settled."""

    entity_id: str
    key: str
    state: Literal["waiting", "working", "settled", "refused", "withdrawn"]
    episode: EpisodeJson | None


class RequestJson(BaseModel):
    """A request that waits for a person, or a deferred call that waits for its result."""

    id: str
    kind: str = Field(description='"approval", "question" or "deferred", or the kind of an extension.')
    entity: str | None
    turn: str | None
    call: str | None
    gate: str
    args: dict[str, Any]
    text: str
    schema_: dict[str, Any] | None = Field(alias="schema")
    asked_at: str
    expires_at: str | None
    is_utterance: bool = Field(description="Whether it is a text of an entity that talks, which waits for a reply.")
    to: str | None = Field(description="The name of the person whom such a text addresses.")
    root: str | None = Field(description="The entity at the root of the tree of the entity.")


class QuarantineJson(BaseModel):
    """The reason why an entity does not run, and the end of that time."""

    why: str
    until: float | None = Field(description="When it is tried again, in seconds since 1970; null: when it is resumed.")


class EntityJson(BaseModel):
    """An entity: its beginning, and its state."""

    id: str
    name: str | None
    tenant: str
    cantrip: str | None
    cantrip_id: str
    crystal: str
    lasting: bool
    parent: str | None
    parent_turn: str | None
    forked: bool
    depth: int
    began: str
    state: str
    over: bool
    origin: str | None = Field(default=None, description="The entity that a fork continues.")
    intent: str | None = None
    turns: int = 0
    gates: list[str] | None = Field(default=None, description="The gates that it has called.")
    errors: int = Field(default=0, description="Calls that failed.")
    interrupted: bool = Field(
        default=False, description="Its process died in an episode, or it is quarantined: resume or abandon it."
    )
    quarantine: QuarantineJson | None = Field(default=None, description="Why it does not run for a time.")
    by: str | None = None
    requests: list[RequestJson] | None = None
    usage: UsageJson | None = None
    subtree_usage: UsageJson | None = None
    episode: EpisodeJson | None = None


class RequestPage(BaseModel):
    """A part of the list of requests, the oldest first; `next_cursor` gets the next part."""

    items: list[RequestJson]
    next_cursor: str | None


class EntityPage(BaseModel):
    """A part of a list, newest first; `next_cursor` gets the next part."""

    items: list[EntityJson]
    next_cursor: str | None


class TurnJson(BaseModel):
    """A turn, with the field names of SPEC 6.1."""

    id: str
    parent_id: str | None
    cantrip_id: str
    entity_id: str
    sequence: int
    utterance: str
    observation: str
    gate_calls: list[dict[str, Any]]
    decisions: list[dict[str, Any]] | None = None
    resumes: list[dict[str, Any]] | None = None
    metadata: dict[str, Any]
    reward: float | None
    terminated: bool
    truncated: bool
    undone: bool | None = None


class InputMessageJson(BaseModel):
    """A message of the input of a model's call."""

    role: str
    content: str | None
    images: list[dict[str, Any]] = []
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str | None = None
    gate: str | None = None
    is_error: bool = False
    thinking: str | None = None
    is_steering: bool = False
    is_pinned: bool = False


class ModelInputJson(BaseModel):
    """The input of the call of a model that a turn answers."""

    turn_id: str
    entity_id: str
    crystal: str
    messages: list[InputMessageJson]
    tools: list[dict[str, Any]]
    settings: dict[str, Any]
    folded_turns: list[str]
    is_exact: bool


class TreeJson(BaseModel):
    """An entity with its children and forks."""

    id: str
    name: str | None
    cantrip: str | None
    state: str
    turns: int
    children: list[TreeJson]
    forks: list[str]


class StoryItemJson(BaseModel):
    """An event as in the entity's event stream."""

    id: str
    event: str
    data: dict[str, Any]


class StoryPage(BaseModel):
    """Durable events, oldest first, how many came before them, and how many after them."""

    items: list[StoryItemJson]
    earlier: int
    later: int = 0


class ActorJson(BaseModel):
    """An actor of the supervision tree; `since` is in seconds since the epoch."""

    path: str
    kind: str | None
    state: str
    since: float | None
    mailbox: int
    in_hand: int
    restarts: int
    exit: str | None
    report: str | None = None


class SystemJson(BaseModel):
    """The state of the service. `counters` has the series of each counter; `loom` has no password.

    `queues` are those of submissions, with their bounds.
    """

    at: str
    items: list[ActorJson]
    crystals: list[dict[str, Any]]
    counters: dict[str, list[dict[str, Any]]]
    loom: dict[str, Any]
    requests: int
    streams: dict[str, int]
    queues: list[dict[str, Any]]


class DecidedJson(BaseModel):
    """A decision that was made."""

    id: str
    decision: Literal["allow", "deny", "answer", "error"]
    by: str


class RewardedJson(BaseModel):
    """A reward that was given."""

    turn_id: str
    reward: float
    by: str


class DoneJson(BaseModel):
    """Whether there was something to undo or to fold."""

    done: bool


class StatsJson(BaseModel):
    """Sums over entities."""

    entities: int
    turns: int
    utterances: int
    tokens_prompt: int
    tokens_completion: int
    tokens_cached: int
    cost: float
    folds: int
    turn_durations: dict[str, Any]
    crystal_durations: dict[str, Any]
    gate_calls: int
    errors: int
    gates: dict[str, Any]
    states: dict[str, int]
    rewarded: int
    mean_reward: float | None


class OverviewJson(BaseModel):
    """The entities and the open requests; with the scope `observe` also the state of the service."""

    at: str
    totals: dict[str, Any]
    entities: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    live: dict[str, Any] | None = None


class FrameJson(BaseModel):
    """A frame of a traceback."""

    file: str
    line: int | None
    function: str
    text: str


class CrashReportJson(BaseModel):
    """An unexpected end of an actor."""

    id: str
    at: str
    what: str
    path: str
    reason: str
    events: list[str]
    versions: dict[str, str]
    kind: str | None = None
    incarnation: int | None = None
    call: str | None = Field(default=None, description="The type of a call that it had in hand.")
    exception: str | None = None
    traceback: str | None = None
    frames: list[FrameJson] | None = Field(default=None, description="The traceback as data, outermost frame first.")
    entity: str | None = None


class SpendingQuery(Strict):
    """Parameters of the spending of an entity."""

    per: Literal["intent", "day", "month"] = "day"
    zone: str = Field(default="UTC", max_length=100, description="whose days: a name of the IANA database")


class PeriodUsageJson(BaseModel):
    """The usage of a period: a day, a month, or an intent by its number."""

    period: str
    usage: UsageJson


class SpendingJson(BaseModel):
    """The usage of each period with any, oldest first."""

    items: list[PeriodUsageJson]


class Items(BaseModel):
    """A list."""

    items: list[Any]

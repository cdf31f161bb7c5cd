"""The actions that the loop has its driver carry out. A step has records and one action, which leads to an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.records import Observation, Record, Requested
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.file import File
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import Message, ToolCall, ToolChoice, ToolDefinition
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.value import Value
from cantrip_actors.terms.wrapper import Inquiry

if TYPE_CHECKING:
    from cantrip_actors.terms.own_gates import AgentRequest


class Action(Value, frozen=True):
    """An action for the loop's driver: one of the classes below.

    Each turn tests `type(action) is Ask`: `isinstance` takes three times as long for the class of a Struct.
    """


class Ask(Action, frozen=True):
    """Query the crystal. Answer with Replied, Failed or Posted."""

    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None


class Collect(Action, frozen=True):
    """Wait for the answer to a query that was posted, by its `handle`.

    Answer with Replied or Failed, or with Posted if it was posted again.
    """

    handle: Any
    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None


class Remember(Action, frozen=True):
    """Summarise the `messages` of the turns up to `last`, which will be folded. Answer with Remembered.

    With `instructions` a crystal writes the summary according to them, whatever the folding policy says.
    """

    messages: Sequence[Message]
    last: int
    instructions: str | None = None


class Run(Action, frozen=True):
    """Run a gate's function with checked arguments, in turn `turn_id`, and the steps after it. Answer with Observed.

    If it `checks`, run only the steps before the gate and the condition of `ask_first`. A refusal is an error; the
    result says why a person has to decide, or is None. With `seen`, the observation of a gate that has no function, run
    only the steps after it. `inquired` is the gate's question to a person, with the answer; it may ask again: answer
    with Inquired. `resource` is the last snapshot of the resources of the entity's gates, for a circle that has not
    opened them. If its outcome `is_unknown` after a crash, the gate's resource is described in its place.
    """

    gate: Gate
    call: ToolCall
    args: Mapping[str, Any]
    turn_id: str
    seen: Observation | None = None
    checks: bool = False
    inquired: Inquiry | None = None
    resource: Snapshot | None = None
    is_unknown: bool = False


class Contact(Action, frozen=True):
    """Carry out a gate of the runtime: send a message to another entity (`post`, `ask`), set a timer (`wake_me`), read
    an earlier result (`recall`), have the context folded (`compact`). Answer with Observed or, for `ask`, Questioned.
    """

    gate: Gate
    call: ToolCall
    args: Mapping[str, Any]
    turn_id: str


class Await(Action, frozen=True):
    """Wait for the episode of the intent with key `key` that was sent to entity `to`. Answer with Observed."""

    call: ToolCall
    to: str
    key: str


class Consult(Action, frozen=True):
    """Wait until a person has decided a request. Answer with Decide, Interrupt or Stopped."""

    request: Requested


class Answer(Action, frozen=True, array_like=True):
    """The result of a program's gate call; `closed` once `done` was called: the program ends without gates.

    Checkpoints hold it as an array.
    """

    value: Any
    is_error: bool = False
    closed: bool = False


class Program(NamedTuple):
    """A program, with the answers to its gate calls: enough to run it again to the same state.

    `undone` if it exceeded a limit, so that its changes to the sandbox were undone.
    """

    code: str
    variables: Mapping[str, Any] | None
    answers: tuple[Answer, ...] = ()
    undone: bool = False


class SnapshotAfter(NamedTuple):
    """A snapshot of a sandbox after its first `after` programs, or of a program after its first `after` answers."""

    after: int
    snapshot: Snapshot


class Compute(Action, frozen=True):
    """Run a program in the circle's sandbox. Answer with Called or Computed.

    `before` are the programs that the sandbox ran earlier, to rebuild it if needed, and `snapshots` are of the sandbox
    after some of them. With `answers` the program runs again up to the first call without an answer, or it continues
    from `midway`, a snapshot of itself after some of the answers.
    """

    code: str
    variables: Mapping[str, Any] | None
    before: Sequence[Program]
    answers: tuple[Answer, ...] = ()
    snapshots: Sequence[SnapshotAfter] = ()
    midway: SnapshotAfter | None = None


class Child(NamedTuple):
    """A child to cast: its cantrip, already carved (COMP-1), its request, and the parent's images that it names.

    Its parent does not wait for a `background` child; the answer of an `urgent` one cuts a query of its parent short.
    """

    cantrip: Cantrip
    request: AgentRequest
    images: tuple[File, ...] = NO_IMAGES
    background: bool = False
    urgent: bool = False


class Spawn(Action, frozen=True):
    """Cast these children at once, below turn `turn_id`, and wait for all of them. Answer with Returned.

    If they work in the background, do not wait: their ids are their outcomes. `started` maps the index of each child
    that was started before a crash to its entity id.
    """

    turn_id: str
    call: ToolCall
    children: tuple[Child, ...]
    started: Mapping[int, str] = {}  # nothing writes to it

    @property
    def is_background(self) -> bool:
        """Whether the children work in the background; all children of one call have the same setting."""
        return self.children[0].background


class Pause(Action, frozen=True):
    """Wait so many seconds for the next period, because the budget of this one is used up. Answer with Elapsed."""

    seconds: float
    ward: str


class Finish(Action, frozen=True):
    """The episode is over: give its outcome to the callers that wait."""

    outcome: Outcome


@final
class Step(Value, frozen=True):
    """The records to append to the loom, in order, and then the action to carry out."""

    records: list[Record]
    action: Action

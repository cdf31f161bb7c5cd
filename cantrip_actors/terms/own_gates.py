"""The gates without a function, apart from `done`: those that the runtime carries out (SPEC 4.4, 5.1).

`call_agent` and `call_agent_batch` are the runtime's, because only it can cast a child. So are `post` and `ask`, which
reach the entities whose names or ids match the patterns of `post.with_(to=["archive", "reviewer-*"])` (by default, no
entity), and `wake_me`, which sets a timer of the entity; `wake_me.with_(zone="Europe/Oslo")` sets the zone of local
times. A person answers a `question`; `question.with_(expires=3600)` returns an error observation if there is no answer
after an hour. `person` is the gate of a circle with medium="person": the text of an utterance without calls is a call
of it. `recall` reads the entity's own log: the part of a result that queries do not show. `compact` folds the context.

`BACKGROUND` are the gates of a circle whose children may work in the background: `call_agent` and `call_agent_batch`
with `wait=False`, and the gates by which an entity deals with such children.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field

from cantrip_actors.terms import own_gate_names as names
from cantrip_actors.terms.argument_model import GateArguments
from cantrip_actors.terms.done_gate import make_own_gate
from cantrip_actors.terms.gate import provide
from cantrip_actors.terms.json_schema import find_excess, find_schema_fault
from cantrip_actors.terms.ward import LEAST_MEMORY


def _check_answer_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema that a model wrote; raise ValueError for one that is not a schema, or is too large to check."""
    fault = None if schema is None else find_excess(schema) or find_schema_fault(schema, foreign=True)
    if fault is not None:
        raise ValueError(f"expected a JSON Schema: {fault}")
    return schema


class AgentRequest(GateArguments):
    """The request of `call_agent`: a child on a derived intent (SPEC 5.1). Fields that are left out have the parent's
    values.
    """

    intent: str = Field(min_length=1, description="what the child is to achieve")
    context: Any = Field(default=None, description="data for the child")
    system_prompt: str | None = Field(default=None, description="the child's call; left out: yours")
    gates: tuple[str, ...] | None = Field(default=None, description="the child's gates, some of yours; left out: all")
    crystal: str | None = Field(default=None, description="the name of the child's crystal")
    max_depth: int | None = Field(default=None, ge=0, description="how deep the child may delegate")
    max_turns: int | None = Field(default=None, ge=1, description="the child's turns")
    timeout: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="seconds that the child may take"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="tokens that the child may use")
    max_gate_calls: int | None = Field(default=None, ge=1, description="calls that one turn of the child may make")
    max_compute: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="seconds that a program of the child may compute"
    )
    max_memory: int | None = Field(default=None, ge=LEAST_MEMORY, description="bytes that such a program may use")
    max_output: int | None = Field(default=None, ge=1, description="characters kept of what such a program prints")
    remove_gates: tuple[str, ...] = Field(default=(), description="gates that the child is not to have")
    require_done_tool: bool | None = Field(default=None, description="whether only done ends the child")
    answer: Annotated[dict[str, Any] | None, AfterValidator(_check_answer_schema)] = Field(
        default=None, description="a JSON Schema that the child's answer fits; left out: as yours"
    )


class _Batch(GateArguments):
    intents: tuple[AgentRequest | str, ...] = Field(
        min_length=1,
        validation_alias=AliasChoices("intents", "requests"),
        description="a request (or just an intent) for each child",
    )


class _BackgroundOptions(GateArguments):
    wait: bool = Field(
        default=True,
        description="false: return the child's id at once; it works in the background, and its answer comes as a "
        "message when it ends",
    )
    urgent: bool = Field(
        default=False, description="with wait=false: whether the answer cuts your present query or wait short"
    )


class _BackgroundRequest(_BackgroundOptions, AgentRequest):
    pass


class _BackgroundBatch(_BackgroundOptions, _Batch):
    pass


class _Children(GateArguments):
    pass


class _OneChild(GateArguments):
    child: str = Field(min_length=1, description="the id of the child")


class _ChildMessage(_OneChild):
    message: str = Field(min_length=1, description="what it is told before its next step")


class _ChildEnd(_OneChild):
    why: str = Field(default="its parent does not need it any more", min_length=1, description="the reason")


class _ChildWait(GateArguments):
    children: tuple[str, ...] | None = Field(default=None, min_length=1, description="their ids; left out: all")
    first: bool = Field(default=False, description="whether to return as soon as one of them has ended")


class _Message(GateArguments):
    to: str = Field(min_length=1, description="the name of the entity, or its id")
    message: str = Field(min_length=1, description="what it is told")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the argument `schema` hides a deprecated method

    class _Question(GateArguments):
        text: str = Field(min_length=1, description="what the person is asked")
        schema: Annotated[dict[str, Any] | None, AfterValidator(_check_answer_schema)] = Field(  # type: ignore[assignment]
            default=None, description="a JSON Schema that the answer fits; left out: the answer is a text"
        )


class _Utterance(GateArguments):
    text: str = Field(min_length=1, description="the text that the person reads")


class _WakeMe(GateArguments):
    why: str = Field(min_length=1, description="what to do then: it is given to you as an intent")
    at: str | None = Field(None, description="the time, ISO 8601; without an offset it is local time")
    in_seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="instead of `at`: how many seconds from now"
    )


class _Compact(GateArguments):
    instructions: str | None = Field(default=None, min_length=1, description="what a summary of them has to keep")


class _Recall(GateArguments):
    call: str = Field(min_length=1, description="the id of the call")
    begin: int = Field(default=0, ge=0, alias="from", description="the first character, counted from 0")
    end: int | None = Field(
        default=None, ge=0, alias="to", description="where to stop; left out: the end of the result"
    )


CALL_AGENT = make_own_gate(
    names.CALL_AGENT,
    "Have a child entity achieve an intent; waits for it and returns its answer.",
    "delegate",
    AgentRequest,
)
CALL_AGENT_BATCH = make_own_gate(
    names.CALL_AGENT_BATCH,
    "Have several child entities work at once; returns their answers in order.",
    "delegate",
    _Batch,
)
POST = make_own_gate(
    names.POST,
    "Send a message to another entity, which takes it as an intent; returns at once.",
    "message",
    _Message,
    ("to",),
    ("way_out",),
)
ASK = make_own_gate(
    names.ASK,
    "Send a message to another entity, wait until it has dealt with it, and return its answer.",
    "message",
    _Message,
    ("to",),
    ("way_out", "untrusted_content"),
)
QUESTION = make_own_gate(
    names.QUESTION,
    "Ask a person, wait for the answer, and return it.",
    "question",
    _Question,
    ("expires", "unattended"),
)
PERSON = make_own_gate(
    names.PERSON,
    "Show a person a text, wait for the reply, and return it.",
    "person",
    _Utterance,
    ("expires", "unattended", "to"),
)
"""The gate that the text of an utterance calls, in a circle with medium="person"; the crystal is not offered it."""
WAKE_ME = make_own_gate(
    names.WAKE_ME,
    "Ask to be woken at a time, once: you are then given a new intent. Returns at once.",
    "message",
    _WakeMe,
    ("zone",),
)
COMPACT = make_own_gate(
    names.COMPACT, "Fold your older turns out of your context, before you go on.", "message", _Compact, risks=()
)
RECALL = make_own_gate(
    names.RECALL,
    "Read a part of an earlier result that was not shown whole, or is no longer shown: its characters from `from` to "
    "`to`.",
    "message",
    _Recall,
)
BACKGROUND_AGENT = make_own_gate(
    names.CALL_AGENT,
    "Have a child entity achieve an intent. Waits for it and returns its answer; with wait=false its id, at once.",
    "delegate",
    _BackgroundRequest,
)
BACKGROUND_BATCH = make_own_gate(
    names.CALL_AGENT_BATCH,
    "Have several child entities work at once. Returns their answers in order; with wait=false their ids, at once.",
    "delegate",
    _BackgroundBatch,
)
LIST_CHILDREN = make_own_gate(
    names.LIST_CHILDREN, "List your children that work in the background.", "message", _Children
)
MESSAGE_CHILD = make_own_gate(
    names.MESSAGE_CHILD,
    "Send a message to a child that works in the background; returns at once.",
    "message",
    _ChildMessage,
)
INTERRUPT_CHILD = make_own_gate(
    names.INTERRUPT_CHILD,
    "End a child that works in the background after its present step; what it did so far comes as its answer.",
    "message",
    _ChildEnd,
)
CANCEL_CHILD = make_own_gate(
    names.CANCEL_CHILD, "End a child that works in the background at once.", "message", _ChildEnd
)
WAIT_FOR_CHILDREN = make_own_gate(
    names.WAIT_FOR_CHILDREN,
    "Wait until children that work in the background have ended, and return their answers by their ids. Call it before "
    "done: children that still work then are ended.",
    "message",
    _ChildWait,
)
BACKGROUND = (
    BACKGROUND_AGENT,
    BACKGROUND_BATCH,
    LIST_CHILDREN,
    MESSAGE_CHILD,
    INTERRUPT_CHILD,
    CANCEL_CHILD,
    WAIT_FOR_CHILDREN,
)

provide(CALL_AGENT, CALL_AGENT_BATCH, POST, ASK, WAKE_ME, QUESTION, PERSON, COMPACT, RECALL, *BACKGROUND[2:])

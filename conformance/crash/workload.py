"""The workload: entities whose answers depend only on their intent, so that any two runs can be compared.

An intent is a label and a program: `beta: e ebp` says that the entity called beta speaks three times (the last time to
say that it is done), and which gates it calls each time:

    e   effect, which must not be run twice         p   probe, which may (idempotent)
    m   the same as e, in a thread                  g   a glance: its result fades from the context (ephemeral)
    b   two children at once (call_agent_batch)     c   a child that has children (call_agent)
    t   text and no gate                            x   a gate that is not there
    d   done, before the rest                       f   the provider refuses: the episode fails
    h   a hint: the entity is steered               i   the episode is interrupted
    a   the same as e, if a person allows it        q   a question to a person
    k   a child that asks a person
    w   the entity asks to be woken soon

What an entity is about to say follows from its context alone: its newest intent, and the step it named last. Each
effect has a key of its own, so an effect that is in the ledger twice was done twice. In a code circle the same letters
are lines of a program (`programs`).

What steers and interrupts an entity is in its inbox before `steer` and `interrupt` return. A gate that steers is run
again after a kill, so a hint may come twice. At an `i` the entity interrupts itself and says that it is `still` there,
for nothing; after a kill between the two it is interrupted without having said so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import anyio
import orjson

from cantrip_actors import Cantrip, Circle, Entity, Folding, Gate, Invocation, Message, Runtime, gate, scripted
from cantrip_actors.wards import max_depth, max_gate_calls, max_turns, require_done_tool
from conformance.crash.ledger import Ledger, of_kind

__all__ = [
    "CIRCLE",
    "FOLDS",
    "GATES",
    "HELD",
    "HINT",
    "LARGE",
    "MOVED",
    "MOVING",
    "NUDGED",
    "PLAIN",
    "SHORT",
    "SMALL",
    "STILL",
    "TINY",
    "WARDS",
    "Root",
    "World",
    "asking_child",
    "label_of",
    "pair",
    "parent",
    "where",
    "world",
]

INTENT = re.compile(r"([\w.+#]+): ([a-z ]+)")
STEP = re.compile(r"([\w.+#]+) step (\d+)")
HINT = "hint "
STILL = " still"


class World:
    """The target of all effects: the ledger of the current life, and its runtime once that is open."""

    ledger: Ledger
    runtime: Runtime
    opened: anyio.Event
    """Set when the runtime is open: `Runtime.open` may resume entities before it returns the runtime."""

    async def reach(self, label: str) -> Entity:
        """Return the handle of a running entity, by the label of one of its intents."""
        await self.opened.wait()
        loom, first = self.runtime.loom, label.partition("#")[0]
        begun = {
            entity_id: next(iter(of_kind("IntentGiven", loom.records(entity_id))), None)
            for entity_id in loom.entities()
        }
        (entity_id,) = [
            entity_id for entity_id, intent in begun.items() if intent is not None and label_of(intent.intent) == first
        ]
        return await self.runtime.resume(entity_id)

    def note(self, what: str, key: str, **fields: Any) -> None:
        """Write an event to the ledger."""
        self.ledger.write(what, key, **fields)

    def pay(self, label: str, step: int, messages: Sequence[Message]) -> None:
        """Write a payment: the hints in the entity's context, and a digest of the rest."""
        heard = [message.content for message in messages if _is_hint(message)]
        shown = [
            (
                message.role,
                message.content,
                message.tool_call_id,
                [(call.id, call.gate, call.args) for call in message.tool_calls],
            )
            for message in messages
            if not _is_hint(message)
        ]
        sees = blake2b(orjson.dumps(shown, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
        self.note("paid", f"{label}/{step}", heard=heard, sees=sees)


world = World()


def label_of(intent: str) -> str:
    """Return the label in an intent."""
    return intent.partition(":")[0]


def _is_hint(message: Message) -> bool:
    return message.role == "user" and str(message.content).startswith(HINT)


# ------------------------------------------------------------------------------------------------------------ the gates


@gate
async def effect(what: str) -> str:
    """Change the world, once."""
    world.note("begin", what)
    await anyio.lowlevel.checkpoint()
    world.note("done", what)
    return f"did {what}"


@gate
def mark(what: str) -> str:
    """Change the world, once, and wait for it in a thread."""
    world.note("begin", what)
    world.note("done", what)
    return f"did {what}"


@gate(idempotent=True)
async def probe(what: str) -> str:
    """Read the world."""
    world.note("begin", f"?{what}")
    await anyio.lowlevel.checkpoint()
    return f"saw {what}"


@gate(idempotent=True, ephemeral=True, visible_for=1)
async def glance(what: str) -> str:
    """Read the world; the result fades from the context."""
    world.note("begin", f"?{what}")
    return f"saw {what}"


@gate(idempotent=True)
async def hint(what: str) -> str:
    """Receive a hint from outside."""
    entity = await world.reach(what.partition("/")[0])
    await entity.steer(f"{HINT}{what}")
    return f"hinted {what}"


# --------------------------------------------------------------------------------------------------------- the crystals


def answer(context: Invocation) -> Mapping[str, Any]:
    """Return an entity's answer in this context, and write the payment to the ledger."""
    label, word, step = where(context.messages)
    if word == "f":
        return {"error": {"status": 400, "message": f"{label} is refused"}}
    world.pay(label, step, context.messages)
    calls = [call for n, letter in enumerate(word) if (call := _call(label, f"{step}{n}", letter)) is not None]
    usage = {"prompt_tokens": 10 + step, "completion_tokens": 5}
    return {"content": f"{label} step {step}", "tool_calls": calls, "usage": usage}


async def answer_later(context: Invocation) -> Mapping[str, Any]:
    """Return the same answer from a crystal that takes time."""
    await anyio.lowlevel.checkpoint()
    return answer(context)


async def answer_held(context: Invocation) -> Mapping[str, Any]:
    """Return the same answer from a crystal that interrupts its entity's episode at an `i`."""
    label, word, _ = where(context.messages)
    if word != "i":
        response = answer(context)
        for call in response.get(
            "tool_calls", ()
        ):  # numbered ids would depend on how often the entity had to be interrupted
            call["id"] = "/".join(map(str, (label, *call["args"].values())))
        return response
    await (await world.reach(label)).interrupt()
    world.note("held", label)
    return {"content": f"{label}{STILL}", "usage": {"prompt_tokens": 0, "completion_tokens": 0}}


def where(messages: Sequence[Message]) -> tuple[str, str, int]:
    """Return the label of the context's entity, the next word of its newest intent, and the step number."""
    label, words, step = "", list[str](), 0
    for message in messages:
        if message.role == "user" and (intent := INTENT.fullmatch(str(message.content))):
            label, words, step = intent[1], intent[2].split(), 0
        elif message.role == "assistant" and (said := STEP.match(message.content or "")) and said[1] == label:
            step = int(said[2]) + 1
    return label, words[step] if step < len(words) else "d", step


def _call(label: str, at: str, letter: str) -> dict[str, Any] | None:
    if letter == "t":
        return None
    if letter == "d":
        return {"gate": "done", "args": {"answer": f"{label} is done"}}
    if letter == "b":
        return {"gate": "call_agent_batch", "args": {"intents": pair(label, at)}}
    if letter == "c":
        return {"gate": "call_agent", "args": {"intent": parent(label, at)}}
    if letter == "k":
        return {"gate": "call_agent", "args": {"intent": asking_child(label, at)}}
    if letter == "q":
        return {"gate": "question", "args": {"text": f"{label}/{at}"}}
    if letter == "w":
        return {"gate": "wake_me", "args": {"in_seconds": 0.15, "why": f"{label}#woken: e p"}}
    name = GATES.get(letter, "nowhere")
    return {"gate": name, "args": {"what": f"{label}/{at}"}}


def pair(label: str, at: str) -> list[str]:
    """Return the intents of two children."""
    return [f"{label}.{at}a: e p", f"{label}.{at}b: pe"]


def parent(label: str, at: str) -> str:
    """Return the intent of a child that has children."""
    return f"{label}.{at}c: eb p"


def asking_child(label: str, at: str) -> str:
    """Return the intent of a child that asks a person."""
    return f"{label}.{at}k: aq p"


# --------------------------------------------------------------------------------------------------------- the cantrips

GATES = {"e": "effect", "m": "mark", "p": "probe", "g": "glance", "h": "hint", "a": "approved"}
CIRCLE: list[str | Gate] = ["done", "call_agent", "call_agent_batch", effect, mark, probe, glance]
WARDS = [max_turns(20), max_depth(2)]

PLAIN = Cantrip(scripted(answer, record=False), circle=Circle(CIRCLE, WARDS))
FOLDS = Cantrip(
    scripted(answer_later, record=False, name="waits"),
    circle=Circle(CIRCLE, [*WARDS, require_done_tool()]),
    folding=Folding(trigger_after_turns=2, keep_turns=1),
)
SHORT = Cantrip(scripted(answer, record=False), circle=Circle(CIRCLE, [max_turns(2)]))
HELD = Cantrip(
    scripted(answer_held, record=False, name="held"),
    circle=Circle([*CIRCLE, hint], [*WARDS, require_done_tool()]),
)


MOVING = tuple(
    Cantrip(scripted(answer, record=False), circle=Circle(CIRCLE, [*WARDS, max_gate_calls(n)]), name="mover")
    for n in (90, 91)
)
"""Two versions of one cantrip, which processes offer in turn: an entity moves after each kill."""


class Root(NamedTuple):
    """One entity of the workload. With `sends` it is long-lived; a fork is made from its turn `fork_at` (from 1)."""

    cantrip: Cantrip
    intent: str
    sends: tuple[str, ...] = ()
    fork_at: int | None = None
    fork: str = ""
    scheduled: str = ""
    """The trigger of its work (`timed`): a schedule for this "entity", one for a "cantrip", or its call of wake_me."""

    @property
    def label(self) -> str:
        """The label of its intent."""
        return label_of(self.intent)


TINY = (
    Root(PLAIN, "alpha: e b", fork_at=1, fork="alpha+fork: p"),
    Root(FOLDS, "keeper: m", ("keeper#2: p",)),
)
SMALL = (
    Root(PLAIN, "alpha: e em p", fork_at=2, fork="alpha+fork: e p"),
    Root(PLAIN, "beta: e ebp t"),
    Root(FOLDS, "gamma: e t x pg e ede"),
    Root(PLAIN, "delta: c p"),
    Root(SHORT, "short: e p e"),
    Root(PLAIN, "broken: e f"),
    Root(FOLDS, "keeper: e", ("keeper#2: p eb", "keeper#3: e f", "keeper#4: m p")),
)
NUDGED = (
    Root(HELD, "steered: eh p hhe", fork_at=2, fork="steered+fork: hp e"),
    Root(HELD, "halted: e i"),
    Root(HELD, "held: e", ("held#2: eh i", "held#3: p h e", "held#4: i", "held#5: eb")),
)
MOVED = (Root(MOVING[0], "mover: e", ("mover#2: p em", "mover#3: e f", "mover#4: pe p", "mover#5: m")),)
LARGE = (
    *SMALL,
    *(Root(PLAIN, f"wide{n}: e bb ep p", fork_at=1, fork=f"wide{n}+fork: eb") for n in range(4)),
    *(Root(FOLDS, f"long{n}: e p e p e p em x e p e") for n in range(4)),
    *(Root(PLAIN, f"kept{n}: e", tuple(f"kept{n}#{m}: ep b" for m in range(2, 6))) for n in range(4)),
)

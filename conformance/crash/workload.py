"""The workload: entities whose every word follows from their intent, so that any two runs can be compared.

An intent is a label and a program: `beta: e ebp` says that the entity called beta speaks three times (the last time to
say that it is done), and which gates it calls each time:

    e   effect, which must not be run twice         p   probe, which may (idempotent)
    m   the same as e, in a thread                  g   a glance: its result fades from the context (ephemeral)
    b   two children at once (call_agent_batch)     c   a child that has children (call_agent)
    t   text and no gate                            x   a gate that is not there
    d   done, before the rest                       f   the provider refuses: the episode fails

What an entity is about to say follows from its context alone: its newest intent, and the step it named last. Each
effect has a key of its own, so an effect that is in the ledger twice was done twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from cantrip_actors import Cantrip, Circle, Folding, Gate, Invocation, gate, scripted
from cantrip_actors.wards import max_depth, max_turns, require_done_tool
from conformance.crash.ledger import Ledger

__all__ = ["CANTRIPS", "LARGE", "SMALL", "TINY", "Root", "World", "label_of", "world"]

INTENT = re.compile(r"([\w.+#]+): ([a-z ]+)")
STEP = re.compile(r"([\w.+#]+) step (\d+)")


class World:
    """Where effects happen: the ledger of the life that is being lived."""

    ledger: Ledger

    def note(self, what: str, key: str) -> None:
        """Write it down."""
        self.ledger.write(what, key)


world = World()


def label_of(intent: str) -> str:
    """The label in an intent."""
    return intent.partition(":")[0]


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
    """Look at the world."""
    world.note("begin", f"?{what}")
    await anyio.lowlevel.checkpoint()
    return f"saw {what}"


@gate(idempotent=True, ephemeral=True, visible_for=1)
async def glance(what: str) -> str:
    """Look at the world, and forget it."""
    world.note("begin", f"?{what}")
    return f"saw {what}"


# --------------------------------------------------------------------------------------------------------- the crystals


def answer(context: Invocation) -> Mapping[str, Any]:
    """What an entity says in this context; paid for, and noted as such."""
    label, words, step = _where(context.messages)
    word = words[step] if step < len(words) else "d"
    if word == "f":
        return {"error": {"status": 400, "message": f"{label} is refused"}}
    world.note("paid", f"{label}/{step}")
    calls = [call for n, letter in enumerate(word) if (call := _call(label, f"{step}{n}", letter)) is not None]
    usage = {"prompt_tokens": 10 + step, "completion_tokens": 5}
    return {"content": f"{label} step {step}", "tool_calls": calls, "usage": usage}


async def answer_later(context: Invocation) -> Mapping[str, Any]:
    """The same, by a crystal that has to be waited for."""
    await anyio.lowlevel.checkpoint()
    return answer(context)


def _where(messages: Sequence[Any]) -> tuple[str, list[str], int]:
    """Whose context this is, the program of its newest intent, and the step that comes next."""
    label, words, step = "", list[str](), 0
    for message in messages:
        if message.role == "user" and (intent := INTENT.fullmatch(message.content)):
            label, words, step = intent[1], intent[2].split(), 0
        elif message.role == "assistant" and (said := STEP.match(message.content or "")) and said[1] == label:
            step = int(said[2]) + 1
    return label, words, step


def _call(label: str, at: str, letter: str) -> dict[str, Any] | None:
    if letter == "t":
        return None
    if letter == "d":
        return {"gate": "done", "args": {"answer": f"{label} is done"}}
    if letter == "b":
        children = [f"{label}.{at}a: e p", f"{label}.{at}b: pe"]
        return {"gate": "call_agent_batch", "args": {"intents": children}}
    if letter == "c":
        return {"gate": "call_agent", "args": {"intent": f"{label}.{at}c: eb p"}}
    name = {"e": "effect", "m": "mark", "p": "probe", "g": "glance", "x": "nowhere"}[letter]
    return {"gate": name, "args": {"what": f"{label}/{at}"}}


# --------------------------------------------------------------------------------------------------------- the cantrips

_GATES: list[str | Gate] = ["done", "call_agent", "call_agent_batch", effect, mark, probe, glance]
_WARDS = [max_turns(20), max_depth(2)]

PLAIN = Cantrip(scripted(answer, record=False), circle=Circle(_GATES, _WARDS))
FOLDS = Cantrip(
    scripted(answer_later, record=False, name="waits"),
    circle=Circle(_GATES, [*_WARDS, require_done_tool()]),
    folding=Folding(trigger_after_turns=2, keep_turns=1),
)
SHORT = Cantrip(scripted(answer, record=False), circle=Circle(_GATES, [max_turns(2)]))
CANTRIPS = (PLAIN, FOLDS, SHORT)


class Root(NamedTuple):
    """One entity that the workload asks for. With `sends` it lasts; a fork is made from its turn `fork_at` (from 1)."""

    cantrip: Cantrip
    intent: str
    sends: tuple[str, ...] = ()
    fork_at: int | None = None
    fork: str = ""

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
LARGE = (
    *SMALL,
    *(Root(PLAIN, f"wide{n}: e bb ep p", fork_at=1, fork=f"wide{n}+fork: eb") for n in range(4)),
    *(Root(FOLDS, f"long{n}: e p e p e p em x e p e") for n in range(4)),
    *(Root(PLAIN, f"kept{n}: e", tuple(f"kept{n}#{m}: ep b" for m in range(2, 6))) for n in range(4)),
)

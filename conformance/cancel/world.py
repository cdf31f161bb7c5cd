"""The entities of an example, and the journal of what their gates and crystals did.

Everything takes a multiple of half a second, so a cancellation at such a moment meets other events of that moment.

An intent is a plan and a tag, as in `nested x`. A tag names an episode: a child of `x` has the tag `x.1`. The plans:

- *quick*: `done` at once.
- *tidy*: a gate that cleans up for half a second when it is cancelled. Its effect comes last.
- *stubborn*: a gate that refuses cancellation for half a minute.
- *nested*: a child, its child, and there a tidy gate.
- *program*: a program in a Python sandbox calls the tidy gate, and computes for a while.
- *stream*: the crystal streams, and cleans up for half a second when it is cancelled.
- *ask*: a gate for which a person has to decide first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import anyio

from cantrip_actors import Cantrip, Circle, Invocation, ask_first, gate, scripted
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart
from cantrip_actors.wards import max_depth, max_turns
from supervisors.events import Event, Zombie

__all__ = ["PLANS", "SUBJECT", "Entry", "Journal", "World"]

PLANS = ("quick", "tidy", "stubborn", "nested", "program", "stream")
"""The plans of episodes that may be cancelled."""

SUBJECT = "x"
"""The tag of the episode that an example is about."""

WORK, CLEANUP, REFUSAL = 2.0, 0.5, 30.0
"""Seconds: of a tidy gate, of its cleanup, and of a stubborn gate."""
DELAY = 1.0
"""Seconds that a crystal takes for an answer."""

Kind = Literal["opened", "begun", "effect", "late", "zombie", "end"]


class Entry(NamedTuple):
    """One entry of the journal.

    `opened`: a runtime was opened on the loom. `begun`: a gate began. `effect`: a gate or a crystal did something;
    `late`: one did that refuses cancellation. `zombie`: an actor that does not end was reported. `end`: a caller
    learned that the episode is over; with an empty tag that the runtime has closed, and with it all episodes.
    """

    kind: Kind
    tag: str
    at: float


class Journal:
    """What happened, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def note(self, kind: Kind, tag: str) -> None:
        """Add an entry."""
        self.entries.append(Entry(kind, tag, anyio.current_time()))

    def note_actor(self, event: Event) -> None:
        """Add an entry for an actor that does not end."""
        if isinstance(event, Zombie):
            self.note("zombie", "")


class World:
    """The cantrips of one example, with a journal of its own."""

    def __init__(self) -> None:
        self.journal = journal = Journal()

        @gate
        async def tidy(tag: str) -> str:
            """Work, and clean up."""
            journal.note("begun", tag)
            try:
                await anyio.sleep(WORK)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(CLEANUP)
                journal.note("effect", tag)
            return "tidy"

        @gate
        async def stubborn(tag: str) -> str:
            """Refuse to be cancelled."""
            journal.note("begun", tag)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(REFUSAL)
            journal.note("late", tag)
            return "late"

        @gate
        async def pay(tag: str) -> str:
            """Pay."""
            journal.note("begun", tag)
            journal.note("effect", tag)
            return "paid"

        gates: list[Any] = ["done", "call_agent", tidy, stubborn, ask_first(pay)]
        wards = [max_turns(20), max_depth(2)]
        self._main = Cantrip(scripted(_answer, record=False), circle=Circle(gates, wards), name="main")
        self._program = Cantrip(
            scripted(_answer_program, record=False),
            circle=Circle(["done", tidy], [max_turns(20)], medium="python"),
            name="program",
        )
        self._stream = Cantrip(_Streaming(journal), circle=Circle(["done"], [max_turns(20)]), name="stream")
        self.cantrips = [self._main, self._program, self._stream]

    def get_cantrip(self, plan: str) -> Cantrip:
        """Return the cantrip that carries out a plan."""
        return {"program": self._program, "stream": self._stream}.get(plan, self._main)


def _read_intent(context: Invocation) -> tuple[str, str, int]:
    """Return the plan and the tag of the present episode, and how many observations it has."""
    began = max(n for n, message in enumerate(context) if message.role == "user")
    plan, _, tag = str(context[began].content).partition(" ")
    return plan, tag, sum(message.role == "tool" for message in context[began:])


def _call(name: str, **arguments: object) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": arguments}], "delay": DELAY}


async def _answer(context: Invocation) -> Mapping[str, Any]:
    plan, tag, observations = _read_intent(context)
    if plan == "quick" or observations:
        return _call("done", answer="ok")
    if plan == "ask":
        return _call("pay", tag=tag)
    if plan == "nested" and tag.count(".") < 2:
        return _call("call_agent", intent=f"nested {tag}.1")
    return _call("tidy" if plan == "nested" else plan, tag=tag)


async def _answer_program(context: Invocation) -> Mapping[str, Any]:
    plan, tag, _ = _read_intent(context)
    code = "done('ok')" if plan == "quick" else f"tidy('{tag}')\nsum(range(100_000))\ndone('ok')"
    return {"code": code, "delay": DELAY}


class _Streaming:
    """A crystal that streams its answer, one word each half second."""

    name = "streaming"

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def invoke(self, messages: Any, emit: Any) -> dict[str, Any]:
        plan, tag, _ = _read_intent(messages)
        emit(ItemStart("0", "message"))
        try:
            for _ in range(0 if plan == "quick" else 4):
                emit(ItemDelta("0", "word "))
                await anyio.sleep(WORK / 4)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(CLEANUP)
            if plan != "quick":
                self._journal.note("effect", tag)
        emit(ItemDone("0", FinalMessage("word", "agent")))
        return {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}

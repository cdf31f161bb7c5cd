"""Looms written by a runtime, for tests of readers: children, forks, folds, steering, errors, ephemeral results."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from typing import Any

from cantrip_actors import Call, Cantrip, Circle, Folding, Loom, Runtime, gate, scripted
from cantrip_actors.wards import max_depth, max_turns


@gate(ephemeral=True)
async def peek(path: str) -> str:
    """Look at a file that is too long to be kept in sight."""
    return f"the whole of {path}"


@gate
async def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


def says(*calls: tuple[str, dict[str, Any]], content: str | None = None) -> dict[str, Any]:
    return {
        "content": content,
        "tool_calls": [{"gate": name, "args": args} for name, args in calls],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 30, "cost": 0.01},
    }


def done(answer: Any) -> dict[str, Any]:
    return says(("done", {"answer": answer}))


@dataclass
class Told:
    """A loom, and the entities in it."""

    loom: Loom
    root: str
    child: str
    notes: str
    forks: list[str]
    """Three with the same intent, rewarded 1, 0 and 0, and one with another intent, rewarded 5."""


def cantrip(crystal: Any, **parts: Any) -> Cantrip:
    circle = Circle(
        gates=["done", "call_agent", "echo", peek, fail],
        wards=[max_turns(9), max_depth(2)],
    )
    return Cantrip(crystal, Call(system_prompt="Be <terse>."), circle, **parts)


async def told(url: str = "memory:") -> Told:
    """Run it all; the loom can be read after that too."""
    crystal = scripted(
        [
            says(("echo", {"text": "é </script> \u202e"}), ("fail", {"why": "no <b>bold</b>"}), content="I try."),
            # before, between and after a child: one utterance, three turns of the loom with the child's
            says(("peek", {"path": "a.txt"}), ("call_agent", {"intent": "look it up"}), ("echo", {"text": "after"})),
            says(("echo", {"text": "child"})),
            done("milk"),
            done({"found": ["milk", 5]}),
        ]
    )
    async with Runtime.open(url) as runtime:
        first = await runtime.cast(cantrip(crystal), "what do I need?", context={"list": [1, 2]})
        forks = []
        for intent, answer, reward in (
            ("think again", "a", 1.0),
            ("think again", "b", 0.0),
            ("think again", "c", 0.0),
            ("something else", "d", 5.0),
        ):
            one = await runtime.fork(first.thread[0].id, intent=intent, crystal=scripted([done(answer)]))
            await runtime.loom.reward(one.thread[-1].id, reward)
            forks.append(one.entity_id)
        await runtime.loom.reward(first.thread[-1].id, 0.25)
        await runtime.loom.reward(first.thread[-1].id, 0.5)
        many = scripted([*[says(("echo", {"text": str(n)})) for n in range(7)], done("one"), done("two")])
        entity = await runtime.invoke(cantrip(many, folding=Folding(3)), "keep my notes", name="notes")
        await entity.send("and another thing")
        await entity.stop()
    loom = runtime.loom
    return Told(loom, first.entity_id, loom.below(first.entity_id)[0], entity.id, forks)


@cache
def written_once() -> Told:
    """The same for all tests that only read."""
    return asyncio.run(told())

"""The end of the tree raises in each waiting call, whichever actor ended it (Z-04)."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, CantripError, Circle, Message, Runtime, RuntimeClosed, ask_first, gate, scripted
from cantrip_actors.crystal.query import Invocation, Query
from cantrip_actors.wards import max_depth, max_turns
from supervisors import Crash
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("Z-04")

PARTS = ["loom", "crystals", "servers", "entities", "registry", "mail", "scheduler"]
"""The children of the runtime's supervisor; "runtime" is the supervisor itself."""


@gate
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@gate(deferred=True)
async def order(item: str) -> str:
    """Order an item."""


async def rest(_context: Any) -> Any:
    """Answer after an hour."""
    return {**done(1), "delay": 3_600.0}


def make(policy: Any, *gates: Any, **circle: Any) -> Cantrip:
    return Cantrip(scripted(policy), circle=Circle(["done", *gates], [max_turns(9)], **circle))


QUERY = Query(Invocation([Message("user", "go")]))
RESTING = Cantrip(scripted(rest), circle=Circle(["done"], [max_turns(9)]), name="resting")
PAYING = make(lambda _context: say("pay", amount=3), ask_first(pay))
ORDERING = make(lambda _context: say("order", item="tea"), order)
TALKING = make(lambda _context: "What is your name?", medium="person")


def delegate(context: Any) -> Any:
    """Start a child in the background, and wait for it."""
    if context[-1].role == "user":
        return say("call_agent", intent="rest", wait=False)
    return say("wait_for_children")


PARENT = Cantrip(
    scripted(delegate),
    circle=Circle(["done", "background"], [max_turns(9), max_depth(1)]),
    child_crystal=RESTING.crystal,
)


async def read(feed: Any) -> None:
    async for _ in feed:
        pass


async def read_run(runtime: Runtime) -> None:
    async with runtime.stream(RESTING, "go") as run:
        await read(run.events())


@pytest.mark.parametrize("part", [*PARTS, "runtime"])
async def test_every_waiting_call_raises_when_an_actor_ends_the_tree(part: str) -> None:
    ended: set[str] = set()
    async with Runtime.open(cantrips=[RESTING]) as runtime:
        desk = await runtime.ensure("desk", RESTING)
        other = await runtime.ensure("other", RESTING)
        posted = await other.post("go", key="posted")
        started = await runtime.start(RESTING, "go")
        submitted = await runtime.submit("resting", "go", key="submitted")
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "cast": lambda: runtime.cast(RESTING, "go"),
            "cast with a key": lambda: runtime.cast(RESTING, "go", key="cast"),
            "query": lambda: runtime.ask(RESTING.crystal, QUERY),
            "stream": lambda: read_run(runtime),
            "send": lambda: desk.send("go"),
            "work": posted.episode,
            "result of work": posted.result,
            "receipt": lambda: runtime.receipt("other", "posted").result(),
            "episode": started.episode,
            "result": started.result,
            "submission": submitted.episode,
            "compact": other.compact,
            "approval": lambda: runtime.cast(PAYING, "go"),
            "deferred call": lambda: runtime.cast(ORDERING, "go"),
            "background": lambda: runtime.cast(PARENT, "go"),
            "person": lambda: runtime.cast(TALKING, "go"),
            "events": lambda: read(runtime.events()),
            "requests": lambda: read(runtime.requests(follow=True)),
        }

        async def wait(name: str) -> None:
            with suppress(CantripError):
                await calls[name]()
            ended.add(name)

        async with anyio.create_task_group() as tasks:
            for name in calls:
                tasks.start_soon(wait, name)
            await anyio.sleep(2)
            assert not ended
            supervisor = runtime._tree.writer.parent
            actor = supervisor if part == "runtime" else supervisor.child(part)
            for number in range(12):
                actor.exit(Crash(SystemError(f"bug {number}")))
                await anyio.sleep(0.1)
            await anyio.sleep(60)
            assert calls.keys() - ended == set()
        with pytest.raises(RuntimeClosed):
            await runtime.cast(RESTING, "go")

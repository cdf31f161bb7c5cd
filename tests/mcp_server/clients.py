"""A client of the SDK and a server in the test's own process, in either era of the protocol."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client

from cantrip_actors import Cantrip, Circle, Runtime, ask_first, gate, scripted
from cantrip_actors.gates import question
from cantrip_actors.mcp_server import by_name, make_server
from cantrip_actors.mcp_server.stdio import find_local
from cantrip_actors.wards import max_turns

ERAS = ("legacy", "2026-07-28")


@gate
async def nap(seconds: float) -> str:
    """Sleep."""
    await anyio.sleep(seconds)
    return "slept"


@gate
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"content": f"I call {name}", "tool_calls": [{"gate": name, "args": args}]}


def answer(context: Any) -> dict[str, Any]:
    """Do what the last message says: nap 1, pay 3, ask, loop; or say how many intents there were."""
    last = str(context[-1].content)
    intents = [str(one.content) for one in context if one.role == "user"]
    word, _, rest = intents[-1].partition(" ")
    if word == "loop":
        return call("nap", seconds=0)
    if context[-1].role != "user":
        return {"content": f"it said: {last}"}
    if word == "nap":
        return call("nap", seconds=float(rest))
    if word == "pay":
        return call("pay", amount=int(rest))
    if word == "ask":
        return call("question", text="Which one?", schema={"type": "integer"})
    return {"content": f"intent {len(intents)}: {last}", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def helper(name: str = "helper", crystal: Any = None) -> Cantrip:
    circle = Circle(["done", nap, ask_first(pay), question], [max_turns(4)])
    return Cantrip(crystal or scripted(answer), circle=circle, name=name)


@asynccontextmanager
async def connected(
    era: str, cantrips: Iterable[Cantrip] = (), *, runtime: Runtime | None = None, **options: Any
) -> AsyncIterator[tuple[Client, Runtime]]:
    """Connect a client to a server that offers cantrips."""
    offered = [*cantrips] or [helper()]
    if runtime is None:
        async with (
            Runtime.open("memory:", cantrips=offered) as opened,
            connected(era, offered, runtime=opened, **options) as both,
        ):
            yield both
        return
    named = by_name(offered)
    server = make_server(named, lambda context: find_local(runtime, named, context), runtime)
    async with Client(server, mode=era, **options) as client:
        yield client, runtime

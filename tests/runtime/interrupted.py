"""A program that Ctrl-C ends at a given moment, and what has to be in its loom afterwards.

`main` is the program: it prints a line for each thing that was acknowledged. A moment is a number of seconds, or of
lines of our own code: `0.02`, `line 5000`.
"""

import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any

import anyio

from cantrip_actors import BlockingRuntime, Cantrip, Circle, Message, Runtime, gate, scripted
from cantrip_actors.loom import open_store
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say

OWN = ("/cantrip_actors/", "/supervisors/")
INTENTS = ("m0", "m1", "m2")


@gate(idempotent=True)
async def work() -> str:
    """Work for a moment."""
    await anyio.sleep(0.002)
    return "worked"


@gate(idempotent=True)
def block() -> str:
    """Work in a thread."""
    time.sleep(0.01)
    return "worked"


def call_gate(name: str) -> Callable[[Any], Any]:
    return lambda context: say(name) if context[-1].role == "user" else done(context[-1].content)


def delegate(context: tuple[Message, ...]) -> Any:
    if context[-1].content == "child":
        return done("worked")
    return say("call_agent", intent="child") if context[-1].role == "user" else done(context[-1].content)


def make_cantrip(kind: str) -> Cantrip:
    """Return the cantrip of a kind of work; whatever it is, the answer is "worked"."""
    wards = [max_turns(5), max_depth(1)]
    if kind in ("python", "shell"):
        code = {"python": "done('worked')", "shell": "sleep 0.01; done worked"}[kind]
        circle = Circle(["done"], wards, medium=kind)  # type: ignore[arg-type]  # one of both
        return Cantrip(scripted(lambda _: {"code": code}), circle=circle, name="desk")
    policy = {"children": delegate, "gate": call_gate("block")}.get(kind, call_gate("work"))
    return Cantrip(scripted(policy), circle=Circle(["done", "call_agent", work, block], wards), name="desk")


def write(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def do_work(runtime: Runtime, kind: str, cantrip: Cantrip) -> None:
    """Do the work, and write what was acknowledged."""
    if kind == "idle":
        await anyio.sleep(0.1)
        return
    desk = await runtime.ensure("desk", cantrip)
    for intent in INTENTS:
        if kind == "post":
            await desk.post(intent, key=intent)
            write("posted", intent)
        else:
            write("answered", intent, (await desk.send(intent, key=intent)).result)
    write("cast", (await runtime.cast(cantrip, "go", key="cast")).result)


def do_work_blocking(runtime: BlockingRuntime, kind: str, cantrip: Cantrip) -> None:
    if kind == "idle":
        time.sleep(0.1)
        return
    desk = runtime.ensure("desk", cantrip)
    for intent in INTENTS:
        write("answered", intent, desk.send(intent, key=intent).result)
    write("cast", runtime.cast(cantrip, "go", key="cast").result)


def run(shape: str, backend: str, url: str) -> None:
    """Run the program of a shape: how the runtime is opened, and what work it does."""
    opening, kind = shape.split()
    cantrip = make_cantrip(kind)
    options: dict[str, Any] = {"cantrips": [cantrip]}

    async def enter() -> None:
        write("started")
        async with Runtime.open(url, **options) as runtime:
            await do_work(runtime, kind, cantrip)

    async def own() -> None:
        write("started")
        async with AsyncExitStack() as stack:
            runtime = await Runtime.open(url, **options)
            stack.push_async_callback(runtime.aclose)
            await do_work(runtime, kind, cantrip)

    ways: dict[str, Callable[[], Awaitable[None]]] = {"entered": enter, "owned": own}
    if opening in ways:
        anyio.run(ways[opening], backend=backend)
        return
    write("started")
    if opening == "blocking":
        with Runtime.blocking(url, backend=backend, **options) as runtime:
            do_work_blocking(runtime, kind, cantrip)
    else:
        do_work_blocking(Runtime.blocking(url, backend=backend, **options), kind, cantrip)  # closed at the exit


def trace(line: int) -> None:
    """Interrupt this program at the given line of our own code that its main thread runs."""
    count = 0

    def trace_call(frame: FrameType, event: str, argument: object) -> Any:  # as tracing calls it
        return trace_line if any(part in frame.f_code.co_filename for part in OWN) else None

    def trace_line(frame: FrameType, event: str, argument: object) -> Any:  # likewise
        nonlocal count
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                write("interrupted at", f"{frame.f_code.co_filename}:{frame.f_lineno}")
                os.kill(os.getpid(), signal.SIGINT)
        return trace_line

    sys.settrace(trace_call)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here, as in nohup
    shape, backend, url, moment = sys.argv[1:]
    write("begun")
    if moment.startswith("line "):
        trace(int(moment.removeprefix("line ")))
    try:
        run(shape, backend, url)
    finally:
        sys.settrace(None)
    write("ended")


async def check_loom(shape: str, url: str, acknowledged: list[list[str]]) -> None:
    """Check that a loom is sound, and that another process finds and continues all that was acknowledged."""
    with open_store(url, read_only=True) as store:
        assert not verify_loom(store).faults
    cantrip = make_cantrip(shape.split()[1])
    async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
        desk = await runtime.ensure("desk", cantrip)
        with anyio.fail_after(30):
            for words in acknowledged:
                if words[0] == "posted":
                    assert (await runtime.receipt(desk, words[1]).episode()).result == "worked"
                else:
                    assert words[-1] == "worked"
            for intent in INTENTS:  # what was under way continues, and has no interrupt as its result
                assert (await desk.send(intent, key=intent)).result == "worked"
            episode = await runtime.cast(cantrip, "go", key="cast")
            assert episode.result == "worked", (episode, runtime.loom.records(episode.entity_id))
        taken = [record.intent for record in runtime.loom.records(desk.id) if hasattr(record, "intent")]
        assert sorted(intent for intent in taken if intent) == [*INTENTS]


__all__ = ["check_loom", "main"]

"""A program that is cancelled at any moment leaves nothing behind, and the next one works, in every medium."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.circle import scratch
from cantrip_actors.circle.python import workers
from cantrip_actors.runtime.circles import program_actor
from cantrip_actors.wards import max_turns
from tests.exhaustive import FULL

PROGRAMS = {
    "python": ("x = 1\ny = look('a')\nx = 2", "look('b')\ndone(x)"),
    "javascript": ("x = 1; y = look('a'); x = 2", "look('b'); done(x)"),
    "shell": ("x=1; y=$(look a); x=2", "look b; done $x"),
}
SETTLES = 15.0
"""Seconds in which everything of a cancelled program has to be gone, on a busy machine."""

EXAMPLES = 60 if FULL else 2

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.rule("CIRCLE-9"),
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc"),
]


@gate
async def look(what: str) -> str:
    """Look at something, for a moment."""
    await anyio.sleep(0.01)
    return what


def make_cantrip(medium: Any, between: list[Any]) -> Cantrip:
    """Return a cantrip whose crystal answers the first program, then `between`, then the second program."""
    first, second = PROGRAMS[medium]
    answers = [{"code": first}, *between, {"code": second}]

    def answer(call: Any) -> Any:  # the last one again, if it was cut off
        return answers[min(sum(message.role == "assistant" for message in call.messages), len(answers) - 1)]

    return Cantrip(scripted(answer), circle=Circle(["done", look], [max_turns(9)], medium=medium))


async def cut_cast(medium: str, after: float | None) -> Any:
    """Cancel a cast after that many seconds, and return the answer of the next one."""
    async with Runtime.open() as runtime:
        with anyio.move_on_after(after):
            await runtime.cast(make_cantrip(medium, []), "go")
        return (await runtime.cast(make_cantrip(medium, []), "go")).result


async def cut_restore(medium: str, after: float | None) -> Any:
    """Close a runtime so many seconds after it began to restore a sandbox, and return the answer in the next one."""
    cantrip = make_cantrip(medium, [{"content": "half"}])
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/loom.db"
        async with Runtime.open(url) as runtime:
            await (await runtime.invoke(cantrip, "go", name="cut")).episode()
        async with Runtime.open(url) as runtime:
            entity = runtime.entity("cut", cantrip=cantrip)
            assert entity is not None
            with anyio.move_on_after(after):
                await entity.send("go on")
        async with Runtime.open(url) as runtime:
            entity = runtime.entity("cut", cantrip=cantrip)
            assert entity is not None
            return (await entity.send("go on")).result


def is_child(process: Path) -> bool:
    """Return whether this process has started that one."""
    with suppress(OSError):
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid()
    return False


def list_left() -> dict[str, int]:
    """Return the number of things that a sandbox may hold: processes, descriptors and folders."""
    workers.close()
    gc.collect()
    folder = scratch._own.path
    return {
        "processes": sum(map(is_child, Path("/proc").glob("[0-9]*"))),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "folders": 0 if folder is None else len(list(folder.iterdir())),
        "threads": sum(one.name.startswith("cantrip") for one in threading.enumerate()),
    }


def wait_for(holds: Callable[[], bool]) -> bool:
    ends = time.monotonic() + SETTLES
    while not holds() and time.monotonic() < ends:
        time.sleep(0.02)
    return holds()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("cut", [cut_cast, cut_restore])
@pytest.mark.parametrize("medium", PROGRAMS)
def test_a_program_that_is_cancelled_at_any_moment_leaves_nothing_behind(medium: str, cut: Any, backend: str) -> None:
    began = time.monotonic()
    assert str(anyio.run(cut, medium, None, backend=backend)) == "2"
    took = time.monotonic() - began
    before = list_left()  # what lasts as long as the process is made now

    @given(part=st.one_of(st.floats(0, 0.05), st.floats(0, 0.7)))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def cancel(part: float) -> None:
        assert str(anyio.run(cut, medium, part * took, backend=backend)) == "2"
        assert wait_for(lambda: all(count <= before[what] for what, count in list_left().items())), (
            list_left(),
            before,
        )

    cancel()


class Slow:
    """A medium that takes a while to open a sandbox."""

    name = engine = "slow"

    def __init__(self) -> None:
        self.opens = threading.Event()
        self.opened = self.left = 0

    def open(self, *_: Any) -> Slow:
        self.opens.set()
        time.sleep(0.05)
        self.opened += 1
        self.left += 1
        return self

    def close(self) -> None:
        self.left -= 1


async def test_a_sandbox_that_opens_while_its_entity_is_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(program_actor, "medium", lambda *_: slow)
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.cast, make_cantrip("python", []), "go")
        await anyio.to_thread.run_sync(slow.opens.wait)
        tasks.cancel_scope.cancel()
    await anyio.to_thread.run_sync(time.sleep, 0.1)
    assert slow.opened == 1
    assert slow.left == 0

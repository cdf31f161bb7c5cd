"""The runtime on uvloop, the event loop that uvicorn prefers where it is installed: here, what once failed on it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.loom import open_store
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.wards import max_depth, max_turns
from tests.http.test_events import test_a_client_that_reads_nothing_does_not_delay_a_shutdown
from tests.mcp.test_servers import test_a_server_that_does_not_start_is_one_line_of_the_log
from tests.runtime.spells import done, say

__all__ = [
    "test_a_client_that_reads_nothing_does_not_delay_a_shutdown",
    "test_a_server_that_does_not_start_is_one_line_of_the_log",
]

pytestmark = pytest.mark.real_time


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@gate
def block() -> str:
    """Work in a thread."""
    time.sleep(0.01)
    return "worked"


def ask_child(context: Any) -> Any:
    last = context[-1]
    if last.role != "user":
        return done(last.content)
    return say("call_agent", intent="child") if last.content == "parent" else say("block")


async def test_threads_children_programs_and_a_restart_work_as_on_asyncios_own_loop(tmp_path: Path) -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    wards = [max_turns(5), max_depth(1)]
    parent = Cantrip(scripted(ask_child), circle=Circle(["done", "call_agent", block], wards), name="parent")
    program = scripted(lambda _: {"code": "done(6 * 7)"})
    coder = Cantrip(program, circle=Circle(["done"], wards, medium="python"), name="coder")
    url = f"sqlite:{tmp_path / 'loom'}"
    for _ in range(2):  # the second time as the next process would
        async with Runtime.open(url, cantrips=[parent, coder]) as runtime:
            desk = await runtime.ensure("desk", parent)
            with anyio.fail_after(30):
                assert (await desk.send("parent")).result == "worked"
                assert (await runtime.cast(coder, "go")).result == 42
    with open_store(url, read_only=True) as store:
        assert not verify_loom(store).faults

"""A runtime keeps the connections of a crystal while it is in use, and closes them when it is not."""

from contextlib import asynccontextmanager

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Runtime
from cantrip_actors.crystal.query import AnsweringCrystal
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.crystals import limited, local
from cantrip_actors.runtime.crystals.crystal_actor import QUIET
from cantrip_actors.terms.messages import Response, ToolCall
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("R-33")


class Connecting(AnsweringCrystal):
    """A crystal that takes `seconds` for an answer, and notes when its connections are opened and closed."""

    name = "connecting"
    context_window = None

    def __init__(self, seconds=1.0):
        self.seconds = seconds
        self.notes = []

    async def answer_query(self, query):
        self.notes.append("query")
        await anyio.sleep(self.seconds)
        return Response(tool_calls=(ToolCall("1", "done", {"answer": "yes"}),))

    @asynccontextmanager
    async def keep_connections(self):
        self.notes.append("open")
        try:
            yield
        finally:
            self.notes.append("close")


def make_cantrip(crystal):
    return Cantrip(crystal, circle=Circle(["done"], [max_turns(3)]))


@pytest.mark.parametrize("wrap", [lambda crystal: crystal, lambda crystal: limited(crystal, deadline=500)])
async def test_connections_are_kept_until_the_crystal_was_not_asked_for_a_while(wrap):
    crystal = Connecting()
    cantrip = make_cantrip(wrap(crystal))
    async with Runtime.open() as runtime:
        await runtime.cast(cantrip, "go")
        await runtime.cast(cantrip, "go")
        assert crystal.notes == ["open", "query", "query"]
        await anyio.sleep(2 * QUIET)
        assert crystal.notes[3:] == ["close"]
        await runtime.cast(cantrip, "go")
        assert crystal.notes[4:] == ["open", "query"]
    assert crystal.notes[6:] == ["close"]


async def test_a_long_query_keeps_its_connections_to_the_end():
    crystal = Connecting(seconds=5 * QUIET)
    async with Runtime.open() as runtime:
        await runtime.cast(make_cantrip(crystal), "go")
        await anyio.sleep(QUIET / 2)
        assert crystal.notes == ["open", "query"]


@pytest.mark.real_time
async def test_the_turns_of_all_entities_use_one_connection():
    call = {"index": 0, "id": "c", "function": {"name": "done", "arguments": '{"answer": "yes"}'}}
    chunks = [{"choices": [{"delta": {"tool_calls": [call]}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    async with FaultyServer([Reply(events(*chunks, done=True))]) as server:
        cantrip = make_cantrip(local(server.url, "llama", tools="native"))
        async with Runtime.open() as runtime:
            for _ in range(3):
                assert (await runtime.cast(cantrip, "go")).result == "yes"
        assert (len(server.requests), server.connections) == (3, 1)

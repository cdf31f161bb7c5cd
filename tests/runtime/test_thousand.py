"""A thousand entities at once (250 in `make test`), each with a failing gate, a slow gate and a child that crashes.

Every one of them has to end with its answer, no task may be left, and the loom has to hold every turn of all of them.
"""

import asyncio

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, Episode, Invocation, Response, Runtime, gate, scripted
from cantrip_actors.wards import max_turns
from tests.exhaustive import EXHAUSTIVE

ENTITIES = 1000 if EXHAUSTIVE else 250
SLOW = 30.0
"""Virtual seconds that the slow gate takes."""


@gate
async def failing() -> str:
    """Raises."""
    raise ValueError("as it always does")


@gate
async def slow() -> str:
    """Takes its time."""
    await anyio.sleep(SLOW)
    return "at last"


class Bomb(Response):
    """A response that raises when the entity's own actor numbers its calls."""

    def with_ids(self, utterance: int) -> Response:
        raise ZeroDivisionError("a bug in the child")


class Crash:
    """The crystal of a child that crashes by a bug, not by an expected failure."""

    name = "crash"

    async def invoke(self, messages: object, tools: object, tool_choice: object) -> Response:
        await anyio.sleep(1.0)
        return Bomb(content="boom")


SCRIPT = (
    {"tool_calls": [{"gate": "failing", "args": {}}]},
    {"tool_calls": [{"gate": "slow", "args": {}}]},
    {"tool_calls": [{"gate": "call_agent", "args": {"intent": "crash", "crystal": "crash"}}]},
    {"tool_calls": [{"gate": "done", "args": {"answer": "survived"}}]},
)


def next_line(context: Invocation) -> object:
    return SCRIPT[sum(message.role == "assistant" for message in context)]


def spell() -> Cantrip:
    return Cantrip(
        crystal=scripted(next_line, record=False),
        crystals={"crash": Crash()},
        circle=Circle(gates=["done", "call_agent", failing, slow], wards=[max_turns(10)]),
    )


def tasks() -> int | None:
    """How many asyncio tasks there are; on trio a task that is left would keep the runtime from closing at all."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return None


async def cast_all(runtime: Runtime) -> list[Episode]:
    episodes: list[Episode] = []
    cantrip = spell()

    async def cast() -> None:
        episodes.append(await runtime.cast(cantrip, "survive"))

    async with anyio.create_task_group() as casts:
        for _ in range(ENTITIES):
            casts.start_soon(cast)
    return episodes


@pytest.mark.rule("D-011", "COMP-8", "CIRCLE-5", "LOOM-1", "LOOM-8", "ENTITY-2")
async def test_a_thousand_entities_reach_their_results_despite_crashes_and_failures(tmp_path):
    url = f"jsonl:{tmp_path / 'loom.jsonl'}"
    before, began = tasks(), anyio.current_time()
    with capture_logs() as reports:
        async with Runtime.open(url) as runtime:
            idle = tasks()
            episodes = await cast_all(runtime)
            took = anyio.current_time() - began
            await anyio.wait_all_tasks_blocked()
            assert idle is None or tasks() <= idle + 2, "only the actors of the two crystals may stay"
            check(runtime, episodes)
    lives = 2  # each child is started again from its log before it is given up
    assert SLOW <= took < 3 * (SLOW + lives), "they ran at the same time"
    assert tasks() == before
    crashes = sum("ZeroDivisionError" in repr(report) for report in reports)
    dropped = sum(report["count"] for report in reports if report["event"] == "reports were dropped")
    assert crashes + dropped >= ENTITIES, "a crash went unreported"


def check(runtime: Runtime, episodes: list[Episode]) -> None:
    """Every entity ended well, with every turn; every child crashed, and hangs where it was spawned."""
    loom = runtime.loom
    assert len({episode.entity_id for episode in episodes}) == ENTITIES
    assert all(episode.terminated and episode.result == "survived" for episode in episodes)
    assert len(loom.entities()) == 2 * ENTITIES
    for episode in episodes:
        turns = loom.turns(episode.entity_id)
        assert [turn.sequence for turn in turns] == [1, 2, 3, 4, 5]  # the child makes a seam: 4 utterances, 5 turns
        seen = [[(o.gate, o.is_error) for o in turn.gate_calls] for turn in turns]
        assert seen == [[("failing", True)], [("slow", False)], [], [("call_agent", True)], [("done", False)]]
        assert "a bug in the child" in turns[3].observation
        assert turns[-1].terminated
        (child,) = turns[2].children
        assert loom.header(child).parent_turn == turns[2].id
        assert loom.state(child) == "crashed"

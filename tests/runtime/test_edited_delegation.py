"""A person who allows a delegation with other arguments: the children get those, whatever crashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Runtime, ask_first, scripted
from cantrip_actors.gates import background
from cantrip_actors.testing import Process, every_crash_point, run_with_crashes
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("COMP-1")


async def child(context: Sequence[Any]) -> dict[str, Any]:
    """Answer with the intent, after a second; with a program, in a circle of programs."""
    intent = next(message.content for message in context if message.role == "user")
    answer = {"code": f"done({intent!r})"} if context[0].role == "system" else done(intent)
    return {**answer, "delay": 1.0}


def wait_for_child(context: Sequence[Any]) -> dict[str, Any]:
    return say("call_agent", intent="planned") if context[-1].role == "user" else done(context[-1].content)


def have_child_in_background(context: Sequence[Any]) -> dict[str, Any]:
    if context[-1].role == "user" and "[child" not in context[-1].content:
        return say("call_agent", intent="planned", wait=False)
    if context[-1].role == "tool" and context[-1].gate == "call_agent":
        return say("wait_for_children")
    return done(context[-1].content)


def write_program(context: Sequence[Any]) -> dict[str, Any]:
    return {"code": 'done(call_agent(intent="planned"))'}


@pytest.mark.parametrize(
    ("parent", "gates", "medium", "edited"),
    [
        (wait_for_child, [ask_first("call_agent")], "tools", {"intent": "allowed"}),
        (
            have_child_in_background,
            [ask_first(gate) if gate.name == "call_agent" else gate for gate in background],
            "tools",
            {"intent": "allowed", "wait": False},
        ),
        (write_program, [ask_first("call_agent")], "python", {"intent": "allowed"}),
    ],
    ids=["waited for", "in the background", "of a program"],
)
async def test_children_get_the_arguments_that_a_person_allowed(
    parent: Any, gates: Sequence[Any], medium: Any, edited: dict[str, Any]
) -> None:
    circle = Circle(["done", *gates], [max_turns(6), max_depth(1)], medium=medium)
    cantrip = Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child), name="parent")

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open("memory:", cantrips=[cantrip], recover="resume")) as runtime:
            entity = await runtime.invoke(cantrip, "go", name="x", key="begin")
            async with runtime.requests(follow=True) as requests, anyio.create_task_group() as tasks:

                async def decide() -> None:
                    async for request in requests:
                        await runtime.decide(request.id, "allow", args=edited, by="anna")

                tasks.start_soon(decide)
                result = (await entity.episode()).result
                tasks.cancel_scope.cancel()
            intents = [runtime.loom.first_intent(below).intent for below in runtime.loom.below(entity.id)]
            return result, intents

    for crash in [None, *(point for point in await every_crash_point(program) if point.write is not None)]:
        survived = await run_with_crashes(program, [] if crash is None else [crash])
        result, intents = survived.value
        assert intents == ["allowed"], crash
        assert "allowed" in str(result), crash

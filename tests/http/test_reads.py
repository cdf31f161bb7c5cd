"""What the service says about an entity does not depend on whether its log has a checkpoint."""

from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.http.shapes import entity_shape, tree_shape
from cantrip_actors.wards import max_turns


@gate
async def halve(number: int) -> int:
    """Return the half of an even number."""
    if number % 2:
        raise ValueError("it is odd")
    return number // 2


def policy(context: Any) -> dict[str, Any]:
    """Halve the number in the intent, have a child halve it, and answer."""
    asked = max(at for at, one in enumerate(context) if one.role == "user")
    number, said = str(context[asked].content), sum(one.role == "assistant" for one in context[asked:])
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    if said == 0:
        return {"content": "I halve it.", "tool_calls": [{"gate": "halve", "args": {"number": int(number)}}], **usage}
    if said == 1 and number == "4":
        return {"content": "Again.", "tool_calls": [{"gate": "call_agent", "args": {"intent": "2"}}], **usage}
    return {"content": f"done with {number}", **usage}


HALVER = Cantrip(scripted(policy), circle=Circle(["done", "call_agent", halve], [max_turns(9)]), name="halver")


@pytest.mark.rule("C-06", "HTTP-01")
async def test_an_entity_and_its_fork_read_the_same_from_a_checkpoint_and_from_the_whole_log() -> None:
    async with Runtime.open(cantrips=[HALVER], passivate_after=1.0) as runtime:
        loom = runtime.loom

        def read(entity_id: str) -> Any:
            shape = entity_shape(runtime, entity_id)
            return (
                shape,
                tree_shape(loom, entity_id),
                loom.usage(entity_id),
                loom.outcome(entity_id),
                loom.state(entity_id),
            )

        entity = await runtime.invoke(HALVER, "3", name="halver")
        for number in ("4", "5", "6"):
            await entity.send(number)
        fork = await runtime.start_fork(loom.turns(entity.id)[2].id, intent="8", lasting=True)
        await fork.episode()
        await anyio.sleep(60)
        known = [entity.id, fork.id]
        assert all(loom.checkpoint(one) is not None for one in known)
        from_checkpoint = [read(one) for one in known]
        for one in known:
            loom._store._checkpoints.pop(one)  # type: ignore[attr-defined]  # it may be deleted at any time
        assert [read(one) for one in known] == from_checkpoint
        shape = from_checkpoint[0][0]
        assert (shape["turns"], shape["errors"], shape["gates"]) == (
            len(loom.turns(entity.id)),
            2,
            ["call_agent", "halve"],
        )
        assert shape["episode"]["result"] == "done with 6"
        assert from_checkpoint[1][0]["turns"] == len(loom.turns(fork.id))

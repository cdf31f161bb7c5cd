"""During a close and after it, every door that begins, changes or sends something raises RuntimeClosed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Entity, Receipt, Runtime, RuntimeClosed, gate, scripted
from cantrip_actors.wards import max_turns
from tests.loom import postgres
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-14")


@gate
async def linger() -> str:
    """Take two seconds, also when it is cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(2)
    return "done"


def policy(context: Any) -> Any:
    return say("linger") if context[-1].content == "linger" else done("x")


CANTRIP = Cantrip(scripted(policy), circle=Circle(["done", linger], [max_turns(5)]), name="quick")


def list_doors(runtime: Runtime, entity: Entity, receipt: Receipt, turn: str) -> dict[str, Callable[[], Any]]:
    """Return a call of each door, by its name."""
    tenant = runtime.tenant("other")
    return {
        "cast": lambda: runtime.cast(CANTRIP, "x"),
        "start": lambda: runtime.start(CANTRIP, "x"),
        "invoke": lambda: runtime.invoke(CANTRIP, "x"),
        "ensure": lambda: runtime.ensure("new", CANTRIP),
        "ensure an old one": lambda: runtime.ensure("x", CANTRIP),
        "fork": lambda: runtime.fork(turn, intent="x"),
        "start_fork": lambda: runtime.start_fork(turn, intent="x"),
        "resume": lambda: runtime.resume(entity.id),
        "abandon": lambda: runtime.abandon(entity.id),
        "decide": lambda: runtime.decide("an id", "allow", by="ann"),
        "schedule": lambda: runtime.schedule("x", "go", every=60),
        "submit": lambda: runtime.submit("quick", "x"),
        "forget": lambda: runtime.forget(entity.id),
        "prune": lambda: runtime.prune("90d"),
        "check_writer": runtime.check_writer,
        "reward": lambda: runtime.loom.reward(turn, 1.0),
        "cast of a tenant": lambda: tenant.cast(CANTRIP, "x"),
        "send": lambda: entity.send("x"),
        "post": lambda: entity.post("x"),
        "steer": lambda: entity.steer("x"),
        "interrupt": lambda: entity.interrupt("x"),
        "stop": lambda: entity.stop("x"),
        "send with a cantrip": lambda: runtime.entity("x", cantrip=CANTRIP).send("x"),
        "cancel": lambda: receipt.cancel("x"),
        "withdraw": lambda: receipt.withdraw("x"),
    }


async def knock(doors: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Return what each door says that does not raise RuntimeClosed."""
    open_doors = {}
    for name, door in doors.items():
        try:
            with anyio.fail_after(1):
                answer = door()
                answer = await answer if inspect.isawaitable(answer) else answer
        except RuntimeClosed:
            continue
        except BaseException as problem:  # any other answer is what the test is for
            open_doors[name] = repr(problem)[:100]
        else:
            open_doors[name] = repr(answer)[:100]
    return open_doors


@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite", "postgres"])
async def test_every_door_raises_runtime_closed_during_a_close_and_after_it(kind: str, tmp_path: Path) -> None:
    urls = {"memory": lambda: "memory:", "postgres": postgres.fresh}
    url = urls.get(kind, lambda: f"{kind}:{tmp_path / 'loom'}")()
    runtime = await Runtime.open(url, cantrips=[CANTRIP])
    entity = await runtime.invoke(CANTRIP, "go", name="x")
    await entity.episode()
    receipt = await entity.post("again", key="k")
    await receipt.episode()
    doors = list_doors(runtime, entity, receipt, runtime.loom.turns(entity.id)[0].id)
    await runtime.start(CANTRIP, "linger")
    await anyio.sleep(0.5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.aclose)
        await anyio.sleep(0.2)
        assert await knock(doors) == {}
    assert await knock(doors) == {}


@pytest.mark.real_time
def test_every_blocking_door_raises_runtime_closed_after_the_close() -> None:
    with Runtime.blocking("memory:", cantrips=[CANTRIP]) as runtime:
        entity = runtime.invoke(CANTRIP, "go", name="x")
        entity.episode()
        receipt = entity.post("again", key="k")
        receipt.episode()
        turn = runtime.loom.turns(entity.id)[0].id
    open_doors = {}
    doors = list_doors(runtime, entity, receipt, turn) | {"reward": lambda: runtime.reward(turn, 1.0)}
    for name, door in doors.items():
        try:
            open_doors[name] = repr(door())[:100]
        except RuntimeClosed:
            continue
        except BaseException as problem:  # any other answer is what the test is for
            open_doors[name] = repr(problem)[:100]
    assert open_doors == {}

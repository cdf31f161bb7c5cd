"""`cantrip demo cluster`: of three nodes one is killed and one is frozen, and nothing is lost or doubled.

Each entity pays orders: its gate makes a file for each payment, as a payment service with idempotency keys would, and
refuses one that was made before. The demo posts orders as a client that knows no cantrip, kills one worker with SIGKILL
and freezes another one for twice its ttl. Then it counts payments, and the episodes that the loom recorded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from cantrip_actors import Call, Cantrip, Circle, Invocation, Loom, Runtime, gate
from cantrip_actors.wards import max_turns
from cantrip_demos.script import scripted_demo

__all__ = ["PAYER", "Cluster", "run_cluster"]

NODES: Final = 3
ENTITIES: Final = 60
ORDERS: Final = 3
"""Orders for each entity, after its first intent."""
BEAT, TTL = 0.25, 2.0
PACE: Final = 0.4
"""Seconds that each answer of the crystal takes."""
PATIENCE: Final = 90.0
FOLDER: Final = "CANTRIP_DEMO_PAYMENTS"


@gate
async def pay(order: str) -> str:
    """Pay an order. The payment service refuses a second payment for it."""
    try:
        await (anyio.Path(os.environ[FOLDER]) / order).touch(exist_ok=False)
    except FileExistsError:
        return f"{order} was paid before"
    return f"paid {order}"


def policy(context: Invocation) -> dict[str, Any]:
    """Return what the crystal says next: pay the order, until it is known to be paid."""
    last = context[-1]
    intent = next(message.content or "" for message in reversed(context) if message.role == "user")
    if not intent.startswith("pay ") or (last.role == "tool" and "paid" in (last.content or "")):
        return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}
    return {"tool_calls": [{"gate": "pay", "args": {"order": intent.removeprefix("pay ")}}]}


PAYER: Final = Cantrip(
    crystal=scripted_demo(policy, PACE),
    call=Call(system_prompt="You pay orders.", require_done_tool=True),
    circle=Circle(["done", pay], [max_turns(20)]),
    name="payer",
)
"""The cantrip that the workers serve."""


class Cluster(NamedTuple):
    """How the demo ended."""

    orders: int
    paid: int
    """Orders that were paid; the payment service pays none twice."""
    recorded: int
    """Orders whose episodes the loom recorded."""
    repeated: int
    """Orders that it recorded more than once, or for the wrong entity."""
    out_of_order: int
    """Entities that did not take their orders in the order of sending."""
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost or done twice."""
        return self.orders == self.paid == self.recorded and not (self.repeated or self.out_of_order)


def run_cluster(loom: str, folder: Path, say: Callable[[str], object]) -> Cluster:
    """Run the demo on an SQLite or Postgres loom: `say` a sentence as each thing happens; return how it ended."""
    os.environ[FOLDER] = str(folder)
    with ExitStack() as stack:
        return anyio.run(_run, loom, folder, stack, say)


async def _run(loom: str, folder: Path, stack: ExitStack, say: Callable[[str], object]) -> Cluster:
    tag = f"{os.getpid()}-{time.time_ns() % 10**6}"
    names = [f"payer-{n}-{tag}" for n in range(ENTITIES)]

    async def invoke(runtime: Runtime, name: str) -> None:
        await (await runtime.invoke(PAYER, "be ready", name=name)).episode()

    async with Runtime.open(loom, cantrips=[PAYER], passivate_after=0) as runtime, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(invoke, runtime, name)
    workers = [stack.enter_context(_Worker(f"w{n + 1}", loom)) for n in range(NODES)]
    async with Runtime.open(loom) as client:
        while sum(node.is_living for node in await client.cluster.nodes()) < NODES:  # noqa: ASYNC110  # others join
            await anyio.sleep(0.1)
        say(f"{NODES} workers are up: processes {', '.join(str(worker.pid) for worker in workers)}.")
        began = time.monotonic()
        receipts = []
        for n in range(ORDERS):
            for name in names:
                entity = client.entity(name)
                assert entity is not None, "it was invoked"
                receipts.append(await entity.post(f"pay {name}-{n}", key=f"{name}-{n}"))
        say(f"{len(receipts)} orders are posted to {ENTITIES} entities by a client that knows no cantrip.")
        await anyio.sleep(PACE)
        workers[0].kill()
        say(f"Worker w1 was killed with SIGKILL, when {_count(folder)} orders were paid.")
        workers[1].send_signal(signal.SIGSTOP)
        await anyio.sleep(2 * TTL)
        workers[1].send_signal(signal.SIGCONT)
        say(f"Worker w2 was frozen for {2 * TTL:g} s, twice its ttl, and continues; {_count(folder)} orders are paid.")
        with anyio.fail_after(PATIENCE):
            for receipt in receipts:
                await receipt.episode()
        seconds = time.monotonic() - began
        states = [f"{node.name} {'lives' if node.is_living else 'is dead'}" for node in await client.cluster.nodes()]
        say(f"All orders are done after {seconds:.1f} s. The nodes: {', '.join(states)}.")
        return _build_result(client.loom, [client.loom.named(name) or "" for name in names], names, folder, seconds)


def _build_result(loom: Loom, entities: list[str], names: list[str], folder: Path, seconds: float) -> Cluster:
    recorded: Counter[str] = Counter()
    wrong = 0
    for entity, name in zip(entities, names, strict=True):
        orders = _list_orders(loom, entity)
        recorded.update(orders)
        wrong += list(dict.fromkeys(orders)) != [f"{name}-{n}" for n in range(ORDERS)]
    repeated = sum(count - 1 for count in recorded.values())
    return Cluster(ENTITIES * ORDERS, _count(folder), len(recorded), repeated, wrong, round(seconds, 1))


def _list_orders(loom: Loom, entity: str) -> list[str]:
    """Return the orders of the episodes that an entity has ended."""
    orders: list[str] = []
    order: str | None = None
    for turn in loom.turns(entity):
        order = next((str((call.args or {})["order"]) for call in turn.tool_calls if call.gate == "pay"), order)
        if turn.terminated and order is not None:
            orders.append(order)
            order = None
    return orders


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


class _Worker(subprocess.Popen[bytes]):
    """A process of `cantrip worker`, which is killed when its `with` block is left."""

    def __init__(self, name: str, loom: str) -> None:
        options = [f"--name={name}", f"--beat={BEAT}", f"--ttl={TTL}", "--quiet"]
        cantrip = [sys.executable, "-m", "cantrip_actors.cli.main", "--log-level=warning"]
        command = [*cantrip, "worker", "cantrip_demos.cluster:PAYER", *options]
        super().__init__(command, env={**os.environ, "CANTRIP_LOOM": loom}, stdin=subprocess.DEVNULL)

    def __exit__(self, *why: object) -> None:
        self.kill()
        super().__exit__(*why)  # type: ignore[arg-type]

"""Nodes in real processes that are killed, frozen and asked to leave while mail arrives: nothing is lost or doubled.

`EXHAUSTIVE=1` kills 300 times; `make test` has the demo (`tests/cli/test_cluster.py`), which kills one and freezes one.
"""

import contextlib
import multiprocessing
import os
import random
import signal
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Held, Receipt, Runtime
from cantrip_actors.records.records import IntentGiven
from tests.exhaustive import EXHAUSTIVE
from tests.loom import postgres as servers
from tests.runtime.cluster_worker import TTL, run_worker, worker_cantrip

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(not EXHAUSTIVE, reason="it takes minutes: EXHAUSTIVE=1")]

KILLS = 300
ENTITIES, NODES = 40, 3
PACE = 0.02

_processes = multiprocessing.get_context("forkserver")


class Nodes:
    """Processes of nodes; every second one looks like one of another machine."""

    def __init__(self, url: str, ledger: Path) -> None:
        _processes.set_forkserver_preload(["tests.runtime.cluster_worker"])
        self._where = (url, str(ledger))
        self._number = 0
        self.running: list[BaseProcess] = []

    def start(self) -> None:
        self._number += 1
        machine = f"machine-{self._number}" if self._number % 2 else ""
        process = _processes.Process(target=run_worker, args=(*self._where, f"w{self._number}", machine, PACE))
        process.start()
        self.running.append(process)

    def kill_all(self) -> None:
        for process in self.running:
            process.kill()
            process.join()


async def disturb(nodes: Nodes, chance: random.Random) -> None:
    """Kill, freeze or drain one of the nodes, and start another in place of one that ends."""
    victim = chance.choice(nodes.running)
    assert victim.pid is not None
    what = chance.random()
    if what < 0.15:
        os.kill(victim.pid, signal.SIGSTOP)
        await anyio.sleep(chance.choice((0.5, 2)) * TTL)
        os.kill(victim.pid, signal.SIGCONT)
        return
    nodes.running.remove(victim)
    nodes.start()
    if what < 0.25:
        victim.terminate()
        await anyio.to_thread.run_sync(victim.join)
        assert victim.exitcode in (0, -signal.SIGTERM)  # it had not begun to serve
    else:
        victim.kill()
        victim.join()


async def play(url: str, ledger: Path, seed: int) -> None:
    chance, posted = random.Random(seed), {f"e{n}": [] for n in range(ENTITIES)}  # type: dict[str, list[str]]
    receipts: dict[str, Receipt] = {}
    spell = worker_cantrip(str(ledger), 0)
    async with Runtime.open(url, cantrips=[spell], passivate_after=0) as runtime:
        for name in posted:
            await (await runtime.invoke(spell, f"{name} begins", name=name)).episode()
    nodes = Nodes(url, ledger)
    try:
        for _ in range(NODES):
            nodes.start()
        async with Runtime.open(url) as client:
            kills = 0

            async def send() -> None:
                while kills < KILLS:
                    name = chance.choice(list(posted))
                    entity = client.entity(name)
                    assert entity is not None
                    known = posted[name]
                    if known and chance.random() < 0.1:
                        key = chance.choice(known)
                    else:
                        key = f"{name} {len(known)}"
                        known.append(key)
                    receipts[key] = await entity.post(key, key=key)
                    await anyio.sleep(0.01)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                while kills < KILLS:
                    await disturb(nodes, chance)
                    kills += 1
                    await anyio.sleep(chance.random() * 0.2)
            with anyio.move_on_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(free_quarantined, client)
                    for receipt in receipts.values():
                        await receipt.episode()
                    tasks.cancel_scope.cancel()
            late = [receipt for receipt in receipts.values() if receipt.state != "settled"]
            assert not late, await state_of(client, late)
            delivered = Counter(ledger.read_text(encoding="utf-8").splitlines())
            for name, keys in posted.items():
                records = client.loom.records(client.loom.named(name) or "")
                taken = [record.intent for record in records if isinstance(record, IntentGiven)]
                assert taken == [f"{name} begins", *keys]  # each once, in the order of sending
                assert all(delivered[key] <= 1 for key in keys)
            lost = sum(delivered[key] == 0 for keys in posted.values() for key in keys)
            assert lost <= 2 * KILLS  # gates that were about to begin when their node was killed
            assert list(client._tree.store.faults()) == []
    finally:
        nodes.kill_all()


async def free_quarantined(client: Runtime) -> None:
    """Lift quarantines: nodes die faster here than they get to the first record of what they have taken over."""
    while True:
        for one in await client.cluster.stranded():
            with contextlib.suppress(Held):  # it is free already
                await client.cluster.free(one.entity_id)
        await anyio.sleep(0.5)


async def state_of(client: Runtime, receipts: list[Receipt]) -> str:
    """Return what the loom says of nodes and of what they should run."""
    store: Any = client._tree.store
    told = [
        f"{one.key}: {one.state} {store.find_mail(one.entity_id, one.key)} {store.life(one.entity_id)} "
        f"{store.place(one.entity_id)} {list(map(type, store.records(one.entity_id)[-3:]))}"
        for one in receipts
    ]
    return f"{told} {await client.cluster.nodes()} {store.quarantined()} {store.unowned(99)}"


@pytest.mark.rule("N-10", "N-22", "N-23", "N-24", "N-26")
def test_nodes_that_die_freeze_and_leave_lose_and_double_nothing(tmp_path: Path) -> None:
    anyio.run(play, servers.fresh(), tmp_path / "ledger.txt", 1)

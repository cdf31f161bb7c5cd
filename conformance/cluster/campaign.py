"""One round of the campaign: nodes in processes are killed, frozen and drained while a client posts intents.

Every second node looks as if it ran on another machine, so that the others learn of its death only by its silence.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import anyio

from cantrip_actors import Held, Receipt, Runtime
from cantrip_actors.looms import IntentGiven, Record, open_store, verify_loom
from conformance.cluster.compare import Account, compare
from conformance.cluster.worker import TTL, Freezing, run_worker, worker_cantrip

__all__ = ["Round", "play"]

NODES: Final = 3
PACE: Final = 0.02
"""Seconds that a query takes."""
REPEATED: Final = 0.1
"""The share of posts that repeat an earlier key."""
PATIENCE: Final = 60.0
"""Seconds after the last kill within which every intent must be settled."""

_processes = multiprocessing.get_context("forkserver")


@dataclass
class Round:
    """The actions of one round, and the problems found afterwards."""

    seed: int
    kills: int = 0
    freezes: int = 0
    drains: int = 0
    posts: int = 0
    repeats: int = 0
    unknown: int = 0
    """Gates that were running when their node was killed."""
    longest: float = 0.0
    """The longest time, in seconds, from a post to the record that takes it."""
    wrong: list[str] = field(default_factory=list)


class Nodes:
    """The processes of the nodes."""

    def __init__(self, url: str, ledger: Path) -> None:
        _processes.set_forkserver_preload(["conformance.cluster.worker"])
        self._about = (url, str(ledger))
        self._number = 0
        self.running: list[BaseProcess] = []
        self._freezing: dict[BaseProcess, Freezing] = {}

    def start(self) -> None:
        self._number += 1
        machine = f"machine-{self._number}" if self._number % 2 else ""
        freezing = Freezing(_processes.Event(), _processes.Event())
        about = (*self._about, f"w{self._number}", machine, PACE, freezing)
        process = _processes.Process(target=run_worker, args=about)
        process.start()
        self.running.append(process)
        self._freezing[process] = freezing

    async def freeze(self, victim: BaseProcess, chance: random.Random) -> None:
        """Freeze a node at any moment, or inside a transaction, for half of its ttl, or for longer than that."""
        assert victim.pid is not None
        freezing, seconds = self._freezing[victim], chance.choice((0.5, 2, 5)) * TTL
        if chance.random() < 0.5:
            freezing.asked.set()
            await anyio.to_thread.run_sync(freezing.begun.wait, TTL)  # a node without work has no transaction
            freezing.asked.clear()
            freezing.begun.clear()
        os.kill(victim.pid, signal.SIGSTOP)
        await anyio.sleep(seconds)
        os.kill(victim.pid, signal.SIGCONT)

    def kill(self, victims: list[BaseProcess]) -> None:
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.join()
            self.running.remove(victim)


async def disturb(nodes: Nodes, chance: random.Random, done: Round) -> None:
    """Freeze or drain a node, or kill one, two or all of them; start others in place of ended ones."""
    victim, what = chance.choice(nodes.running), chance.random()
    if what < 0.15:
        done.freezes += 1
        await nodes.freeze(victim, chance)
    elif what < 0.25:
        done.drains += 1
        nodes.running.remove(victim)
        nodes.start()
        victim.terminate()
        await anyio.to_thread.run_sync(victim.join)
        if victim.exitcode not in (
            0,
            -signal.SIGTERM,
        ):  # negative: the signal itself, if the node had not begun to serve
            done.wrong.append(f"a node that was asked to leave ended with {victim.exitcode}")
    else:
        many = 1 if what < 0.85 else 2 if what < 0.95 else NODES
        victims = chance.sample(nodes.running, many)
        done.kills += many
        nodes.kill(victims)
        for _ in victims:
            nodes.start()


async def play(url: str, ledger: Path, seed: int, *, faults: int, entities: int, client_url: str = "") -> Round:
    """Play a round with this many kills and freezes on a fresh loom, and compare the posts with the results.

    The client reaches the loom by `client_url`, if it is given: through a pooler.
    """
    chance, done = random.Random(seed), Round(seed)
    posted: dict[str, list[str]] = {f"e{n}": [] for n in range(entities)}
    receipts: dict[str, Receipt] = {}
    sent: dict[str, float] = {}
    ledger.touch()
    worker = worker_cantrip(str(ledger), 0)
    async with Runtime.open(url, cantrips=[worker], passivate_after=0) as runtime:
        for name, keys in posted.items():
            keys.append(f"{name} begins")
            await (await runtime.invoke(worker, keys[0], name=name)).episode()
    nodes = Nodes(url, ledger)
    try:
        for _ in range(NODES):
            nodes.start()
        async with Runtime.open(client_url or url) as client:

            async def post() -> None:
                while done.kills + done.freezes < faults:
                    name = chance.choice(list(posted))
                    entity, keys = client.entity(name), posted[name]
                    assert entity is not None
                    is_repeated = len(keys) > 1 and chance.random() < REPEATED
                    key = chance.choice(keys[1:]) if is_repeated else f"{name} {len(keys)}"
                    if not is_repeated:
                        keys.append(key)
                        sent[key] = time.time()
                    receipts[key] = await entity.post(key, key=key)
                    done.posts += 1
                    done.repeats += is_repeated
                    await anyio.sleep(0.01)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post)
                while done.kills + done.freezes < faults:
                    await disturb(nodes, chance, done)
                    await anyio.sleep(chance.random() * 0.2)
            with anyio.move_on_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(free_quarantined, client)
                    for receipt in receipts.values():
                        await receipt.episode()
                    tasks.cancel_scope.cancel()
            late = [receipt for receipt in receipts.values() if receipt.state != "settled"]
            if late:
                done.wrong.append(f"not settled after {PATIENCE:g} s: {await describe(client, late)}")
            check(client, ledger, posted, sent, done)
    finally:
        nodes.kill(list(nodes.running))
    with open_store(url, read_only=True) as store:
        verified = verify_loom(store)
        if not verified.ok:
            done.wrong.append(f"the loom is damaged: {verified}")
    return done


def check(client: Runtime, ledger: Path, posted: dict[str, list[str]], sent: dict[str, float], done: Round) -> None:
    """Compare the posts with the loom and the ledger."""
    delivered = Counter(ledger.read_text(encoding="utf-8").splitlines())
    for name, keys in posted.items():
        entity_id = client.loom.named(name)
        assert entity_id is not None
        intents = [record for record in client.loom.records(entity_id) if isinstance(record, IntentGiven)]
        unknown = frozenset(
            str((call.args or {}).get("key"))
            for turn in client.loom.turns(entity_id)
            for call in turn.gate_calls
            if call.is_error and "outcome unknown" in call.content
        )
        sequences = [turn.sequence for turn in client.loom.turns(entity_id)]
        if sequences != list(range(1, len(sequences) + 1)):
            done.wrong.append(f"{name}: its turns do not follow one another: {sequences}")
        done.unknown += len(unknown)
        done.wrong += compare(name, Account(keys, [intent.intent for intent in intents], delivered, unknown))
        waits = (
            datetime.fromisoformat(intent.at).timestamp() - sent[intent.intent]
            for intent in intents
            if intent.intent in sent
        )
        done.longest = max(done.longest, *waits, 0.0)


async def free_quarantined(client: Runtime) -> None:
    """Lift quarantines: nodes die faster here than they reach the first record of entities that they took over."""
    while True:
        for entity in await client.cluster.stranded():
            with contextlib.suppress(Held):  # it is not quarantined any more
                await client.cluster.free(entity.entity_id)
        await anyio.sleep(0.5)


async def describe(client: Runtime, receipts: list[Receipt]) -> str:
    """Return the loom's state of entities that should have ended their episodes, and of the nodes."""
    store: Any = client._tree.store  # noqa: SLF001  # for people who look for the cause
    states = [
        f"{receipt.key}: {receipt.state} {store.find_mail(receipt.entity_id, receipt.key)} "
        f"{store.life(receipt.entity_id)} {store.place(receipt.entity_id)} "
        f"{[_word(record) for record in store.records(receipt.entity_id)[-12:]]}"
        for receipt in receipts[:5]
    ]
    return f"{len(receipts)}: {states} {await client.cluster.nodes()} {store.quarantined()} {store.unowned(99)}"


def _word(record: Record) -> str:
    shown = [getattr(record, name, None) for name in ("at", "key", "turn", "reason")]
    return " ".join([type(record).__name__, *(str(value) for value in shown if value)])

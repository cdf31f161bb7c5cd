"""A life: one process that works towards the end of the workload, from where the last life stopped.

The loom alone decides the next step of a life. It resumes each entity in the loom, and casts each one that is missing.
It sends each intent that is not recorded, perhaps again: no caller has received its outcome. So a life behaves like a
user's program that is restarted after a crash. Half of the lives let `Runtime.open` resume interrupted entities; the
other half resume each entity themselves.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import anyio

from cantrip_actors import Cantrip, CantripError, Entity, EntityEnded, Episode, LoomError, Quarantined, Runtime
from conformance.crash.asked import be_the_person
from conformance.crash.borders import watch
from conformance.crash.fate import Fate
from conformance.crash.ledger import Ledger, of_kind
from conformance.crash.programs import CANTRIPS
from conformance.crash.timed import wait_for_firing
from conformance.crash.workload import HELD, HINT, MOVING, TINY, Root, label_of, world

__all__ = ["RECOVERIES", "Life", "live", "warm_up", "work"]

Recover = Literal["list", "resume"]
RECOVERIES: Final[tuple[Recover, ...]] = ("list", "resume")


@dataclass(frozen=True)
class Life:
    """The orders of a process: the paths of its loom and its ledger, its workload, and when to die, if ever."""

    number: int
    url: str
    ledger: Path
    roots: tuple[Root, ...]
    recover: Recover = "list"
    dies_at: int | None = None
    freezes: bool = False
    """Whether the process freezes instead of dying."""


def live(life: Life) -> None:
    """Run the life in this process."""
    fate = Fate(life.dies_at, freezes=life.freezes)
    world.ledger = ledger = Ledger(life.ledger, life.number, fate)
    watch(ledger, fate)
    anyio.run(_live, life, ledger, fate)


def warm_up() -> None:
    """Run the smallest workload in this process, so that its forks need not import and compile again.

    The loom is in memory: nobody watches it, and no thread is left.
    """
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        fate = Fate()
        ledger = world.ledger = Ledger(Path(folder) / "ledger", 0, fate)
        anyio.run(_live, Life(0, "memory:", ledger.path, TINY), ledger, fate)
    gc.freeze()  # so that a fork does not copy what was imported and made


async def _live(life: Life, ledger: Ledger, fate: Fate) -> None:
    world.opened = anyio.Event()
    async with Runtime.open(life.url, cantrips=[*CANTRIPS, MOVING[life.number % 2]], recover=life.recover) as runtime:
        await work(runtime, life.roots, ledger)
    ledger.write("closed", points=fate.met)


async def work(runtime: Runtime, roots: tuple[Root, ...], ledger: Ledger) -> None:
    """Run all root entities concurrently to their ends."""
    world.runtime = runtime
    world.opened.set()
    async with anyio.create_task_group() as people:
        people.start_soon(be_the_person, runtime)
        async with anyio.create_task_group() as tasks:
            for root in roots:
                tasks.start_soon(_root, runtime, root, ledger)
        people.cancel_scope.cancel()


async def _root(runtime: Runtime, root: Root, ledger: Ledger) -> None:
    try:
        await _run_root(runtime, root, ledger)
    except LoomError as error:
        ledger.write("refused", root.label, came=str(error))


async def _run_root(runtime: Runtime, root: Root, ledger: Ledger) -> None:
    if root.scheduled:
        await _run_timed(runtime, root, ledger)
        return
    if root.sends:
        await _run_long_lived(runtime, root, ledger)
        return
    entity_id = await _cast(runtime, root, ledger)
    if root.fork_at is None:
        return
    turn = runtime.loom.turns(entity_id)[root.fork_at - 1]
    if turn.reward is None:
        await runtime.loom.reward(turn.id, 0.5)
    known = _find_entity(runtime, root.fork)
    if known is None:
        await _record_outcome(ledger, root.fork, lambda: runtime.fork(turn.id, intent=root.fork))
    else:
        await _resume_entity(runtime, known, root.fork, ledger)


async def _run_timed(runtime: Runtime, root: Root, ledger: Ledger) -> None:
    """Trigger the work of a root that a timer gives work to."""
    if root.scheduled == "cantrip":
        await wait_for_firing(
            runtime, root, ledger.path.parent, lambda intent: _find_entity(runtime, intent) is not None
        )
        await _cast(runtime, root, ledger)
        return
    await _run_long_lived(runtime, root._replace(sends=()), ledger)
    entity = runtime.entity(root.label)
    assert entity is not None
    (intent,) = root.sends
    await wait_for_firing(runtime, root, ledger.path.parent, lambda text: text in _intents(runtime, entity.id))
    await _drive(runtime, entity.id, intent, ledger)


async def _cast(runtime: Runtime, root: Root, ledger: Ledger) -> str:
    """Return the id of an entity that has ended, with its episode in the ledger."""
    entity_id = _find_entity(runtime, root.intent)
    if entity_id is not None:
        await _resume_entity(runtime, entity_id, root.intent, ledger)
        return entity_id
    entity = await runtime.start(root.cantrip, root.intent)
    await _record_outcome(ledger, root.intent, entity.episode)
    return entity.id


async def _resume_entity(runtime: Runtime, entity_id: str, intent: str, ledger: Ledger) -> None:
    try:
        entity = await runtime.resume(entity_id)
    except EntityEnded:  # ended in an earlier life, or earlier in this one
        return
    await _record_outcome(ledger, intent, entity.episode)


async def _run_long_lived(runtime: Runtime, root: Root, ledger: Ledger) -> None:
    entity = runtime.entity(root.label)
    if entity is None:
        entity = await runtime.invoke(root.cantrip, root.intent, name=root.label)
        await _record_outcome(ledger, root.intent, entity.episode)
    else:
        await _drive(runtime, entity.id, root.intent, ledger)
    for intent in root.sends:
        if intent in _intents(runtime, entity.id):
            await _drive(runtime, entity.id, intent, ledger)
        else:
            if root.cantrip is HELD:
                await entity.steer(f"{HINT}before {intent}")
            # A send that a kill interrupted may be in the inbox without a record yet: the key makes both one send.
            await _record_outcome(ledger, intent, partial(_send, runtime, entity, intent))


async def _send(runtime: Runtime, entity: Entity, intent: str) -> Episode:
    """Send an intent; lift the quarantine first if too many lives in a row died with the intent in the inbox."""
    try:
        return await entity.send(intent, key=intent)
    except Quarantined:
        await runtime.resume(entity.id)
        return await entity.send(intent, key=intent)


async def _drive(runtime: Runtime, entity_id: str, intent: str, ledger: Ledger) -> None:
    """Bring the episode of a recorded intent to its end; only the last one may still be running.

    A firing may give the entity its next intent at any moment, so the intents are read after the state, and after the
    outcome: if the last one is this one, both are about it.
    """
    is_at_work = runtime.loom.state(entity_id) in ("active", "waiting")
    if is_at_work and _intents(runtime, entity_id)[-1] == intent:
        entity = await runtime.resume(entity_id, cantrip=_version(runtime, entity_id))
        came = await _wait_for_outcome(entity.episode)
        if _intents(runtime, entity_id)[-1] == intent:
            ledger.write("ended", label_of(intent), came=came)


def _version(runtime: Runtime, entity_id: str) -> Cantrip | None:
    """Return the current version of an entity that moves between versions; None for other entities."""
    now = runtime.loom.header_in_force(entity_id).cantrip_id
    return next((version for version in MOVING if version.id == now), None)


async def _record_outcome(ledger: Ledger, intent: str, episode: Callable[[], Any]) -> None:
    """Wait for an episode, and write its outcome to the ledger."""
    ledger.write("ended", label_of(intent), came=await _wait_for_outcome(episode))


async def _wait_for_outcome(episode: Callable[[], Any]) -> str:
    """Wait for an episode, and return its outcome as the ledger has it."""
    try:
        ended: Episode = await episode()
    except LoomError:
        raise
    except CantripError as error:
        return f"{type(error).__name__}: {error}"
    return f"{ended.reason} {ended.ward or ''} {ended.result}"


def _find_entity(runtime: Runtime, intent: str) -> str | None:
    """Return the entity that was made for an intent. A fork's own intent is the first of its own records, too."""
    entities = [entity_id for entity_id in runtime.loom.entities() if _intents(runtime, entity_id)[:1] == [intent]]
    return entities[0] if entities else None


def _intents(runtime: Runtime, entity_id: str) -> list[str]:
    return [record.intent for record in of_kind("IntentGiven", runtime.loom.records(entity_id))]

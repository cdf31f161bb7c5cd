"""Reads of what another process changes meanwhile: it records the end of an entity, and then releases the lease."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, LoomError, Message, Runtime, ask_first, gate, scripted
from cantrip_actors.machine.project import Life
from cantrip_actors.wards import max_turns
from tests.loom.postgres import fresh
from tests.runtime.spells import cantrip, done, say


@gate(idempotent=True)
async def work(seconds: float) -> str:
    """Work for some seconds."""
    await anyio.sleep(seconds)
    return "worked"


def decide(context: tuple[Message, ...]) -> dict[str, object]:
    """Work for the seconds that the intent says."""
    last = context[-1]
    return say("work", seconds=float(last.content)) if last.role == "user" else done(last.content)


WORKS = Cantrip(scripted(decide), circle=Circle(["done", work], [max_turns(5)]), name="works")
ASKS = cantrip(decide, ask_first(work), name="asks")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


def replace_once(owner: Any, method: str, call: Callable[..., Any]) -> None:
    """Let the next call of a method be one of `call`, with the method as its first argument."""
    original = getattr(owner, method)

    def replaced(*args: Any, **more: Any) -> Any:
        setattr(owner, method, original)
        return call(original, *args, **more)

    setattr(owner, method, replaced)


async def lose(*_: object) -> None:
    raise LoomError("the loom cannot be reached")


async def test_a_caller_that_waited_long_gets_the_answer_of_an_entity_that_has_just_been_released(url: str) -> None:
    async with Runtime.open(url, stranded_after=5) as client:
        worker = await Runtime.open(url, cantrips=[WORKS])
        notes = await worker.ensure("notes", WORKS)
        inboxes, began = client._tree.inboxes, anyio.current_time()
        fail_stranded = inboxes._fail_stranded

        async def end_and_fail(*args: Any) -> None:
            if anyio.current_time() > began + 8:
                while client.loom.state(notes.id) != "idle":
                    await anyio.sleep(0.1)
                await worker.aclose()
            await fail_stranded(*args)

        inboxes._fail_stranded = end_and_fail  # type: ignore[method-assign]
        other = client.entity("notes")
        assert other is not None
        assert (await other.send("20")).result == "worked"


@pytest.mark.rule("Y-03")
@pytest.mark.parametrize("outage", [False, True])
async def test_a_caller_gets_the_answer_of_another_process_if_its_own_has_loaded_the_entity_since(
    url: str, *, outage: bool
) -> None:
    async with Runtime.open(url, cantrips=[WORKS]) as client:
        worker = await Runtime.open(url, cantrips=[WORKS])
        notes = await worker.ensure("notes", WORKS)
        await notes.post("2")  # it runs there
        own, tree, answers = client.get_entity("notes"), client._tree, list[object]()
        poll = tree.inboxes.poll

        async def poll_once_it_is_loaded(**how: bool) -> None:
            if tree.living.get(notes.id) is not None:
                await poll(**how)

        async def ask() -> None:
            answers.append((await own.send("0", key="first")).result)

        tree.inboxes.poll = poll_once_it_is_loaded  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(1)
            await notes.send("0")  # after that of the caller
            await worker.aclose()
            assert answers == []
            if outage:
                replace_once(tree.inboxes, "settle_from_log", lose)
            with anyio.fail_after(3):
                await own.send("0", key="second")
                while not answers:
                    await anyio.sleep(0.1)
    assert answers == ["worked"]


@pytest.mark.real_time
async def test_a_reader_waits_on_when_a_person_answers_while_it_looks_who_runs_the_entity() -> None:
    url = fresh()  # it is read in threads, and the other process works meanwhile
    async with Runtime.open(url, cantrips=[ASKS], passivate_after=0.1) as worker, Runtime.open(url) as client:
        entity = await worker.ensure("notes", ASKS)
        work = await entity.post("3")
        while not (requests := worker.requests()) or entity.held:
            await anyio.sleep(0.1)
        tree, looks = client._tree, threading.Event()

        def look(is_waiting: Callable[..., bool], entity_id: str) -> bool:
            looks.set()
            while tree.store.life(entity_id) is Life.WAITING:
                time.sleep(0.01)
            return is_waiting(entity_id)

        async def answer() -> None:
            while not looks.is_set():
                await anyio.sleep(0.01)
            await worker.decide(requests[0].id, "allow", by="anna")

        replace_once(tree, "is_waiting", look)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            other = client.entity("notes")
            assert other is not None
            assert (await other.episode()).result == "worked"
        assert (await work.result()).result == "worked"


@pytest.mark.real_time
async def test_the_note_of_an_intent_is_found_when_the_entity_takes_it_meanwhile() -> None:
    url = fresh()
    async with Runtime.open(url, cantrips=[WORKS]) as worker, Runtime.open(url) as client:
        entity = await worker.ensure("notes", WORKS)
        await entity.post("1")
        work, store = await entity.post("0", note="mine"), client._tree.store
        other = client.work(work.id)

        def wait_until_taken(pending: Callable[..., Any], *args: Any) -> Any:
            while (row := store.find_mail(entity.id, work.key)) is not None and row.taken is None:
                time.sleep(0.01)
            return pending(*args)

        replace_once(store, "pending", wait_until_taken)
        assert await client.read(lambda: other.note) == "mine"

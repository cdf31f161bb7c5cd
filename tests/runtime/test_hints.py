"""Hints between processes on one Postgres loom: they read at once the mail and ends of another process."""

from collections.abc import Callable
from typing import Any

import anyio
import psycopg
import pytest

from cantrip_actors import Cantrip, Circle, Node, Runtime, gate, scripted
from cantrip_actors.loom.postgres.postgres import PostgresStore
from cantrip_actors.runtime.mail import inboxes
from cantrip_actors.wards import max_turns
from tests.loom.postgres import fresh

pytestmark = pytest.mark.real_time

DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "here"}}]}
RARELY = 60.0
"""Seconds between two polls: anything that happens sooner was caused by a hint."""

LISTENERS = "select pid from pg_stat_activity where query like 'listen cantrip_%'"


def desk() -> Cantrip:
    return Cantrip(scripted(lambda _: DONE), circle=Circle(["done"], [max_turns(3)]), name="desk")


async def ask(url: str, query: str) -> list[Any]:
    def work() -> list[Any]:
        with psycopg.connect(url.partition("&schema=")[0], autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    return await anyio.to_thread.run_sync(work)


async def with_nodes() -> str:
    """The URL of a loom that a node has joined before, so that a runtime on it uses hints from the beginning."""
    url = fresh()
    async with Runtime.open(url, cantrips=[desk()], node=Node("w0")):
        pass
    return url


async def until(is_true: Callable[[], Any]) -> None:
    with anyio.fail_after(30):
        while not await is_true():
            await anyio.sleep(0.05)


@pytest.mark.rule("N-30", "N-37")
async def test_mail_reaches_another_node_and_its_answer_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    url, cantrip = await with_nodes(), desk()
    monkeypatch.setattr(inboxes, "POLL_INTERVAL", RARELY)
    async with Runtime.open(url, cantrips=[cantrip], node=Node("w1")) as worker:
        await (await worker.invoke(cantrip, "begin", name="desk-1")).episode()
        async with Runtime.open(url) as client:
            with anyio.fail_after(RARELY / 2):
                for n in range(10):
                    assert (await client.entity("desk-1").send(f"number {n}")).result == "here"


@pytest.mark.rule("N-31")
async def test_mail_and_answers_arrive_at_the_next_poll_when_no_hint_does(monkeypatch: pytest.MonkeyPatch) -> None:
    url, cantrip = await with_nodes(), desk()
    monkeypatch.setattr(PostgresStore, "can_hint", lambda _: False)
    monkeypatch.setattr(inboxes, "POLL_INTERVAL", 0.05)
    async with Runtime.open(url, cantrips=[cantrip], node=Node("w1")) as worker:
        await (await worker.invoke(cantrip, "begin", name="desk-1")).episode()
        async with Runtime.open(url) as client:
            assert (await client.entity("desk-1").send("and now?")).result == "here"
            assert await ask(url, LISTENERS) == []


@pytest.mark.rule("N-32")
async def test_a_listener_reconnects_by_itself_and_is_never_in_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    url, cantrip = await with_nodes(), desk()
    monkeypatch.setattr(inboxes, "POLL_INTERVAL", RARELY)
    async with Runtime.open(url, cantrips=[cantrip], node=Node("w1")) as worker:
        await (await worker.invoke(cantrip, "begin", name="desk-1")).episode()
        async with Runtime.open(url) as client:
            await client.entity("desk-1").send("are you there?")
            before = await ask(url, LISTENERS)
            assert len(before) == 2
            assert await ask(url, f"{LISTENERS} and xact_start is not null") == []
            await ask(url, f"select pg_terminate_backend(pid) from ({LISTENERS}) listening")
            await client.entity("desk-1").post("while nobody listens", key="lost")

            async def are_back() -> bool:
                return len(set(await ask(url, LISTENERS)) - set(before)) == 2

            await until(are_back)
            with anyio.fail_after(RARELY / 2):
                assert (await client.receipt("desk-1", "lost").episode()).result == "here"
                assert (await client.entity("desk-1").send("and again")).result == "here"


@pytest.mark.rule("N-08")
async def test_a_program_without_nodes_neither_listens_nor_notifies() -> None:
    url, cantrip = fresh(), desk()
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        await runtime.cast(cantrip, "go")
        assert await ask(url, LISTENERS) == []


@pytest.mark.rule("N-30", "N-64")
async def test_an_entity_handed_over_is_resumed_before_the_next_heartbeat() -> None:
    async def walk(context: Any) -> Any:
        taken = sum(message.role == "assistant" for message in context)
        call = {"gate": "done", "args": {"answer": "there"}} if taken == 40 else {"gate": "step", "args": {}}
        return {"tool_calls": [call], "delay": 0.05}

    @gate
    def step() -> str:
        """Take a step."""
        return "on"

    walker = Cantrip(scripted(walk), circle=Circle([step, "done"], [max_turns(60)]), name="walker")
    url, seldom = await with_nodes(), {"beat": RARELY / 2, "ttl": 2 * RARELY}
    async with Runtime.open(url, cantrips=[walker], node=Node("w1", **seldom)) as leaving:
        cast = await leaving.start(walker, "walk")
        async with Runtime.open(url, cantrips=[walker], node=Node("w2", **seldom)) as staying:
            await anyio.sleep(0.5)
            assert await leaving.drain()
            with anyio.fail_after(RARELY / 4):
                assert (await staying.find(cast.id).episode()).result == "there"


@pytest.mark.rule("N-30")
async def test_a_process_does_not_hear_its_own_hints() -> None:
    url, cantrip = await with_nodes(), desk()
    async with Runtime.open(url, cantrips=[cantrip], node=Node("w1")) as worker, Runtime.open(url) as client:
        ours, theirs = worker._tree.inboxes, client._tree.inboxes

        async def both_listen() -> bool:
            return ours.hints_received == theirs.hints_received == 1  # each looks once when it begins to listen

        await until(both_listen)
        for _ in range(5):
            ours.notify_processes()
            await anyio.sleep(0.1)
        assert (ours.hints_received, theirs.hints_received) == (1, 6)


@pytest.mark.rule("N-30")
async def test_hints_that_are_due_together_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url, cantrip = await with_nodes(), desk()
    sent: list[PostgresStore] = []
    hint = PostgresStore.hint

    def counted(store: PostgresStore) -> None:
        sent.append(store)
        hint(store)

    monkeypatch.setattr(PostgresStore, "hint", counted)
    async with Runtime.open(url, cantrips=[cantrip], node=Node("w1")) as worker:
        inboxes = worker._tree.inboxes

        async def can_tell() -> bool:
            return inboxes.hints is not None

        await until(can_tell)
        for _ in range(1000):
            inboxes.notify_processes()
        await anyio.sleep(0.5)
    assert 1 <= len(sent) <= 2

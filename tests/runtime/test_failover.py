"""A primary and a streaming standby, real servers: the primary is killed, the standby promoted, and nodes continue."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import anyio
import psycopg
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, LoomError, Node, Runtime, gate, scripted
from cantrip_actors.loom import Unsure, open_store, verify_loom
from cantrip_actors.records.records import IntentGiven
from cantrip_actors.wards import max_turns
from conformance.postgres import Server
from tests.loom import postgres
from tests.runtime.test_cluster import DESK

pytestmark = pytest.mark.real_time

STEPS = 12
ENTITIES = 4


class Pair:
    """A primary and its standby; `url` names both."""

    def __init__(self, stack: ExitStack) -> None:
        self.primary = stack.enter_context(Server())
        self.standby = stack.enter_context(Server(follows=self.primary))
        hosts = ",".join(quote(str(one.folder), safe="") for one in (self.primary, self.standby))
        self.url = f"postgresql:///postgres?host={hosts}&user=postgres&target_session_attrs=read-write"

    def is_synchronous(self) -> None:
        self.primary.run("alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    postgres.server()  # skips, or fails in CI, where no server is installed
    with ExitStack() as stack:
        yield Pair(stack)


def paying(paid: Counter[tuple[str, int]]) -> Cantrip:
    @gate
    async def pay(number: int, by: str) -> str:
        """Pay."""
        paid[by, number] += 1
        await anyio.sleep(0.05)
        return "paid"

    def say(messages: Any) -> Any:
        name = messages[0].content
        done = sum(message.role == "tool" for message in messages)
        if done == STEPS:
            return {"tool_calls": [{"gate": "done", "args": {"answer": name}}]}
        return {"tool_calls": [{"gate": "pay", "args": {"number": done, "by": name}}]}

    return Cantrip(scripted(say), circle=Circle(["done", pay], [max_turns(STEPS + 3)]), name="payer")


@pytest.mark.rule("N-69", "N-71")
async def test_entities_are_resumed_after_a_failover_and_pay_once(pair: Pair) -> None:
    pair.is_synchronous()
    paid: Counter[tuple[str, int]] = Counter()
    cantrip = paying(paid)
    async with Runtime.open(pair.url, cantrips=[cantrip], node=Node("w1", beat=0.2, ttl=5)) as runtime:
        entities = [await runtime.start(cantrip, f"p{n}", key=f"k{n}") for n in range(ENTITIES)]
        with anyio.fail_after(60):
            while len(paid) < ENTITIES * STEPS // 3:
                await anyio.sleep(0.02)
        await anyio.to_thread.run_sync(pair.fail_over)
        with anyio.fail_after(60):
            results = []
            for n, entity in enumerate(entities):
                results.append(await ended(runtime, entity.id))
                assert results[n].result == f"p{n}"
    assert set(paid.values()) == {1}
    for result in results:
        told = [one for turn in result.thread for one in turn.observations if one.gate == "pay"]
        unknown = [one for one in told if one.is_error]
        assert all("outcome unknown" in str(one.result) for one in unknown)
        assert len(told) == STEPS
    with open_store(pair.url, read_only=True) as store:
        assert verify_loom(store).ok


async def ended(runtime: Runtime, entity_id: str) -> Any:
    """Return the episode of an entity; repeat the wait when it fails because the server is away."""
    while True:
        try:
            return await runtime.get_entity(entity_id).episode()
        except LoomError:
            await anyio.sleep(0.2)


@pytest.mark.rule("N-73", "N-69")
async def test_an_entity_whose_last_records_were_lost_is_resumed_from_the_loom(pair: Pair) -> None:
    said = scripted(lambda messages: {"tool_calls": [{"gate": "done", "args": {"answer": messages[-1].content}}]})
    desk = Cantrip(said, circle=Circle(["done"], [max_turns(5)]), name="desk")
    async with Runtime.open(pair.url, cantrips=[desk], node=Node("w1", beat=0.2, ttl=5)) as runtime:
        entity = await runtime.invoke(desk, "begin", name="desk-1")
        await entity.episode()
        await entity.send("kept")
        await anyio.to_thread.run_sync(caught_up, pair)
        pair.standby.run("alter system set primary_conninfo = ''", "select pg_reload_conf()")
        await anyio.sleep(0.3)
        await entity.send("lost")
        await anyio.to_thread.run_sync(pair.fail_over)
        with anyio.fail_after(60):
            answer = await sent(runtime, "and now?")
        assert answer.result == "and now?"
        intents = [one.intent for one in runtime.loom.records(entity.id) if isinstance(one, IntentGiven)]
    assert intents == ["begin", "kept", "and now?"]


def caught_up(pair: Pair) -> None:
    pair.is_synchronous()
    pair.primary.run("create table caught_up (x int)")  # its commit waits for the standby
    pair.primary.run("alter system reset synchronous_standby_names", "select pg_reload_conf()")


async def sent(runtime: Runtime, text: str) -> Any:
    while True:
        try:
            return await runtime.entity("desk-1").send(text, key=text)
        except LoomError:
            await anyio.sleep(0.2)


@pytest.mark.rule("N-70")
async def test_a_node_warns_that_a_standby_is_not_synchronous(pair: Pair) -> None:
    desk = Cantrip(scripted([]), circle=Circle(["done"], [max_turns(5)]), name="desk")
    with capture_logs() as logs:
        async with Runtime.open(pair.url, cantrips=[desk], node=Node("w1")) as runtime:
            risks = await runtime.cluster.risks()
    assert any("no standby is synchronous" in risk for risk in risks)
    assert any("fsync is off" in risk for risk in risks)
    assert set(risks) <= {one["event"] for one in logs if one["log_level"] == "warning"}
    pair.is_synchronous()
    async with Runtime.open(pair.url) as runtime:
        assert not any("standby" in risk for risk in await runtime.cluster.risks())


@pytest.mark.rule("N-76")
async def test_a_node_has_four_connections() -> None:
    url = postgres.fresh()
    async with Runtime.open(f"{url}&application_name=counted", node=Node("w1"), cantrips=[DESK]) as one:
        entity = await one.invoke(DESK, "work", name="x")
        await entity.episode()
        async with Runtime.open(url) as sender:
            assert (await (await sender.entity("x").post("work")).episode()).result == "work"
        with psycopg.connect(postgres.server()) as admin:
            query = "select count(*) from pg_stat_activity where application_name = 'counted'"
            assert admin.execute(query).fetchone() == (4,)


@pytest.mark.rule("N-72")
@pytest.mark.parametrize("is_kept", [False, True], ids=["not kept", "kept"])
async def test_an_entity_is_resumed_from_its_records_when_the_connection_is_lost_in_a_commit(
    monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    async with Runtime.open(postgres.fresh(), node=Node("w1"), cantrips=[DESK]) as runtime:
        store, lost = runtime._tree.store, []
        transact = store._transact

        def losing(work: Any, *expected: Any) -> Any:
            if lost or not store._look_for_nodes():
                return transact(work, *expected)
            lost.append(1)
            if is_kept:
                transact(work, *expected)
            raise Unsure("the connection was lost while this was being committed")

        entity = await runtime.invoke(DESK, "work")
        await entity.episode()
        monkeypatch.setattr(store, "_transact", losing)
        assert (await entity.send("work")).result == "work"
        assert lost
        assert verify_loom(store).ok


@pytest.mark.rule("N-73")
async def test_a_lease_that_a_failover_restores_is_released() -> None:
    url = postgres.fresh()
    async with Runtime.open(url, cantrips=[DESK]) as program:
        entity = await program.invoke(DESK, "work", name="x")
        await entity.episode()
    async with (
        Runtime.open(url, node=Node("w1", beat=0.5, ttl=2), cantrips=[DESK]) as runtime,
        Runtime.open(url) as sender,
    ):
        with open_store(url) as store:  # a standby may not know that it was released
            store.claim(entity.id, (await sender.cluster.nodes())[0].id, 60)
        with psycopg.connect(postgres.server(), autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where pid <> pg_backend_pid() and backend_type = 'client backend'"
            )
        with anyio.fail_after(20):
            assert (await (await sender.entity("x").post("again")).episode()).result == "again"
        assert runtime.cluster.is_ready


@pytest.mark.rule("N-71")
async def test_entities_of_a_server_with_a_full_disk_wait_for_room_and_pay_once() -> None:
    postgres.server()  # skips, or fails in CI, where no server is installed
    with Server() as server:
        paid: Counter[tuple[str, int]] = Counter()
        cantrip = paying(paid)
        async with Runtime.open(server.url, cantrips=[cantrip], node=Node("w1", beat=0.2, ttl=5)) as runtime:
            entities = [await runtime.start(cantrip, f"p{n}", key=f"k{n}") for n in range(ENTITIES)]
            with anyio.fail_after(60):
                while len(paid) < ENTITIES * 3:
                    await anyio.sleep(0.02)
            await anyio.to_thread.run_sync(server.run, *FULL_DISK)
            with anyio.fail_after(30), pytest.raises(LoomError, match="Make room on the server's disk"):
                await runtime.start(cantrip, "refused", key="refused")
            await anyio.sleep(1)
            before = sum(paid.values())
            await anyio.sleep(0.5)
            assert sum(paid.values()) == before
            await anyio.to_thread.run_sync(server.run, "drop trigger no_room on cantrip.records")
            with anyio.fail_after(60):
                assert [(await ended(runtime, one.id)).result for one in entities] == [f"p{n}" for n in range(ENTITIES)]
        assert set(paid.values()) == {1}
        with open_store(server.url, read_only=True) as store:
            assert verify_loom(store).ok


NO_ROOM = "raise exception using errcode = 'disk_full', message = 'could not extend file'"
FULL_DISK = (
    f"create function cantrip.refuse() returns trigger language plpgsql as $$ begin {NO_ROOM}; end $$",
    "create trigger no_room before insert on cantrip.records execute function cantrip.refuse()",
)
"""Statements after which records are refused as by a server whose disk is full."""

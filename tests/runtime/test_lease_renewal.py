"""Leases in Postgres, which expire by time alone: a busy event loop does not lose them."""

import time

import psycopg
import pytest

from cantrip_actors import Cantrip, Circle, Node, Runtime, gate, scripted
from cantrip_actors.loom import Held, open_store
from cantrip_actors.loom.stores.nodes import NodeInfo
from cantrip_actors.runtime.loom import lease_renewal, loom_writer
from cantrip_actors.wards import max_turns
from tests.loom import postgres as servers

pytestmark = pytest.mark.real_time

LEASE = 0.9


@gate
async def block(seconds: float) -> str:
    """Block the event loop, as a mistake would."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "blocked"


def blocker() -> Cantrip:
    def answers(context: list) -> dict:
        if context[-1].role == "user":
            return {"tool_calls": [{"gate": "block", "args": {"seconds": float(context[-1].content)}}]}
        return {"content": "done"}

    return Cantrip(scripted(answers), circle=Circle(["done", block], [max_turns(5)]), name="blocker")


def is_held(runtime: Runtime, entity_id: str) -> bool:
    try:
        runtime.resume(entity_id)
    except Held:
        return True
    return False


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loom_writer, "LEASE", LEASE)


@pytest.mark.rule("N-04", "N-13")
def test_a_gate_that_blocks_the_loop_for_long_costs_no_lease() -> None:
    url, spell = servers.fresh(), blocker()
    with Runtime.blocking(url) as first, Runtime.blocking(url, cantrips=[spell]) as second:
        entity = first.start(spell, f"{4 * LEASE}")
        until = time.monotonic() + 3 * LEASE
        while time.monotonic() < until:
            assert is_held(second, entity.id)
            time.sleep(0.2)
        assert entity.result().result == "done"


@pytest.mark.rule("N-04")
def test_a_loop_that_stays_blocked_loses_its_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    url, spell = servers.fresh(), blocker()
    monkeypatch.setattr(lease_renewal.LeaseRenewal.__init__, "__kwdefaults__", {"stall": 0.1})
    with Runtime.blocking(url) as first, Runtime.blocking(url, cantrips=[spell]) as second:
        entity = first.start(spell, f"{6 * LEASE}")
        while is_held(second, entity.id):
            time.sleep(0.1)
        assert second.find(entity.id).result().result == "done"
        with pytest.raises(Exception, match="lease"):
            entity.result()


@pytest.mark.rule("N-02")
def test_holders_without_leases_are_forgotten() -> None:
    url, spell = servers.fresh(), blocker()
    schema = url.rpartition("=")[2]
    with psycopg.connect(servers.server(), autocommit=True) as server:
        for _ in range(2):
            with Runtime.blocking(url) as runtime:
                runtime.cast(spell, "0")
            assert server.execute(f"select count(*) from {schema}.holders").fetchone() == (1,)
            server.execute(f"update {schema}.holders set until = until - make_interval(days => 1, mins => 1)")


@pytest.mark.rule("N-02")
async def test_a_dead_node_is_listed_for_a_day() -> None:
    url = servers.fresh()
    schema = url.rpartition("=")[2]
    with psycopg.connect(servers.server(), autocommit=True) as server:
        with open_store(url) as store:
            store.join("dead", 10, NodeInfo("dead", 1))
        server.execute(f"update {schema}.holders set until = clock_timestamp() - interval '23 hours'")
        async with Runtime.open(url, node=Node("one")) as runtime:
            assert [one.name for one in await runtime.cluster.nodes()] == ["dead", "one"]
        server.execute(f"update {schema}.holders set until = clock_timestamp() - interval '25 hours'")
        async with Runtime.open(url, node=Node("two")) as runtime:
            assert [one.name for one in await runtime.cluster.nodes()] == ["two"]

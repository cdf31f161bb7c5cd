"""Two servers on one loom: what one accepts for an entity of the other is taken there, and both stream it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.http.serving import Served, served
from tests.loom import postgres

pytestmark = [pytest.mark.real_time, pytest.mark.rule("HTTP-20")]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return postgres.fresh() if request.param == "postgres" else f"sqlite:{tmp_path / 'loom.db'}"


@asynccontextmanager
async def two_servers(url: str) -> AsyncIterator[tuple[Served, Served, str]]:
    """Yield the server that runs the long-lived entity "bob", another server, and the entity's id."""
    async with served(url=url) as one, served(url=url) as two:
        begun = await one.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob"}, 201)
        yield one, two, begun["entity_id"]


async def wait_for_state(on: Served, state: str) -> dict[str, Any]:
    with anyio.fail_after(20):
        while (entity := await on.get("entities/bob"))["state"] != state:
            await anyio.sleep(0.05)
    return dict(entity)


async def test_an_intent_is_taken_by_the_holder_and_answered_by_the_other(url: str) -> None:
    async with two_servers(url) as (one, two, entity):
        told = await two.post("entities/bob/send", {"intent": "from two", "wait": 20}, 200)
        assert told["result"] == "you said: from two"
        assert one.runtime.get_entity(entity).loaded
        assert not two.runtime.get_entity(entity).loaded


async def test_a_steering_message_is_taken_by_the_holder(url: str) -> None:
    async with two_servers(url) as (one, two, entity):
        await one.post("entities/bob/send", {"intent": "turns 3 0.8"}, 202)
        await wait_for_state(two, "active")
        await two.post("entities/bob/steer", {"text": "psst"}, 202)
        await wait_for_state(two, "idle")
        steered = [record.text for record in one.runtime.loom.records(entity) if hasattr(record, "text")]
        assert steered == ["psst"]


async def test_an_interrupt_is_taken_by_the_holder(url: str) -> None:
    async with two_servers(url) as (one, two, _entity):
        await one.post("entities/bob/send", {"intent": "nap 60"}, 202)
        await wait_for_state(two, "active")
        await two.post("entities/bob/interrupt", {"why": "lunch", "now": True}, 202)
        assert (await wait_for_state(one, "idle"))["episode"]["reason"] == "interrupted"


async def test_a_stop_ends_the_entity_where_it_runs(url: str) -> None:
    async with two_servers(url) as (one, two, entity):
        await one.post("entities/bob/send", {"intent": "nap 60"}, 202)
        await wait_for_state(two, "active")
        with anyio.fail_after(20):
            await two.ask("DELETE", "entities/bob?reason=enough", 204)
        assert (await one.get(f"entities/{entity}"))["over"]
        assert not one.runtime.get_entity(entity).loaded


async def test_a_decision_is_taken_by_the_holder(url: str) -> None:
    async with two_servers(url) as (one, two, entity):
        await one.post("entities/bob/send", {"intent": "pay 3"}, 202)
        with anyio.fail_after(20):
            while not (found := (await two.get("requests?entity=bob"))["items"]):
                await anyio.sleep(0.05)
        await two.post(f"requests/{found[0]['id']}", {"decision": "allow", "args": {"amount": 2}}, 200)
        assert (await wait_for_state(one, "idle"))["episode"]["result"] == "it said: paid 2"
        assert (await one.post(f"requests/{found[0]['id']}", {"decision": "deny"}, 409))["decision"] == "allow"
        assert not two.runtime.get_entity(entity).loaded


async def test_the_other_server_can_neither_resume_nor_abandon_it(url: str) -> None:
    async with two_servers(url) as (one, two, entity):
        await one.post("entities/bob/send", {"intent": "nap 60"}, 202)
        await wait_for_state(two, "active")
        for action in ("resume", "abandon"):
            refused = await two.post(f"entities/bob/{action}", {}, 409)
            assert (refused["type"], refused["entity_id"]) == ("urn:cantrip:held", entity)
            assert refused["holder"] in refused["detail"]


async def test_both_servers_stream_the_same_durable_events(url: str) -> None:
    async with two_servers(url) as (one, two, entity):
        found: dict[str, list[tuple[str, str]]] = {}

        async def read(name: str, on: Served) -> None:
            events = await on.events(f"entities/{entity}/events", "0")
            found[name] = [(event["id"], event["event"]) for event in events if "id" in event]

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, "one", one)
                tasks.start_soon(read, "two", two)
                await two.post("entities/bob/send", {"intent": "turns 2 0.1", "wait": 20}, 200)
                await one.ask("DELETE", "entities/bob", 204)
        assert found["one"] == found["two"]
        assert [kind for _, kind in found["one"]] == [
            *("entity", "turn", "episode", "intent", "turn", "turn", "turn", "episode", "end"),
        ]


@pytest.mark.rule("HTTP-08")
async def test_twenty_posts_with_one_key_to_both_make_one_entity(url: str) -> None:
    async with served(url=url) as one, served(url=url) as two:
        answers: list[httpx.Response] = []

        async def post(on: Served) -> None:
            body = {"cantrip": "echo", "intent": "hi"}
            answers.append(await on.ask("POST", "casts", 201, json=body, headers={"idempotency-key": "k"}))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(post, (one, two)[number % 2])
        assert len({one.headers["location"] for one in answers}) == 1
        assert len(one.runtime.loom.entities()) == 1


@pytest.mark.rule("HTTP-08")
async def test_of_many_puts_of_one_name_to_both_the_first_alone_makes_the_entity(url: str) -> None:
    async with served(url=url) as one, served(url=url) as two:
        for name in ("ann", "ben", "cem"):
            statuses: list[int] = []

            async def make_entity(on: Served, name: str, statuses: list[int]) -> None:
                answer = await on.ask("PUT", f"entities/{name}", json={"cantrip": "echo"})
                statuses.append(answer.status_code)

            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(make_entity, (one, two)[number % 2], name, statuses)
            assert sorted(statuses) == [200] * 5 + [201]

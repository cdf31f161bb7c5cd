"""A service on a loom on a server that takes long to answer: no statement is sent from the event loop's thread.

A request that waits for the server then delays no entity and no event stream.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from cantrip_actors import Loom
from tests.http.serving import Served, echo, in_process, served, token
from tests.loom import postgres
from tests.loom.statements import Watched, watch_statements

pytestmark = [pytest.mark.real_time, pytest.mark.rule("N-13")]

ENTITY = "entities/keeper"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return watch_statements(monkeypatch)


async def begin(service: Served, intent: str = "hello", **more: Any) -> dict[str, Any]:
    """Make a long-lived entity that is called keeper."""
    given = {"cantrip": "echo", "intent": intent, "name": "keeper", **more}
    made: dict[str, Any] = await service.post("entities", given)
    return made


async def unload(service: Served) -> None:
    entity = service.runtime.entity("keeper")
    assert entity is not None
    entity.unload()
    with anyio.fail_after(10):
        while entity.loaded:
            await anyio.sleep(0.01)


async def request_of(service: Served) -> dict[str, Any]:
    """Return a request that waits for a person."""
    await service.post("entities", {"cantrip": "echo", "intent": "pay 3", "name": "payer"})
    with anyio.fail_after(10):
        while not (open_ones := (await service.get("requests"))["items"]):
            await anyio.sleep(0.05)
    found: dict[str, Any] = open_ones[0]
    return found


async def test_the_threads_of_the_application_stay_free_while_a_hundred_requests_wait_for_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    read_page = Loom.page

    def wait(*args: Any, **more: Any) -> Any:
        answers.wait(30)
        return read_page(*args, **more)

    async with in_process([echo()]) as on:
        monkeypatch.setattr(Loom, "page", wait)
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(on.get, "entities")
            await anyio.sleep(1)
            with anyio.move_on_after(5):
                await anyio.to_thread.run_sync(lambda: None, abandon_on_cancel=True)
                answers.set()
            is_free = answers.is_set()
            answers.set()
    assert is_free


Use = Callable[[Served], Awaitable[Callable[[], Awaitable[Any]]]]
"""Prepares requests to a service, and returns what sends them."""


async def begin_entities(service: Served) -> Any:
    async def use() -> None:
        await service.post("casts", {"cantrip": "echo", "intent": "hello"}, 201, headers={"idempotency-key": "a"})
        await service.post("casts", {"cantrip": "echo", "intent": "hello"}, 201, headers={"idempotency-key": "a"})
        await service.post("casts", {"cantrip": "echo", "intent": "hello", "wait": 10}, 200)
        await service.post("submissions", {"cantrip": "echo", "intent": "hello"}, 202)
        made = await begin(service, wait=10)
        await service.post(f"turns/{made['last_turn']}/fork", {"intent": "else", "wait": 10}, 200)

    return use


async def begin_more_than_a_token_may(service: Served) -> Any:
    async def use() -> None:
        headers = service.as_token("few")
        for _ in range(3):
            await service.post("casts", {"cantrip": "echo", "intent": "hello", "wait": 10}, 200, headers=headers)

    return use


async def look_at_entities(service: Served) -> Any:
    await begin(service, wait=10)
    await request_of(service)
    await unload(service)

    async def use() -> None:
        for path in ("cantrips", "entities", ENTITY, "entities/payer", f"{ENTITY}/turns", f"{ENTITY}/tree"):
            await service.get(path)
        await service.get("entities/nobody", 404)

    return use


async def send_to_an_entity(service: Served) -> Any:
    await begin(service, wait=10)

    async def use() -> None:
        key = {"idempotency-key": "k"}
        await service.post(f"{ENTITY}/send", {"intent": "more"}, 202, headers=key)
        await service.post(f"{ENTITY}/send", {"intent": "more"}, 202, headers=key)
        await service.get(f"{ENTITY}/receipts/k")
        await service.post(f"{ENTITY}/send", {"intent": "again", "wait": 10}, 200)
        await service.ask("DELETE", f"{ENTITY}/receipts/k", 409)

    return use


async def control_an_entity(service: Served) -> Any:
    await begin(service, "nap 60")

    async def use() -> None:
        await service.ask("POST", f"{ENTITY}/steer", 202, json={"text": "s"}, headers={"idempotency-key": "s"})
        await service.ask("POST", f"{ENTITY}/interrupt", 202, json={"now": True}, headers={"idempotency-key": "i"})
        await service.ask("POST", f"{ENTITY}/abandon", 409)
        await service.ask("POST", f"{ENTITY}/resume", 202)
        await service.ask("DELETE", ENTITY, 204)

    return use


async def decide_a_request(service: Served) -> Any:
    asked = await request_of(service)

    async def use() -> None:
        await service.get("requests?entity=payer")
        for _ in range(2):
            await service.post(f"requests/{asked['id']}", {"decision": "allow"}, 200, headers={"idempotency-key": "d"})

    return use


async def read_the_loom(service: Served) -> Any:
    made = await begin(service, wait=10)
    turn = f"turns/{made['last_turn']}"

    async def use() -> None:
        paths = ("loom/search?q=hello", "loom/search?q=hello&entity=keeper", "loom/stats", "loom/stats?entity=keeper")
        for path in (turn, f"{turn}/thread", f"{ENTITY}/story", *paths, "overview", "system"):
            await service.get(path)
        await service.ask("GET", "loom/export", 200)
        await service.ask("GET", "/metrics", 404)
        await service.post(f"{turn}/rewards", {"reward": 1.0}, 201)

    return use


async def use_the_api_of_openai(service: Served) -> Any:
    await begin(service, wait=10)

    async def use() -> None:
        await service.get("/v1/models")
        await service.get("/v1/models/entity:keeper")
        said = {"messages": [{"role": "user", "content": "hello"}]}
        for more in ({}, {"stream": True}):
            for model in ("echo", "entity:keeper"):
                asked = {"model": model, **said, **more}
                await service.ask("POST", "/v1/chat/completions", 200, json=asked)
        first = await service.post("/v1/responses", {"model": "echo", "input": "hello"}, 200)
        for at in (first, first):  # the first goes on, the second forks
            await service.post(
                "/v1/responses", {"model": "echo", "input": "more", "previous_response_id": at["id"]}, 200
            )
        await service.get(f"/v1/responses/{first['id']}")
        await service.post(f"/v1/responses/{first['id']}/cancel", {}, 200)

    return use


async def follow_an_entity(service: Served) -> Any:
    made = await begin(service, wait=10)
    await unload(service)

    async def use() -> None:
        async with service.stream(f"{ENTITY}/events") as reader:
            event = await reader.next()
            assert event is not None
            assert event["event"] == "snapshot"
            await service.post(f"{ENTITY}/send", {"intent": "more", "wait": 10}, 200)
            await until(reader, "episode")
        async with service.stream(f"{ENTITY}/events", after="1") as reader:
            await until(reader, "episode")
            turns = (await service.get(f"{ENTITY}/turns"))["items"]
            await service.post(f"turns/{turns[-1]['id']}/rewards", {"reward": 1.0}, 201)
            await until(reader, "reward")
            await service.ask("DELETE", ENTITY, 204)
            await until(reader, "end")
        async with service.stream(f"entities/{made['entity_id']}/events") as reader:
            await until(reader, "end")

    return use


async def follow_all_entities(service: Served) -> Any:
    made = await begin(service, wait=10)

    async def use() -> None:
        for path in ("events", f"events?subtree={made['entity_id']}"):
            async with service.stream(path) as reader:
                event = await reader.next()
                assert event is not None
                assert event["event"] == "snapshot"
                await service.post(f"{ENTITY}/send", {"intent": "more", "wait": 10}, 200)
                await until(reader, "episode")

    return use


async def until(reader: Any, kind: str) -> None:
    with anyio.fail_after(20):
        while (event := await reader.next()) is not None and event["event"] != kind:
            pass
    assert event is not None, kind


USES = [
    begin_entities,
    begin_more_than_a_token_may,
    look_at_entities,
    send_to_an_entity,
    control_an_entity,
    decide_a_request,
    read_the_loom,
    use_the_api_of_openai,
    follow_an_entity,
    follow_all_entities,
]


@pytest.mark.parametrize("prepare", USES, ids=lambda use: use.__name__)
async def test_no_request_waits_for_the_server_in_the_event_loop(watched: Watched, prepare: Use) -> None:
    few = token("few", "read", "cast", max_concurrent=1)
    async with served([echo()], postgres.fresh(), tokens=[few]) as service:
        use = await prepare(service)
        with watched.watching():
            await use()

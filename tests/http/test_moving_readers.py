"""Readers of events, and an entity that changes its process: two services on one loom, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from cantrip_actors import EpisodeEndedEvent, Runtime
from cantrip_actors.http import Service, make_app
from tests.http.serving import IN_PROCESS, echo

pytestmark = pytest.mark.rule("HTTP-20")

ECHO = echo()


class Reader:
    """Reads a stream of a service, which has to end it, in a task of its own."""

    def __init__(self, service: Service, path: str = "entities/bob/events", after: str | None = None) -> None:
        self._service = service
        self._path = path
        self._headers = {} if after is None else {"last-event-id": after}
        self.text = ""

    async def read(self) -> None:
        transport = httpx.ASGITransport(app=make_app(self._service))
        async with httpx.AsyncClient(transport=transport, base_url=IN_PROCESS) as client:
            self.text = (await client.get(f"/api/v1/{self._path}", headers=self._headers)).text


@asynccontextmanager
async def two_services(tmp_path: Path) -> AsyncIterator[tuple[Service, Service]]:
    """Yield two services in two runtimes; the first one has loaded the entity "bob", for five seconds."""
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with (
        Runtime.open(url, cantrips=[ECHO], passivate_after=5) as first,
        Runtime.open(url, cantrips=[ECHO]) as second,
    ):
        await (await first.invoke(ECHO, "hi", name="bob")).episode()
        one, two = Service(first, tokens=None), Service(second, tokens=None)
        async with one.open(), two.open():
            yield one, two


async def send(service: Service, intent: str) -> None:
    entity = service.runtime.entity("bob")
    assert entity is not None
    await entity.send(intent)


async def find_last_id(service: Service, *, of_all: bool) -> str:
    """Return the id of the last event of "bob", as the stream of the entity or of all entities has it."""
    entity = service.runtime.entity("bob")
    assert entity is not None
    ends = 0
    async for event in service.runtime.events(after="0") if of_all else entity.events(after="0"):
        ends += isinstance(event, EpisodeEndedEvent)
        if ends == 2:
            break
    assert event.id is not None
    return event.id


@pytest.mark.parametrize("path", ["entities/bob/events", "events"])
async def test_a_reader_that_moves_to_another_service_gets_no_event_twice(tmp_path: Path, path: str) -> None:
    async with two_services(tmp_path) as (one, two), anyio.create_task_group() as tasks:
        tasks.start_soon(Reader(two, path).read)
        await anyio.sleep(1.2)
        await send(one, "again")  # the feed of the other service reads the loom twice a second
        moved = Reader(two, path, await find_last_id(one, of_all=path == "events"))
        tasks.start_soon(moved.read)
        await anyio.sleep(2)
        two.end_streams()
    assert "event: drain" in moved.text
    assert "event: turn" not in moved.text


async def test_a_reader_gets_the_events_of_an_entity_that_another_process_takes_within_a_second(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, two), anyio.create_task_group() as tasks:
        reader = Reader(one)
        tasks.start_soon(reader.read)
        await anyio.sleep(8)
        await send(two, "from two")
        await anyio.sleep(1)
        one.end_streams()
    assert "you said: from two" in reader.text


async def test_a_chat_continues_at_the_service_that_streams_it_when_the_one_that_runs_it_ends(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "nap 60"}]}
    streams: list[str] = []

    async def chat(service: Service) -> None:
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url=IN_PROCESS) as client:
            body = {"id": "bob", "messages": [message]}
            streams.append((await client.post("/api/v1/chat/echo", json=body)).text)

    first = await Runtime.open(url, cantrips=[ECHO])
    async with Runtime.open(url, cantrips=[ECHO]) as second:
        one, two = Service(first, tokens=None), Service(second, tokens=None)
        async with one.open(), two.open():
            with anyio.fail_after(100):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(chat, one)
                    await anyio.sleep(5)
                    tasks.start_soon(chat, two)
                    await anyio.sleep(5)
                    await first.aclose()
    assert "it said: outcome unknown" in streams[-1]

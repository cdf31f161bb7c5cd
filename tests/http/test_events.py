"""Event streams over real sockets: resumed at any event, shared by many readers, indifferent to slow ones."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import h2.connection
import pytest
from hypercorn.protocol.h2 import StreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Folding, LoomError, Runtime, scripted
from cantrip_actors.http import Service, ServiceLimits, feeds, server
from cantrip_actors.http.feeds import FRAMES, Frame
from cantrip_actors.looms import IntentGiven
from cantrip_actors.mcp import inproc
from cantrip_actors.observe import Telemetry
from cantrip_actors.stream.reading import EventId
from cantrip_actors.wards import max_turns
from tests.exhaustive import EXHAUSTIVE
from tests.http.serving import Served, call, echo, nap, served, token
from tests.mcp.prompting import prompting

pytestmark = [pytest.mark.real_time]

READERS = 200 if EXHAUSTIVE else 40

DURABLE = {"entity", "intent", "steer", "turn", "request", "decision", "episode", "end"}


def durable(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["event"], one["id"]) for one in events if one["event"] in DURABLE]


async def run(on: Served, intent: str = "turns 5 0.01") -> str:
    return str((await on.post("casts", {"cantrip": "echo", "intent": intent}, 201))["entity_id"])


@pytest.mark.rule("HTTP-16")
@pytest.mark.parametrize("path", ["events", "loom/export", "entities/bob/turns?limit=200"])
async def test_a_client_that_reads_nothing_does_not_delay_a_shutdown(
    path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER", 0.3)
    limits = ServiceLimits(rate=10_000, burst=10_000, patience=3600)
    with socket.socket() as unread:
        async with served(limits=limits) as on:
            await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob", "wait": 20}, 200)
            host, port = on.url.removeprefix("http://").split(":")
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect((host, int(port)))
            head = f"Host: {host}:{port}\r\nAuthorization: Bearer admin-token\r\n"
            asked = f"GET /api/v1/{path} HTTP/1.1\r\n{head}\r\n".encode()
            if path == "events":
                unread.sendall(asked)
                await anyio.sleep(0.3)
            for _ in range(12):
                await on.post("entities/bob/send", {"intent": "x" * 400_000, "wait": 20}, 200)
            if path != "events":
                unread.sendall(asked)
                await anyio.sleep(0.3)
            began = time.monotonic()
        assert time.monotonic() - began < 30  # and not the hour for which a client may leave a stream unread
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@pytest.mark.rule("HTTP-16")
@pytest.mark.parametrize("of", ["bob", None])
async def test_a_feed_ends_when_the_runtime_closes(of: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = await Runtime.open(cantrips=[echo()])
    entity = await runtime.invoke(echo(), "hi", name="bob")
    service, subscribed = Service(runtime, [echo()], tokens=None), 0
    events = runtime.events

    def count(*args: Any, **more: Any) -> Any:
        nonlocal subscribed
        subscribed += 1
        return events(*args, **more)

    monkeypatch.setattr(runtime, "events", count)
    async with service.open():
        with service.feed(None if of is None else entity.id) as feed, anyio.fail_after(5):
            await feed.begin()
            await entity.send("again")
            await runtime.aclose()
            while not feed.is_finished:
                await anyio.sleep(0.1)
    assert subscribed <= 4  # one for each episode that ended, and one that found the runtime closed


@pytest.mark.rule("HTTP-03", "HTTP-05")
async def test_a_stream_cut_at_any_event_resumes_without_loss_or_doubles() -> None:
    async with served() as on:
        entity = await run(on)
        path, last, found = f"entities/{entity}/events", "0", []
        with anyio.fail_after(20):
            for length in (1, 2, 1, 3, 2, 4, 99):  # each connection is cut after so many events
                async with on.stream(path, last) as reader:
                    for _ in range(length):
                        event = await reader.next()
                        if event is None:
                            break
                        assert ("id" in event) == (event["event"] in DURABLE), event["event"]
                        if "id" in event:
                            last = event["id"]
                            found.append(event)
        assert durable(found) == durable(await on.events(path, "0"))
        assert [one["event"] for one in found] == ["entity", *["turn"] * 6, "end"]
        turns = on.runtime.loom.turns(entity)
        assert [one["data"]["id"] for one in found if one["event"] == "turn"] == [turn.id for turn in turns]


@pytest.mark.rule("HTTP-04")
async def test_a_finished_entity_is_read_from_its_beginning_and_ends_with_204() -> None:
    async with served() as on:
        entity = await run(on, "hi")
        await on.runtime.get_entity(entity).episode()
        path = f"entities/{entity}/events"
        events = await on.events(f"{path}?after=0")
        assert [one["event"] for one in events] == ["entity", "turn", "end"]
        assert (await on.ask("GET", path, headers={"last-event-id": events[-1]["id"]})).status_code == 204
        assert durable(await on.events(path, events[0]["id"])) == durable(events[1:])
        fresh = await on.events(path)
        assert [one["event"] for one in fresh] == ["snapshot", "end"]
        assert fresh[0]["data"]["entities"][0]["state"] == "terminated"
        assert EventId.parse(fresh[0]["id"]) < EventId.parse(events[-1]["id"])  # type: ignore[operator]
        for strange in ("99999", "x", "-1"):
            assert [one["event"] for one in await on.events(path, strange)] == ["snapshot", "end"]


async def test_the_stream_of_a_long_lived_entity_continues_after_an_episode() -> None:
    async with served() as on:
        begun = await on.post("entities", {"cantrip": "echo", "intent": "one", "name": "bob"}, 201)
        async with on.stream(f"entities/{begun['entity_id']}/events", "0") as reader:
            kinds: list[str] = []

            async def read(until: str) -> dict[str, Any]:
                with anyio.fail_after(10):
                    while (event := await reader.next()) is not None:
                        if "id" in event:
                            kinds.append(event["event"])
                        if event["event"] == until:
                            return event
                raise AssertionError(kinds)

            assert (await read("episode"))["data"]["result"] == "you said: one"
            await on.post("entities/bob/send", {"intent": "nap 30"}, 202)
            await read("intent")
            await on.post("entities/bob/interrupt", {"now": True}, 202)
            ended = (await read("episode"))["data"]
            assert (ended["state"], ended["by"]) == ("interrupted", "token:admin")
            await on.post("entities/bob/send", {"intent": "three"}, 202)
            assert (await read("episode"))["data"]["result"] == "you said: three"
            await on.ask("DELETE", "entities/bob", 204)
            await read("end")
            assert await reader.next() is None
        assert kinds == ["entity", "turn", "episode", "intent", "turn", "episode", "intent", "turn", "episode", "end"]


async def test_upserts_come_while_a_turn_runs_and_a_late_reader_gets_those_so_far() -> None:
    async with served() as on:
        entity = await run(on, "nap 0.5")
        events = await on.events(f"entities/{entity}/events?after=0")
        upserts = [one["data"]["payload"] for one in events if one["event"] == "upsert"]
        assert "I call nap" in [one.get("content") for one in upserts]
        entity = await run(on, "nap 30")
        await anyio.sleep(0.1)
        (snapshot,) = await on.events(f"entities/{entity}/events", until=lambda _: True)
        assert [one["type"] for one in snapshot["data"]["items"]] == ["message", "tool_call"]


async def test_requests_and_decisions_are_events() -> None:
    async with served() as on:
        entity = await run(on, "pay 3")
        async with on.stream(f"entities/{entity}/events", "0") as reader:
            with anyio.fail_after(10):
                while (event := await reader.next()) and event["event"] != "request":
                    pass
                assert event is not None
                assert event["data"]["gate"] == "pay"
                await on.post(f"requests/{event['data']['id']}", {"decision": "allow"}, 200)
                while (event := await reader.next()) and event["event"] != "decision":
                    pass
                assert event is not None
                assert event["data"]["by"] == "admin"


@pytest.mark.rule("MCP-20")
async def test_a_server_of_tools_that_changes_is_an_event_without_an_id() -> None:
    ends = {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}
    says = [ends, {"tool_calls": [{"gate": "p__learn", "args": {"word": "x"}}]}, ends]
    circle = Circle(["done", inproc("p", prompting(), era="handshake")], [max_turns(5)])
    cantrip = Cantrip(scripted(says), circle=circle, name="learner")
    async with served([cantrip]) as on, on.stream("events?kinds=server") as everything:
        begun = await on.post("entities", {"cantrip": "learner", "intent": "go", "name": "bob"}, 201)
        async with on.stream(f"entities/{begun['entity_id']}/events", "0") as own:
            await on.post("entities/bob/send", {"intent": "learn"}, 202)
            for reader in (everything, own):
                with anyio.fail_after(10):
                    while (event := await reader.next()) and event["event"] != "server":
                        pass
                assert event is not None
                assert "id" not in event
                assert event["data"] == {"entity_id": begun["entity_id"], "server": "p", "what": "prompts"}


@pytest.mark.rule("HTTP-07")
async def test_many_readers_share_one_encoding_of_each_event() -> None:
    async with served(limits=ServiceLimits(rate=10_000, burst=10_000, streams=300)) as on:
        entity = await run(on, "nap 600")
        found: list[list[dict[str, Any]]] = []

        async def read() -> None:
            async with on.stream(f"entities/{entity}/events", "0") as reader:
                events = []
                while (event := await reader.next()) is not None:
                    events.append(event)
                found.append(events)

        with anyio.fail_after(60), on.service.feed(entity) as feed:
            async with anyio.create_task_group() as tasks:
                for _ in range(READERS):
                    tasks.start_soon(read)
                while feed.readers < READERS + 1:
                    await anyio.sleep(0.01)
                before = feed.encoded
                await on.ask("DELETE", f"entities/{entity}", 204)
        assert [one["event"] for one in found[0] if "id" in one] == ["entity", "turn", "end"]
        assert len({str(durable(events)) for events in found}) == 1
        assert feed.encoded - before <= 5, f"for {READERS} readers"


@pytest.mark.rule("HTTP-06", "U-55", "U-56")
async def test_a_reader_that_never_reads_is_closed_and_costs_a_bounded_memory() -> None:
    limits = ServiceLimits(rate=10_000, burst=10_000, patience=1)
    async with served([echo(crystal=scripted(long_winded))], limits=limits) as on:
        begun = await on.post("entities", {"cantrip": "echo", "intent": "go", "name": "bob"}, 201)
        host, port = on.url.partition("//")[2].split(":")
        deaf = socket.create_connection((host, int(port)))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/api/v1/entities/{begun['entity_id']}/events"
        deaf.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer admin-token\r\n\r\n".encode())
        with closing(deaf), anyio.fail_after(60):
            while not on.service._feeds:  # whether the reader is there
                await anyio.sleep(0.01)
            (feed,) = on.service._feeds.values()  # likewise
            while on.runtime.loom.state(begun["entity_id"]) == "active":
                await anyio.sleep(0.02)
                assert feed.frames.size < 9 << 20  # the bytes that the feed keeps
            while feed.readers:
                await anyio.sleep(0.05)


def long_winded(context: Any) -> dict[str, Any]:
    """Say 200 kB in each of forty turns."""
    if sum(one.role == "assistant" for one in context) < 40:
        return {"content": "x" * 200_000, "tool_calls": [{"gate": "nap", "args": {"seconds": 0.01}}]}
    return {"content": "enough"}


@asynccontextmanager
async def http2_to(on: Served, path: str, body: bytes | None = None, **headers: str) -> AsyncIterator[Http2]:
    """Send one request over HTTP/2, and grant no more window than a connection begins with."""
    host = on.url.partition("//")[2]
    given = {":method": "GET" if body is None else "POST", ":path": path, ":scheme": "http", ":authority": host}
    given |= {"host": host, "authorization": "Bearer admin-token", **headers}
    async with await anyio.connect_tcp(*host.split(":")) as line:  # type: ignore[arg-type]  # the port is a text
        http = h2.connection.H2Connection()
        http.initiate_connection()
        http.send_headers(1, [*given.items()], end_stream=body is None)
        if body is not None:
            http.send_data(1, body, end_stream=True)
        await line.send(http.data_to_send())
        yield Http2(line, http)


@dataclass
class Http2:
    """A connection with one request, stream 1."""

    line: anyio.abc.SocketStream
    http: Any

    async def reset(self) -> None:
        self.http.reset_stream(1)
        await self.line.send(self.http.data_to_send())


def kept_for_http2() -> int:
    """Return how many bytes hypercorn keeps for clients of HTTP/2."""
    return sum(len(one.buffer) for one in gc.get_objects() if isinstance(one, StreamBuffer))


@pytest.mark.rule("HTTP-06")
async def test_a_reader_of_http2_that_never_reads_is_closed_and_costs_a_bounded_memory() -> None:
    limits = ServiceLimits(rate=10_000, burst=10_000, patience=1)
    async with served([echo(crystal=scripted(long_winded))], limits=limits) as on:
        begun = await on.post("entities", {"cantrip": "echo", "intent": "go", "name": "bob"}, 201)
        async with http2_to(on, f"/api/v1/entities/{begun['entity_id']}/events"):
            with anyio.fail_after(20):
                while not on.service.readers:
                    await anyio.sleep(0.01)
                while on.service.readers:
                    await anyio.sleep(0.05)
                    assert kept_for_http2() < 100_000
        assert on.runtime.loom.state(begun["entity_id"]) in ("active", "terminated")


@pytest.mark.rule("HTTP-06")
async def test_a_reader_that_never_reads_holds_up_no_turn() -> None:
    async def count_cpu(*, deaf: bool) -> float:
        async with served([echo(crystal=scripted(long_winded))]) as on:
            begun = await on.post("entities", {"cantrip": "echo", "intent": "go", "name": "bob"}, 201)
            async with http2_to(on, f"/api/v1/entities/{begun['entity_id']}/events") if deaf else nullcontext():
                before = time.process_time()
                with anyio.fail_after(30):
                    while on.runtime.loom.state(begun["entity_id"]) == "active":
                        await anyio.sleep(0.02)
                return (time.process_time() - before) / len(on.runtime.loom.turns(begun["entity_id"]))

    alone = await count_cpu(deaf=False)
    assert await count_cpu(deaf=True) < 4 * alone


@pytest.mark.rule("HTTP-06", "HTTP-15")
@pytest.mark.parametrize("after", [None, "0"])
async def test_a_stream_whose_entity_cannot_be_read_is_a_problem_and_the_next_one_is_not(
    monkeypatch: pytest.MonkeyPatch, after: str | None
) -> None:
    def fail(*_: object) -> Any:
        raise LoomError("the disk is gone")

    async with served() as on:
        entity = await run(on, "nap 30")
        path = f"entities/{entity}/events"
        with monkeypatch.context() as patch:
            patch.setattr(feeds.Feed, "_fetch", fail)
            async with on.stream(path, after) as reader:
                assert reader.status == 507
        assert on.service.readers == 0
        first = (await on.events(path, after, until=lambda _: True))[0]
        assert first["event"] == ("entity" if after else "snapshot")


async def select_all(frames: list[Frame]) -> list[Frame]:
    return frames


async def show_nothing(_number: int) -> bytes:
    return b"event: snapshot\ndata: {}\n\n"


@pytest.mark.rule("HTTP-06")
async def test_a_reader_that_fell_out_of_the_ring_loses_nothing_durable() -> None:
    telemetry = Telemetry(otel=False)
    async with served(options={"telemetry": telemetry}, telemetry=telemetry) as on:
        begun = await on.post("entities", {"cantrip": "echo", "intent": "one", "name": "bob"}, 201)
        entity_id = begun["entity_id"]
        with on.service.feed(entity_id) as feed:
            await feed.begin()
            events = feed.stream(EventId(0), select_all, show_nothing)
            assert await anext(events) == b"retry: 2000\n\n"
            text = (await anext(events)).decode()
            entity = on.runtime.get_entity(entity_id)
            await entity.send("two")
            await anyio.sleep(0.1)
            for _ in range(FRAMES + 1):  # as many upserts as push everything out
                feed.frames.publish(Frame(entity_id, "upsert", b""))  # a flood
            while "snapshot" not in text:
                text += (await anext(events)).decode()
            assert "event: fell-behind" in text
            assert text.count("event: turn") == 2
            assert text.count("event: intent") == 1
            await events.aclose()
    assert telemetry.counters.read_values("cantrip.streams.dropped") == {("native",): 1}


async def test_the_stream_of_all_entities_reports_new_and_existing_entities_once() -> None:
    async with served() as on:
        await on.post("entities", {"cantrip": "echo", "intent": "one", "name": "bob"}, 201)
        await on.post("entities/bob/send", {"intent": "two", "wait": 5}, 200)
        async with on.stream("events?kinds=entity,intent,turn,episode,end") as reader:
            first = await reader.next()
            assert first is not None
            assert [one["name"] for one in first["data"]["entities"]] == ["bob"]
            await anyio.sleep(0.01)
            await on.post("entities/bob/send", {"intent": "three", "wait": 5}, 200)
            cast = await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
            kinds = []
            with anyio.fail_after(10):
                while (event := await reader.next()) is not None:
                    kinds.append(event["event"])
                    if event["event"] == "end":
                        break
            assert kinds == ["intent", "turn", "episode", "entity", "turn", "end"]
            assert event is not None
            assert event["data"]["id"] == cast["entity_id"]


@pytest.mark.rule("W-12")
@pytest.mark.parametrize("store", ["memory:", "sqlite:{}/loom.db", "jsonl:{}/loom.jsonl"])
async def test_the_stream_of_all_entities_continues_after_any_event_and_after_a_restart(
    store: str, tmp_path: Path
) -> None:
    url, path = store.format(tmp_path), "events?kinds=entity,intent,turn,episode,end"

    def is_snapshot(event: dict[str, Any]) -> bool:
        return event["event"] == "snapshot"

    async with served(url=url) as on:
        await on.post("entities", {"cantrip": "echo", "intent": "one", "name": "bob", "wait": 5}, 200)
        async with anyio.create_task_group() as tasks:
            for intent in ("nap 0", "turns 3 0.01"):
                tasks.start_soon(on.post, "casts", {"cantrip": "echo", "intent": intent, "wait": 9}, 200)
        await on.post("entities/bob/send", {"intent": "two", "wait": 5}, 200)
        everything = await on.events(path, "0", until=is_snapshot)
        if store == "memory:":
            await _check_each_position(on, path, everything)
    if store != "memory:":
        async with served(url=url) as on:
            await _check_each_position(on, path, everything)
            await on.post("entities/bob/send", {"intent": "three", "wait": 5}, 200)
            newest = durable(await on.events(path, everything[-1]["id"], until=is_snapshot))
            assert [kind for kind, _ in newest] == ["intent", "turn", "episode"]


async def _check_each_position(on: Served, path: str, everything: list[dict[str, Any]]) -> None:
    """Check that a reader that continues after an event gets exactly those that follow."""
    recorded = durable(everything)
    assert [kind for kind, _ in recorded].count("end") == 2
    assert [EventId.parse(id.partition(":")[0]) for _, id in recorded] == sorted(
        EventId.parse(id.partition(":")[0])
        for _, id in recorded  # type: ignore[type-var]
    )
    for count, (_, id) in enumerate(recorded, 1):
        rest = await on.events(path, id, until=lambda event: event["event"] == "snapshot")
        assert durable(rest) == recorded[count:]


async def test_an_open_stream_counts_as_a_person_who_can_be_asked() -> None:
    async with served(options={"unattended": "deny"}) as on:
        denied = await on.post("casts", {"cantrip": "echo", "intent": "pay 3", "wait": 5}, 200)
        assert "paid" not in denied["result"]
        async with on.stream("events") as reader:
            await reader.next()
            await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
            with anyio.fail_after(10):
                while not (await on.get("requests"))["items"]:
                    await anyio.sleep(0.02)


@pytest.mark.rule("HTTP-09")
@pytest.mark.parametrize(
    ("headers", "said", "state"),
    [
        ({}, {}, "cancelled"),
        ({"idempotency-key": "k"}, {}, "active"),
        ({}, {"on_disconnect": "continue"}, "active"),
        ({"idempotency-key": "k"}, {"on_disconnect": "cancel"}, "cancelled"),
    ],
)
async def test_a_client_that_hangs_up_cancels_or_continues(
    headers: dict[str, str], said: dict[str, str], state: str
) -> None:
    async with served() as on:
        body = {"cantrip": "echo", "intent": "nap 30", "wait": 20, **said}
        async with anyio.create_task_group() as client:
            client.start_soon(partial(on.post, "casts", body, headers=headers))
            with anyio.fail_after(20):
                while not on.runtime.loom.entities():
                    await anyio.sleep(0.02)
            await anyio.sleep(0.1)
            client.cancel_scope.cancel()
        (entity,) = on.runtime.loom.entities()
        if state == "active":
            await anyio.sleep(0.3)
        else:
            with anyio.move_on_after(20):
                while on.runtime.loom.state(entity) != state:
                    await anyio.sleep(0.02)
        assert on.runtime.loom.state(entity) == state


@pytest.mark.rule("HTTP-09", "C-19")
@pytest.mark.parametrize("door", ["send", "chat", "stream", "response"])
async def test_a_client_that_hangs_up_takes_back_its_intent_and_disturbs_no_other(door: str) -> None:
    async with served() as on:
        entity = await on.runtime.invoke(on.service.cantrips["echo"], "hi", name="bob")
        await entity.episode()
        other = await entity.post("nap 2")
        said: Any = [{"role": "user", "content": "unwanted"}]
        with anyio.move_on_after(0.3):
            if door == "send":
                await on.post("entities/bob/send", {"intent": "unwanted", "wait": 20})
            elif door == "response":
                await on.post("/v1/responses", {"model": "entity:bob", "input": "unwanted"})
            else:
                asked = {"model": "entity:bob", "messages": said, "stream": door == "stream"}
                await on.post("/v1/chat/completions", asked)
        assert (await other.episode()).terminated
        assert (await entity.send("behind")).result == "you said: behind"
        intents = [one.intent for one in on.runtime.loom.records(entity.id) if isinstance(one, IntentGiven)]
        assert intents == ["hi", "nap 2", "behind"]


@pytest.mark.rule("HTTP-09")
async def test_a_stream_of_openai_that_is_cut_cancels_and_an_event_stream_does_not() -> None:
    async with served() as on:
        entity = await run(on, "nap 30")
        await on.events(f"entities/{entity}/events", until=lambda _: True)
        said = {"model": "echo", "messages": [{"role": "user", "content": "nap 30"}], "stream": True}
        with anyio.move_on_after(0.3):
            await on.post("/v1/chat/completions", said)
        _, cut = on.runtime.loom.entities()
        with anyio.fail_after(5):
            while on.runtime.loom.state(cut) == "active":
                await anyio.sleep(0.02)
        assert on.runtime.loom.state(cut) == "cancelled"
        assert on.runtime.loom.state(entity) == "active"


CAST = b'{"cantrip": "echo", "intent": "nap 30", "wait": 20}'
JSON = {"content-type": "application/json"}


@pytest.mark.rule("HTTP-09")
@pytest.mark.parametrize(("headers", "state"), [({}, "cancelled"), ({"idempotency-key": "k"}, "active")])
async def test_a_reset_of_an_http2_stream_cancels_or_continues(headers: dict[str, str], state: str) -> None:
    async with served() as on, http2_to(on, "/api/v1/casts", CAST, **JSON, **headers) as client:
        with anyio.fail_after(10):
            while not on.runtime.loom.entities():
                await anyio.sleep(0.02)
            (entity,) = on.runtime.loom.entities()
            await anyio.sleep(0.1)
            await client.reset()
            if state == "active":
                await anyio.sleep(0.5)
            while on.runtime.loom.state(entity) != state:
                await anyio.sleep(0.02)


@pytest.mark.rule("HTTP-09")
@pytest.mark.parametrize("is_http2", [False, True])
async def test_a_reader_that_hangs_up_is_forgotten_and_its_entity_continues(is_http2: bool) -> None:
    async with served() as on:
        entity = await run(on, "nap 30")
        path = f"entities/{entity}/events"
        with anyio.fail_after(10):
            async with http2_to(on, f"/api/v1/{path}") if is_http2 else on.stream(path) as reader:
                while not on.service.readers:
                    await anyio.sleep(0.01)
                if is_http2:
                    await reader.reset()  # type: ignore[union-attr]  # the connection stays
                    while on.service.readers:
                        await anyio.sleep(0.01)
            while on.service.readers:
                await anyio.sleep(0.01)
        assert on.runtime.loom.state(entity) == "active"


@pytest.mark.rule("HTTP-03", "HTTP-06")
async def test_a_stream_begins_with_its_headers_and_a_delay_and_a_quiet_one_has_comments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert feeds.QUIET == 15.0
    monkeypatch.setattr(feeds, "QUIET", 0.2)
    async with served() as on:
        entity = await run(on, "nap 30")
        for path in (f"entities/{entity}/events", "events"):
            async with on.stream(path) as reader:
                assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
                assert reader.headers["cache-control"] == "no-store"
                assert reader.headers["x-accel-buffering"] == "no"
                text = b""
                with anyio.fail_after(10):
                    while b"\n: " not in text:
                        text += (await reader.receive()).data
                assert text.startswith(b"retry: 2000\n\nid: ")


@pytest.mark.rule("HTTP-03")
async def test_a_stream_cut_after_each_event_resumes_with_the_next_one() -> None:
    async with served() as on:
        entity = await run(on, "pay 3")
        with anyio.fail_after(10):
            while not (requests := (await on.get("requests"))["items"]):
                await anyio.sleep(0.02)
        await on.post(f"requests/{requests[0]['id']}", {"decision": "allow"}, 200)
        await on.runtime.get_entity(entity).episode()
        path = f"entities/{entity}/events"
        whole = durable(await on.events(path, "0"))
        assert [kind for kind, _ in whole] == ["entity", "request", "decision", "turn", "turn", "end"]
        for count, (_, last) in enumerate(whole[:-1], start=1):
            assert durable(await on.events(path, last)) == whole[count:]
        assert (await on.ask("GET", path, headers={"last-event-id": whole[-1][1]})).status_code == 204


@pytest.mark.rule("HTTP-04")
async def test_the_first_event_has_what_a_reader_needs_to_place_an_entity() -> None:
    async with served() as on:
        entity = await run(on, "hi")
        await on.runtime.get_entity(entity).episode()
        first, turn, end = (one["data"] for one in await on.events(f"entities/{entity}/events?after=0"))
        known = {"id", "parent", "parent_turn", "cantrip", "intent", "name", "began", "by"}
        assert known <= first.keys()
        assert (first["cantrip"], first["intent"], first["by"]) == ("echo", "hi", "token:admin")
        assert turn["utterance"] == "you said: hi"
        assert {"state", "reason", "ward", "result", "usage"} <= end.keys()
        assert (end["state"], end["result"]) == ("terminated", "you said: hi")


def test_positions_sort_in_order_of_arrival() -> None:
    assert EventId.parse("7.1") == (7, 1)
    assert EventId.parse(" 7 ") == (7, 0)
    assert EventId.parse("7.10") > EventId.parse("7.9")  # type: ignore[operator]
    assert EventId.parse("7.1234567") is None
    assert EventId.parse("٧") is None


@given(st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 9)))
def test_an_id_names_its_position(at: tuple[int, int]) -> None:
    assert EventId.parse(str(EventId(*at))) == at


async def test_rewards_are_events_also_of_an_entity_that_has_ended() -> None:
    async with served(tokens=[token("anna", "reward", "read")]) as on:
        ended = await on.post("casts", {"cantrip": "echo", "intent": "nap 0", "wait": 5}, 200)
        turns = (await on.get(f"entities/{ended['entity_id']}/turns"))["items"]
        idle = await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob", "wait": 5}, 200)
        (turn,) = (await on.get(f"entities/{idle['entity_id']}/turns"))["items"]
        async with on.stream("events?kinds=reward") as reader:
            assert (await reader.next())["event"] == "snapshot"
            got = []
            for value, rewarded in ((0.5, turns[0]), (-1.0, turns[0]), (1.0, turn), (0.25, turn)):
                body = {"reward": value}
                await on.post(f"turns/{rewarded['id']}/rewards", body, 201, headers=on.as_token("anna"))
                got.append(await reader.next())
        story = (await on.get(f"entities/{ended['entity_id']}/story"))["items"]
    told = [(one["data"]["id"], one["data"]["turn_id"], one["data"]["reward"], one["data"]["by"]) for one in got]
    assert told == [
        (ended["entity_id"], turns[0]["id"], 0.5, "token:anna"),
        (ended["entity_id"], turns[0]["id"], -1.0, "token:anna"),
        (idle["entity_id"], turn["id"], 1.0, "token:anna"),
        (idle["entity_id"], turn["id"], 0.25, "token:anna"),
    ]
    assert [(one["event"], one["data"]["reward"]) for one in story[-2:]] == [("reward", 0.5), ("reward", -1.0)]
    assert [one["id"] for one in story[-2:]] == [one["id"].partition(":")[2] for one in got[:2]]


async def test_a_fold_is_an_event_and_an_entity_tells_its_gates_and_failed_calls() -> None:
    folding = Folding(trigger_after_turns=2, keep_turns=1)
    says = [call("nap", seconds=0), call("nap", seconds="x"), call("nap", seconds=0), {"content": "done"}]
    cantrip = Cantrip(scripted(says), circle=Circle(["done", nap], [max_turns(9)]), name="folder", folding=folding)
    async with served([cantrip]) as on:
        ended = await on.post("casts", {"cantrip": "folder", "intent": "go", "wait": 5}, 200)
        story = (await on.get(f"entities/{ended['entity_id']}/story"))["items"]
        entity = await on.get(f"entities/{ended['entity_id']}")
    fold = next(one["data"] for one in story if one["event"] == "fold")
    assert (fold["first"], set(fold)) == (1, {"id", "first", "last", "marker", "at"})
    assert (entity["gates"], entity["errors"]) == (["nap"], 1)

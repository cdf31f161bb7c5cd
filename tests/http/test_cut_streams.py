"""Streams whose client leaves early, reads too slowly, or wants only their headers. In virtual time, no socket."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Runtime, gate, scripted
from cantrip_actors.http import HttpCall, Service, Tokens, streams
from cantrip_actors.http.token import SCOPES
from cantrip_actors.observe import Upserts
from cantrip_actors.wards import max_turns
from tests.http.serving import ADMIN, Served, echo, in_process, token

Hold = Callable[[dict[str, Any]], Awaitable[None]]


async def request(
    on: Served, method: str, path: str, body: Any = None, hold: Hold | None = None, *, leaves: bool = False
) -> list[dict[str, Any]]:
    """Return the messages of the answer. `hold` delays each; a client that `leaves` hangs up after its request."""
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"host": "localhost", "authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
    headers["content-length"] = str(len(content))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    to_receive = [{"type": "http.request", "body": content, "more_body": False}]
    answered: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if to_receive:
            return to_receive.pop()
        if not leaves:
            await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if hold is not None:
            await hold(message)
        answered.append(message)

    await on.app(scope, receive, send)
    return answered


async def pause(_message: dict[str, Any]) -> None:
    await anyio.sleep(0.01)


def chat(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_client_that_leaves_before_its_stream_begins_ends_its_episode(path: str) -> None:
    async with in_process([echo()]) as on:
        await request(on, "POST", path, chat("echo", "nap 1000"), pause, leaves=True)
        (entity,) = on.runtime.loom.page()
        assert entity.state == "cancelled"


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/loom/export"])
async def test_the_answer_to_head_on_a_stream_has_the_headers_and_ends(path: str) -> None:
    async with in_process([echo()]) as on:
        start, end = await request(on, "HEAD", path)
        assert start["status"] == 200
        assert end["body"] == b""
        assert on.service.readers == 0


async def test_a_stream_that_fell_behind_has_the_error_that_ends_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Upserts.subscribe.__kwdefaults__, "capacity", 5)  # type: ignore[arg-type]  # it has defaults
    turns = 0

    @gate
    def step() -> str:
        """Do a step."""
        return "done"

    async def think(_context: Any) -> Any:
        nonlocal turns
        turns += 1
        await anyio.sleep(1)
        if turns == 20:
            raise ProviderError("no such model", status=400)
        return {"content": f"turn {turns}", "tool_calls": [{"gate": "step", "args": {}}]}

    async def read_nothing_until_turn_ten(message: dict[str, Any]) -> None:
        while message["type"] == "http.response.body" and turns < 10:
            await anyio.sleep(0.1)

    failing = Cantrip(scripted(think), circle=Circle(["done", step], [max_turns(50)]), name="failing")
    async with in_process([failing]) as on:
        path = "/v1/chat/completions"
        answered = await request(on, "POST", path, chat("failing", "go"), read_nothing_until_turn_ten)
        text = b"".join(message.get("body", b"") for message in answered).decode()
        assert "no such model" in text
        assert text.endswith("data: [DONE]\n\n")


async def test_a_service_that_is_opened_again_cuts_the_answers_to_revoked_tokens() -> None:
    known = token("admin", *SCOPES)
    async with Runtime.open("memory:") as runtime:
        service = Service(runtime, [echo()], tokens=Tokens([known]))
        async with service.open():
            with service.answering(known):
                await anyio.sleep(0.1)
        service.tokens = Tokens([])
        async with service.open():
            with service.answering(known) as answer:
                await anyio.sleep(10)
            assert answer.cancelled_caught


async def test_a_reader_of_all_events_remembers_a_bounded_number_of_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_KNOWN", 2)
    async with in_process([echo()]) as on:
        for number in range(5):
            await on.post("casts", {"cantrip": "echo", "intent": f"go {number}", "wait": 5}, 200)
        admin = token("admin", *SCOPES)
        any_request: Any = None
        view = streams._View(HttpCall(on.service, admin, on.runtime, any_request, {}), None)
        ids = frozenset(on.runtime.loom.entities())
        assert await view.find_seen([*ids, "no such entity"]) == ids
        assert await view.find_seen(ids) == ids
        assert len(view._known) <= 2

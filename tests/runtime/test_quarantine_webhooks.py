"""Webhooks about quarantines: each is sent once when it begins, and once when it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Companion, Quarantined, Runtime, Webhook, scripted
from cantrip_actors.runtime.events import webhook_sender
from cantrip_actors.wards import max_turns
from tests.runtime.test_webhooks import SECRET

pytestmark = pytest.mark.rule("W-12")

HOOK = Webhook("https://example.org/hook", SECRET, events=("quarantine.began", "quarantine.ended"))


class Receiver:
    """Accepts messages in place of a server, unless its status is another one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status = 204
        self.messages: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(webhook_sender, "post", self.post)

    async def post(self, _url: str, body: bytes, headers: dict[str, str], **_: Any) -> int:
        if self.status == 204:
            self.messages.append((headers["webhook-id"], json.loads(body)))
        return self.status

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for _, message in self.messages]


class Fragile(Companion):
    """A companion that fails while its database is down."""

    is_down = False

    async def begins(self, here: Any) -> None:
        if self.is_down:
            raise ConnectionError("the database is down")


async def quarantine(runtime: Runtime, fragile: Fragile) -> str:
    """Begin an entity, and let it be quarantined; return its id."""
    entity = await runtime.invoke(make_cantrip(fragile), "one", name="notes")
    await entity.episode()
    await anyio.sleep(40)  # it unloads
    fragile.is_down = True
    with pytest.raises(Quarantined):
        await entity.send("two", key="a")
    return entity.id


def make_cantrip(fragile: Fragile) -> Cantrip:
    circle = Circle(["done"], [max_turns(9)], companion=fragile)
    return Cantrip(scripted(lambda _: {"content": "yes"}, record=False), circle=circle, name="agent")


async def test_a_receiver_is_sent_the_beginning_and_the_end_of_a_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, fragile = Receiver(monkeypatch), Fragile()
    settings: Any = {"webhooks": [HOOK], "quarantine_for": 60.0, "passivate_after": 30.0}
    async with Runtime.open(cantrips=[make_cantrip(fragile)], **settings) as runtime:
        entity_id = await quarantine(runtime, fragile)
        await anyio.sleep(10)
        ((_, began),) = receiver.messages
        assert (began["type"], began["data"]["entity_id"]) == ("quarantine.began", entity_id)
        assert "the database is down" in began["data"]["why"]
        assert began["data"]["until"] > began["timestamp"]
        fragile.is_down = False
        await anyio.sleep(100)
        assert receiver.kinds == ["quarantine.began", "quarantine.ended"]
        assert len({id for id, _ in receiver.messages}) == 2


async def test_the_next_process_sends_only_the_webhooks_that_a_receiver_did_not_accept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    receiver, fragile, url = Receiver(monkeypatch), Fragile(), f"sqlite:{tmp_path / 'loom.db'}"
    settings: Any = {"webhooks": [HOOK], "quarantine_for": None, "passivate_after": 30.0}
    receiver.status = 500
    async with Runtime.open(url, cantrips=[make_cantrip(fragile)], **settings) as runtime:
        entity_id = await quarantine(runtime, fragile)
        await anyio.sleep(10)
    receiver.status = 204
    for _ in range(2):
        async with Runtime.open(url, cantrips=[make_cantrip(fragile)], **settings) as runtime:
            await anyio.sleep(20)
            assert receiver.kinds == ["quarantine.began"]
    async with Runtime.open(url, cantrips=[make_cantrip(fragile)], **settings) as runtime:
        fragile.is_down = False
        await runtime.resume(entity_id)
        await anyio.sleep(20)
        assert receiver.kinds == ["quarantine.began", "quarantine.ended"]


async def test_a_new_webhook_is_not_sent_a_quarantine_that_began_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    receiver, fragile, url = Receiver(monkeypatch), Fragile(), f"sqlite:{tmp_path / 'loom.db'}"
    settings: Any = {"quarantine_for": None, "passivate_after": 30.0}
    async with Runtime.open(url, cantrips=[make_cantrip(fragile)], **settings) as runtime:
        entity_id = await quarantine(runtime, fragile)
    async with Runtime.open(url, cantrips=[make_cantrip(fragile)], webhooks=[HOOK], **settings) as runtime:
        await anyio.sleep(20)
        assert receiver.messages == []
        fragile.is_down = False
        await runtime.resume(entity_id)
        await anyio.sleep(20)
        assert receiver.kinds == ["quarantine.ended"]

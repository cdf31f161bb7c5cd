"""Lists over HTTP: each condition, pages, and what the pages do not read."""

from typing import Any

import anyio
import pytest

from cantrip_actors.records.records import Header
from cantrip_actors.runtime.entity.launcher import Launcher
from tests.http.serving import echo, served

pytestmark = [pytest.mark.rule("K-35"), pytest.mark.real_time]


async def test_a_list_of_entities_has_those_to_which_each_condition_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    find = Launcher.find_if_interrupted

    def note(self: Any, entity_id: str) -> Header | None:
        asked.append(entity_id)
        return find(self, entity_id)

    monkeypatch.setattr(Launcher, "find_if_interrupted", note)
    async with served([echo(), echo("parrot")]) as on:
        for name in ("bob", "bobby", "anna"):
            await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": name, "wait": 5}, 200)
        cast = await on.post("casts", {"cantrip": "parrot", "intent": "hi", "wait": 5}, 200)
        conditions = {
            "kind=lasting": 3,
            "kind=root": 4,
            "kind=child": 0,
            "prefix=bob": 2,
            "name=bob": 1,
            "cantrip=parrot": 1,
            "state=idle&cantrip=echo": 3,
            "state=waiting": 0,
            "since=2000-01-01T00:00:00%2B01:00": 4,
            "since=2100-01-01T00:00:00Z": 0,
        }
        for condition, count in conditions.items():
            assert len((await on.get(f"entities?{condition}"))["items"]) == count, condition
        asked.clear()
        page = await on.get("entities?limit=1")
        assert [one["id"] for one in page["items"]] == asked == [cast["entity_id"]]
        rest = await on.get(f"entities?limit=10&cursor={page['next_cursor']}")
        assert ([one["name"] for one in rest["items"]], rest["next_cursor"]) == (["anna", "bobby", "bob"], None)
        for wrong in ("kind=leaf", "since=yesterday", "since=2026-11-28T09:00:00", "limit=0"):
            await on.get(f"entities?{wrong}", 422)


async def test_a_list_of_requests_comes_in_pages_of_waiting_entities() -> None:
    async with served() as on:
        entities = [
            (await on.post("casts", {"cantrip": "echo", "intent": f"pay {n}"}, 201))["entity_id"] for n in (1, 2, 3)
        ]
        with anyio.fail_after(10):
            while len((await on.get("requests"))["items"]) < 3:
                await anyio.sleep(0.02)
        page = await on.get("requests?limit=2")
        rest = await on.get(f"requests?limit=2&cursor={page['next_cursor']}")
        assert [one["entity"] for one in (*page["items"], *rest["items"])] == entities
        assert rest["next_cursor"] is None
        (own,) = (await on.get(f"requests?entity={entities[1]}"))["items"]
        assert own == page["items"][1]
        await on.get("requests?cursor=nobody", 422)

"""Listings of a runtime: pages of entities and of requests (K-35)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, LoomError, Runtime, ask_first, gate, scripted
from cantrip_actors.wards import max_depth, max_turns

pytestmark = pytest.mark.rule("K-35")


@gate
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def think(context: Any) -> dict[str, Any]:
    intent, last = context[0].content, context[-1]
    if last.role != "tool" and intent == "pay":
        return {"tool_calls": [{"gate": "pay", "args": {"amount": 3}}]}
    if last.role != "tool" and intent == "delegate":
        return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "do it"}}]}
    return {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}


CLERK = Cantrip(
    scripted(think),
    circle=Circle(["done", "call_agent", ask_first(pay)], [max_turns(5), max_depth(1)]),
    name="clerk",
)
DESK = Cantrip(scripted(think), circle=Circle(["done"], [max_turns(5)]), name="desk")


async def test_entities_come_in_pages_and_by_each_condition() -> None:
    async with Runtime.open("memory:", cantrips=[CLERK, DESK]) as runtime:
        parent = await runtime.cast(CLERK, "delegate")
        notes = await runtime.invoke(DESK, "go", name="notes")
        fork = await runtime.fork((await notes.episode()).thread[-1].id, intent="again")
        waiting = await runtime.start(CLERK, "pay")
        async with runtime.requests(follow=True) as feed:
            await anext(feed)
        everything = await runtime.entities()
        (child,) = await runtime.entities(parent=parent.entity_id)
        assert (everything.next, len(everything)) == (None, 5)
        assert everything.items[0].id == waiting.id
        conditions: list[tuple[dict[str, Any], set[str]]] = [
            ({"state": "waiting"}, {waiting.id}),
            ({"kind": "root"}, {parent.entity_id, notes.id, waiting.id}),
            ({"kind": "child"}, {child.id}),
            ({"kind": "fork"}, {fork.entity_id}),
            ({"kind": "lasting"}, {notes.id}),
            ({"cantrip": "desk"}, {notes.id, fork.entity_id}),
            ({"prefix": "no"}, {notes.id}),
            ({"since": "2000-01-01T00:00:00+01:00"}, {entity.id for entity in everything}),
            ({"since": datetime(2100, 1, 1, tzinfo=UTC)}, set()),
            ({"state": "terminated", "cantrip": "clerk", "kind": "root"}, {parent.entity_id}),
        ]
        for condition, expected in conditions:
            assert {entity.id for entity in await runtime.entities(**condition)} == expected, condition
        pages, cursor = [], None
        while pages == [] or cursor is not None:
            page = await runtime.entities(limit=2, before=cursor)
            pages.append(len(page))
            cursor = page.next
        assert pages == [2, 2, 1]
        assert len(await runtime.tenant("acme").entities()) == 0


async def test_a_wrong_condition_is_refused_and_says_what_is_right() -> None:
    async with Runtime.open("memory:") as runtime:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"state": "asleep"}, "state: expected one of 'active', 'waiting'"),
            ({"kind": "leaf"}, "kind: expected one of 'root'"),
            ({"since": "yesterday"}, "since: expected a time with an offset"),
            ({"since": "2026-11-28T09:00:00"}, "since: expected a time with an offset"),
            ({"limit": 0}, "limit: expected a whole number from 1 to 1000"),
            ({"before": "nobody"}, "cursor: expected the `next` of an earlier page"),
            ({"parent": "nobody"}, "entity nobody is not in this loom"),
        ]
        for condition, error in wrong:
            with pytest.raises(LoomError) as refused:
                await runtime.entities(**condition)
            assert error in str(refused.value)


async def test_requests_come_in_pages_of_waiting_entities_the_oldest_first() -> None:
    async with Runtime.open("memory:") as runtime:
        entities = [await runtime.start(CLERK, "pay") for _ in range(5)]
        async with runtime.requests(follow=True) as feed:
            for _ in entities:
                await anext(feed)
        listed, cursor = [], None
        while not listed or cursor is not None:
            page = await runtime.list_requests(after=cursor, limit=2)
            assert len(page) <= 2
            listed += page.items
            cursor = page.next
        assert listed == runtime.requests()
        assert [request.entity for request in listed] == [entity.id for entity in entities]
        assert runtime.requests(entity=entities[3]) == [listed[3]]
        await runtime.decide(listed[3].id, "allow")
        assert runtime.requests(entity=entities[3]) == []


async def test_submissions_come_in_pages() -> None:
    async with Runtime.open("memory:") as runtime:
        acme = runtime.tenant("acme")
        for number in range(5):
            await runtime.submit("desk", "go", key=f"key {number}")
            await acme.submit("desk", "go", key=f"other {number}")
        pages, cursor = [], None
        while not pages or cursor is not None:
            page = await acme.submissions(after=cursor, limit=2)
            pages.append([submission.key for submission in page])
            cursor = page.next
        assert pages == [["other 0", "other 1"], ["other 2", "other 3"], ["other 4"]]
        assert len(await runtime.submissions()) == 10

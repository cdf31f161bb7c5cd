"""The overview of a loom: a look reads what is new, and shows the newest entities (K-35)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from cantrip_actors.loom import Loom, open_store
from cantrip_actors.observe.overview import NEWEST, Overview
from cantrip_actors.records.records import Ended, IntentGiven, Record, Requested
from tests.loom.histories import header, turn
from tests.loom.test_store import no_append

pytestmark = pytest.mark.rule("K-35")

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
BEFORE, TODAY = "2026-11-20T12:00:00.000Z", "2026-11-21T11:59:50.000Z"


def make_entity(entity: str, at: str, end: str = "ended") -> list[Record]:
    """Return the records of an entity with a turn of 15 tokens for $0.25."""
    begins = [_at(header(entity), at), IntentGiven(entity, "go", at)]
    if end == "waiting":
        asks = Requested(entity_id=entity, turn_id="t", tool_call_id="c", gate="pay", at=at, why=f"pay {entity}?")
        return [*begins, asks]
    spends = [_at(record, at) for record in turn(entity, f"{entity} 1", None)]
    return [*begins, *spends, *([Ended(entity, "failed", at)] if end == "ended" else [])]


def _at(record: Any, at: str) -> Any:
    return replace(record, at=at) if hasattr(record, "at") else record


class CountingLoom(Loom):
    """A loom that counts the records that are read across entities."""

    read = 0

    def read_since(self, number: int, limit: int = 500) -> tuple[list[tuple[int, Record]], int]:
        records, last = super().read_since(number, limit)
        self.read += len(records)
        return records, last


def test_it_counts_all_and_lists_the_newest_of_all_of_those_at_work_and_of_those_that_wait() -> None:
    with open_store("memory:") as store:
        store.append([*make_entity("works", BEFORE, "active"), *make_entity("waits", BEFORE, "waiting")])
        for number in range(NEWEST + 30):
            store.append(make_entity(f"e{number:03}", TODAY))
        overview = Overview(Loom(store, no_append), lambda: NOON).look()
    assert overview["totals"]["states"] == {"active": 1, "waiting": 1, "failed": NEWEST + 30}
    assert overview["totals"]["entities"] == NEWEST + 32
    listed = [row["id"] for row in overview["entities"]]
    assert (sorted(listed[:2]), listed[2:]) == (["waits", "works"], [f"e{n:03}" for n in range(30, NEWEST + 30)])
    assert [request["text"] for request in overview["requests"]] == ["pay waits?"]


def test_a_first_look_reads_the_records_of_today_and_a_later_one_the_new_ones() -> None:
    with open_store("memory:") as store:
        for number in range(50):
            store.append(make_entity(f"old {number}", BEFORE))
        store.append(make_entity("new", TODAY, "active"))
        loom = CountingLoom(store, no_append)
        overview = Overview(loom, lambda: NOON)
        first = overview.look()
        assert loom.read == 6
        assert (first["totals"]["turns_today"], first["totals"]["cost_today"]) == (1, 0.25)
        assert (first["totals"]["turns_per_minute"], first["totals"]["tokens_per_minute"]) == (1, 15)
        store.append([Ended("new", "failed", TODAY)])
        second = overview.look()
        assert loom.read == 7
        overview.look()
        assert loom.read == 7
    assert [row["state"] for look in (first, second) for row in look["entities"] if row["id"] == "new"] == [
        "active",
        "failed",
    ]


def test_a_new_overview_equals_the_overview_that_was_made_yesterday() -> None:
    now = [NOON - 86_400]
    with open_store("memory:") as store:
        loom = Loom(store, no_append)
        watching = Overview(loom, lambda: now[0])
        for number, at in enumerate([BEFORE, BEFORE, TODAY, TODAY]):
            store.append(make_entity(f"e{number}", at, ("ended", "waiting", "active", "ended")[number]))
            watching.look()
            now[0] = NOON
            assert watching.look() == Overview(loom, lambda: NOON).look()


def test_a_record_that_appears_late_is_counted_once() -> None:
    """As on a server, where a number is drawn before it is committed."""
    late: set[int] = set()
    now = NOON

    class UnorderedLoom(Loom):
        numbers_in_order = False  # type: ignore[assignment]

        def read_since(self, number: int, limit: int = 500) -> tuple[list[tuple[int, Record]], int]:
            records, last = super().read_since(number, limit)
            return [pair for pair in records if pair[0] not in late], last

    with open_store("memory:") as store:
        store.append([*make_entity("a", TODAY), *make_entity("b", TODAY)])
        late.update(range(1, 8))
        overview = Overview(UnorderedLoom(store, no_append), lambda: now)
        assert overview.look()["totals"]["turns_today"] == 1
        now += 5
        late.clear()
        assert overview.look()["totals"]["turns_today"] == 2
        for _ in range(3):
            now += 5
            assert overview.look()["totals"]["turns_today"] == 2

"""Listings: how an entity stands is in the index, and a page of a selection is found there."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cantrip_actors.loom import Loom, Store, Wanted, copy_loom, forget_entities, open_store, verify_loom
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.loom.stores.selection import ListedEntity, Selection, find_prefix_end
from cantrip_actors.loom.tables.table_listing import write_selection
from cantrip_actors.machine.project import find_cantrip, find_status
from cantrip_actors.machine.state import CantripRef
from cantrip_actors.records.records import (
    Adopted,
    Committed,
    Decided,
    Ended,
    Header,
    IntentGiven,
    Record,
    Requested,
)
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import AT, header
from tests.loom.test_store import KINDS, anywhere, examples, no_append

pytestmark = pytest.mark.rule("K-35")

TIMES = tuple(f"2026-11-2{day}T22:00:00.000Z" for day in range(4))
NAMES = (None, "notes", "note", "notés", "mail")
TENANTS = ("", "acme")
CANTRIPS = (None, "desk", "clerk")

numbers = st.integers(0, 59)
steps = st.lists(
    st.tuples(
        st.sampled_from(("begin", "begin", "turn", "last", "cut", "ask", "decide", "send", "end", "move")), numbers
    ),
    max_size=25,
)
selections = st.builds(
    Selection,
    state=st.none() | st.sampled_from(("active", "waiting", "terminated", "truncated", "failed")),
    kind=st.none() | st.sampled_from(("root", "child", "fork", "lasting")),
    cantrip=st.none() | st.sampled_from(CANTRIPS),
    prefix=st.none() | st.sampled_from(("", "no", "notes", "not\xe9", "x")),
    since=st.none() | st.sampled_from(TIMES),
    parent=st.none() | st.sampled_from(("e0", "e1")),
    name=st.none() | st.sampled_from(NAMES),
    tenant=st.none() | st.sampled_from(TENANTS),
)


def make_history(steps: Sequence[tuple[str, int]]) -> list[Record]:
    """Return the records of a few entities, in the order of recording."""
    records: list[Record] = []
    begun: list[str] = []
    turns: list[str] = []
    for number, (step, which) in enumerate([("begin", 0), *steps]):
        entity = begun[which % len(begun)] if begun else ""
        if step == "begin":
            records += _begin(f"e{len(begun)}", which, begun, turns)
            begun.append(f"e{len(begun)}")
        elif step in ("turn", "last", "cut"):
            turns.append(f"t{number}")
            ends = {"terminated": step == "last", "truncated": step == "cut"}
            committed = Committed(
                turn_id=turns[-1],
                entity_id=entity,
                parent_id=None,
                sequence=number,
                continues=None,
                at=AT,
                duration_ms=1.0,
                **ends,
            )
            records.append(committed)
        else:
            records.append(_make_record(step, entity, which))
    return records


def _begin(entity: str, which: int, begun: Sequence[str], turns: Sequence[str]) -> list[Record]:
    origin: dict[str, Any] = {}
    if which % 3 == 1 and begun:
        origin = {"parent_entity": begun[which % len(begun)]}
    elif which % 3 == 2 and turns:
        origin = {"parent_turn": turns[which % len(turns)], "forked": True}
    fields: dict[str, Any] = {
        "name": NAMES[which % 5],
        "tenant": TENANTS[which % 2],
        "cantrip_name": CANTRIPS[which // 2 % 3],
    }
    begins = replace(header(entity, lasting=which % 4 == 0, **origin, **fields), at=TIMES[which // 3 % 4])
    return [begins, IntentGiven(entity, "go", AT)]


def _make_record(step: str, entity: str, which: int) -> Record:
    if step == "ask":
        return Requested(entity_id=entity, turn_id="t", tool_call_id="call", gate="pay", at=AT)
    if step == "decide":
        return Decided(entity_id=entity, turn_id="t", tool_call_id="call", decision="allow", at=AT)
    if step == "send":
        return IntentGiven(entity, "and again", AT)
    if step == "move":
        return Adopted(entity, "new", "c0ffee", AT, "scripted", {}, {}, CANTRIPS[which % 3])
    return Ended(entity, ("terminated", "failed", "timeout", "budget", "interrupted", "cancelled")[which % 6], AT)


def select_by_hand(records: Sequence[Record], selection: Selection) -> list[str]:
    """Return the entities of a selection by their records, newest first."""
    headers = [record for record in records if isinstance(record, Header)]
    headers.sort(key=lambda one: one.at)
    return [head.entity_id for head in reversed(headers) if _fits(head, records, selection)]


def _fits(head: Header, records: Sequence[Record], selection: Selection) -> bool:
    own = [record for record in records if record.entity_id == head.entity_id]
    kinds = {"root", "child", "fork"} - ({"root"} if head.parent_entity or head.forked else {"child", "fork"})
    kinds -= {"child"} if head.forked else {"fork"}
    kinds |= {"lasting"} if head.lasting else set()
    wanted = selection
    return (
        wanted.state in (None, find_status(own))
        and wanted.kind in (None, *kinds)
        and wanted.cantrip in (None, find_cantrip(own, CantripRef("", head.cantrip_name)).name)
        and (wanted.prefix is None or (head.name is not None and head.name.startswith(wanted.prefix)))
        and (wanted.since is None or head.at >= wanted.since)
        and wanted.parent in (None, head.parent_entity)
        and wanted.name in (None, head.name)
        and wanted.tenant in (None, head.tenant)
    )


def read_pages(store: Store, selection: Selection, limit: int, *, oldest_first: bool = False) -> list[ListedEntity]:
    loom, listed, cursor = Loom(store, no_append), list[ListedEntity](), None
    while True:
        page = loom.page(selection, cursor=cursor, limit=limit, oldest_first=oldest_first)
        assert len(page) <= limit
        listed += page
        if page.next is None:
            return listed
        cursor = page.next


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_says_of_every_entity_what_its_records_say(kind: str) -> None:
    @examples(kind)
    @given(steps, st.lists(st.tuples(selections, st.integers(1, 4)), min_size=1, max_size=5), st.integers(1, 9))
    def holds(steps: Sequence[tuple[str, int]], wanted: Sequence[tuple[Selection, int]], size: int) -> None:
        records = make_history(steps)
        with anywhere(kind) as place:
            with place.open() as store:
                for first in range(0, len(records), size):
                    store.append(records[first : first + size])
                assert_index_is_right(store, records, wanted)
            if place.lasts:
                with place.open() as again:
                    assert_index_is_right(again, records, wanted[:1])

    holds()


def assert_index_is_right(store: Store, records: Sequence[Record], wanted: Sequence[tuple[Selection, int]]) -> None:
    loom, states = Loom(store, no_append), Counter[str]()
    for head in loom.headers():
        own = [record for record in records if record.entity_id == head.entity_id]
        assert loom.state(head.entity_id) == find_status(own)
        states[find_status(own)] += 1
    assert loom.count_states() == states
    for selection, limit in wanted:
        expected = select_by_hand(records, selection)
        assert [one.id for one in read_pages(store, selection, limit)] == expected
        assert [one.id for one in read_pages(store, selection, limit, oldest_first=True)] == expected[::-1]
    assert verify_loom(store).ok


@pytest.mark.rule("C-50", "X-42")
def test_a_forgotten_entity_is_listed_without_name_tenant_and_cantrip(store: Store) -> None:
    begins = header("e", name="notes", tenant="acme", cantrip_name="desk", lasting=True)
    store.append([begins, IntentGiven("e", "go", AT), Ended("e", "cancelled", AT)])
    forget_entities(store, Wanted(["e"]))
    assert store.select() == [ListedEntity("e", None, "", None, "forgotten", "lasting", None, AT)]
    assert store.select(Selection(tenant="acme")) == store.select(Selection(cantrip="desk")) == []
    assert (store.count_states(), store.count_states("acme")) == ({"forgotten": 1}, {})
    assert verify_loom(store).ok


def test_a_copy_has_the_same_listing(store: Store) -> None:
    store.append(make_history([("begin", number) for number in range(12)] + [("ask", 1), ("last", 2), ("move", 3)]))
    with open_store("memory:") as copy:
        copy_loom(store, copy)
        assert copy.select() == store.select()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("update entities set state = 'waiting'", "the index says that entity e is busy, waiting, of cantrip desk"),
        ("update entities set cantrip = 'clerk'", "the index says that entity e is busy, active, of cantrip clerk"),
        ("update entities set tenant = 'acme'", "the row of its entity differs from this line"),
        ("update tallies set many = 2", "the number of entities in each state differs from their rows"),
        ("update entities set at = '2020'", "the row of its entity differs from this line"),
    ],
)
def test_verify_finds_an_index_that_was_changed(tmp_path: Any, change: str, fault: str) -> None:
    with open_store(tmp_path / "loom.db") as store:
        store.append([header("e", cantrip_name="desk"), IntentGiven("e", "go", AT)])
    with closing(sqlite3.connect(tmp_path / "loom.db")) as by_hand, by_hand:
        by_hand.execute(change)
    by_hand.close()
    with open_store(tmp_path / "loom.db") as store:
        (found,) = verify_loom(store).faults
    assert fault in str(found)


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        *(Selection(**{field: "x"}) for field in ("cantrip", "parent", "tenant", "prefix", "name")),  # type: ignore[arg-type]
        *(Selection(kind=kind) for kind in ("root", "child", "fork", "lasting")),  # type: ignore[arg-type]
        Selection(state="failed"),
        Selection(since=AT),
        Selection(state="waiting", since=AT),
    ],
    ids=str,
)
@pytest.mark.parametrize("cursor", [None, "e"])
def test_each_condition_has_an_index_in_the_order_of_the_listing(
    tmp_path: Any, selection: Selection, cursor: str | None
) -> None:
    with open_store(tmp_path / "loom.db"):
        pass
    query, values = write_selection(selection, cursor)
    with closing(sqlite3.connect(tmp_path / "loom.db")) as db, db:
        plan = [row[3] for row in db.execute(f"explain query plan {query}", (*values, 20))]
    db.close()
    assert " USING INDEX " in plan[0]
    if selection.prefix is None and selection.name is None:  # those with such a name are few
        assert not any("TEMP B-TREE" in step for step in plan)


def test_a_redacted_loom_lists_entities_without_secrets() -> None:
    with open_store("memory:") as store:
        store.append([header("e", name="for hunter2", cantrip_name="hunter2")])
        (listed,) = redacted_loom(Loom(store, no_append), Redactor(["hunter2"])).page()
    assert "hunter2" not in repr(listed)


@given(st.text(st.characters(codec="utf-8"), max_size=4), st.text(st.characters(codec="utf-8"), max_size=4))
def test_the_end_of_a_prefix_follows_all_texts_with_it_and_no_other(prefix: str, text: str) -> None:
    end = find_prefix_end(prefix)
    assert text.startswith(prefix) == (text >= prefix and (end is None or text < end))
    assert prefix + text < (end or prefix + text + "x")


def test_an_unknown_cursor_and_a_wrong_limit_are_refused(store: Store) -> None:
    loom = Loom(store, no_append)
    with pytest.raises(LoomError, match="cursor: expected the `next` of an earlier page"):
        loom.page(cursor="nobody")
    for limit in (0, 1001, True):
        with pytest.raises(LoomError, match="limit: expected a whole number from 1 to 1000"):
            loom.page(limit=limit)
    with pytest.raises(LoomError, match="kind: expected one of"):
        Selection(kind="leaf")  # type: ignore[arg-type]

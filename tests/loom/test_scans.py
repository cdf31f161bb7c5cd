"""No frequent query reads a whole table, so its cost does not grow with the number of unloaded entities."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from cantrip_actors.loom.stores.nodes import NodeInfo
from cantrip_actors.machine.project import Life
from cantrip_actors.records.submissions import SubmissionPosition, SubmissionRow, encode_submission
from tests.exhaustive import EXHAUSTIVE
from tests.loom import postgres as servers
from tests.loom.histories import header
from tests.loom.test_inbox import mail, post, taker
from tests.loom.test_store import anywhere

SIZES = [(50_000, 50_000), *([(1_000_000, 100_000)] if EXHAUSTIVE else [])]
"""Sleeping entities, each held by a living node, with a schedule that is not due and a submission in one of ten queues;
and settled mails."""

LARGE = ("entities", "trees", "leases", "mail", "timers", "submissions", "records")

ROW = encode_submission(SubmissionRow(key="q", cantrip="desk", intent="go", at=1.0)).decode()

FILL = """
insert into holders (owner, until) values ('elsewhere', clock_timestamp() + interval '1 hour');
insert into entities select n, 's' || n, n, null, null, false, 'n' || n, true, '', '2026-11-21T22:00:00.123Z', 1,
  'terminated', 'desk' from generate_series(1, {many}) n;
insert into trees select n, '', 0, 0, 0 from generate_series(1, {many}) n;
insert into leases (entity, holder) select 's' || n, 1 from generate_series(1, {many}) n;
insert into records select n, n, null, '' from generate_series(1, {many}) n;
insert into mail select n, n, 1, true, 'k', '', '', n from generate_series(1, {mails}) n;
insert into timers select 0, 't' || n, 4e9 + n, '' from generate_series(1, {many}) n;
insert into submissions select 'q' || n, 'queue' || n % 10, n % 3, n, '{row}' from generate_series(1, {many}) n;
select setval('seqs', {many}), setval('mails', {mails});
"""


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]} entities")
def place(request: pytest.FixtureRequest) -> Iterator[Any]:
    many, mails = request.param
    with anywhere("postgres") as fresh:
        with fresh.open():
            pass
        with by_hand(fresh) as other:
            other.execute(FILL.format(many=many, mails=mails, row=ROW))
            for table in LARGE:
                other.execute(f"analyze {table}")
        yield fresh


@contextmanager
def by_hand(place: Any) -> Iterator[Any]:
    with psycopg.connect(servers.server(), autocommit=True) as connection:
        connection.execute(f"set search_path to {place.url.rpartition('=')[2]}")
        yield connection


def scans(place: Any) -> dict[str, int]:
    """How often each large table was read as a whole."""
    with by_hand(place) as other:
        query = "select relname, seq_scan from pg_stat_user_tables where schemaname = current_schema()"
        return {table: count for table, count in other.execute(query) if table in LARGE}


def look(store: Any) -> None:
    store.join("us", 60, NodeInfo("w", 10))
    seen = store.survey(10)
    store.unowned(10, seen)
    store.work()
    store.sweep(seen.dead)
    store.nodes()
    store.dead_holders()


def join(store: Any) -> None:
    info = NodeInfo("w", 10)
    store.join("me", 60, info)
    store.beat("me", 60, info, busy=0, is_draining=False)
    store.renew("me", 60)
    store.leave("me")


def begin(store: Any) -> None:
    lease = store.claim("e", "me", 60)
    store.append([header("e", lasting=True)], {"e": lease.token})
    store.release(lease)


def send(store: Any) -> None:
    store.append([header("f", lasting=True)])
    (no,) = post(store, mail("a", "f"))
    after, new = store.new_mail(no - 1)
    assert [row.no for row in new] == [no]
    store.new_mail(after)
    store.waiting()
    store.pending("f")
    store.count_mail("f")
    store.find_mail("f", "a")
    store.append([taker(mail("a", "f"))], taken=[(0, no)])
    store.keep_checkpoint("f", store.tip("f"), b"state")
    assert store.facts("f").checkpoint is not None


def fire(store: Any) -> None:
    store.timers_due(1e9)
    store.find_timer("", "none")
    store.timers("s7")


def queue(store: Any) -> None:
    assert len(store.submissions("queue3", limit=10)) == 10
    assert store.submissions("queue3", after=SubmissionPosition(2, 1e9, "")) == []
    assert store.has_submissions("queue3", 1)
    assert not store.has_submissions("queue3", 1, priority=1)
    assert not store.next_due(0.0).has_submission
    assert store.find_submission("none") is None
    store.count_submissions("queue none")
    store.accounts("x")


def find(store: Any) -> None:
    store.named("n7")
    store.life("s7")
    store.place("s7")
    store.is_held("s7")
    store.below("s7")
    store.tip("s7")
    store.quarantined()
    store.entities_at(Life.BUSY, Life.BUSY)


@pytest.mark.rule("N-15", "N-50", "N-77")
@pytest.mark.parametrize("work", [look, join, begin, send, fire, queue, find])
def test_frequent_queries_do_not_scan_a_whole_table(place: Any, work: Callable[[Any], None]) -> None:
    before = scans(place)
    with place.open() as store:
        work(store)
    assert scans(place) == before


@pytest.mark.rule("N-77")
def test_tables_whose_rows_change_all_the_time_are_vacuumed_often() -> None:
    with anywhere("postgres") as fresh, fresh.open() as store:
        store.join("me", 60, NodeInfo("w", 10))
        store.change_account("shared", lambda *_: ("used", None), 0.0)
        with by_hand(fresh) as other:
            query = (
                "select relname from pg_class where relnamespace = current_schema()::regnamespace "
                "and 'autovacuum_vacuum_scale_factor=0.02' = any(reloptions)"
            )
            often = {table for (table,) in other.execute(query)}
    assert often == {"mail", "trees", "timers", "submissions", "leases", "holders", "nodes", "accounts"}

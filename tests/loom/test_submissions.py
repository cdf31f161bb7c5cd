"""Submissions, in every store: they wait in queues, in an order, until they are removed once."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import LoomError
from cantrip_actors.loom import JsonlStore, SqliteStore, copy_loom, open_store, repair_loom, verify_loom
from cantrip_actors.records.submissions import (
    FIRST_SUBMISSION,
    SubmissionPosition,
    SubmissionRow,
    decode_submission,
    encode_submission,
)
from tests.loom.histories import run
from tests.loom.test_store import KINDS, LASTING, SHARED, anywhere, examples
from tests.loom.test_timers import schedule

pytestmark = pytest.mark.rule("K-34")


def submission(key, priority=0, at=1.0, queue="reports", **facts):
    facts = {"cantrip": "desk", "intent": f"do {key}", **facts}
    return SubmissionRow(key=key, priority=priority, at=at, queue=queue, **facts)


def keys(rows):
    return [row.key for row in rows]


@given(st.text(), st.text(), st.integers(-100, 100), st.floats(0, 1e12), st.none() | st.text())
def test_a_submission_is_read_as_it_was_written(key, intent, priority, at, trace):
    row = submission(key, priority, at, intent=intent, trace=trace, tenant="acme")
    assert decode_submission(encode_submission(row)) == row


def test_an_intent_that_only_the_standard_library_can_write_is_read():
    row = submission("a", intent="half a character: \ud83d")
    assert decode_submission(encode_submission(row)) == row


def test_a_line_that_is_no_submission_is_refused():
    for line in (b"", b"{}", b"[]", b'{"key":1}'):
        with pytest.raises(LoomError, match="is not a submission"):
            decode_submission(line)


@pytest.mark.rule("N-50")
def test_each_queue_has_an_order_by_priority_and_then_by_time(store):
    rows = [
        submission("low", -1, at=1.0),
        submission("late", at=3.0),
        submission("b", at=2.0),
        submission("a", at=2.0),
        submission("high", 9, at=4.0),
        submission("other", 9, queue="mails"),
        submission("free", queue=""),
    ]
    assert all(map(store.add_submission, rows))
    order = ["high", "a", "b", "late", "low"]
    assert keys(store.submissions("reports")) == order
    assert keys(store.submissions("reports", limit=2)) == order[:2]
    assert keys(store.submissions("reports", after=rows[3].position)) == order[2:]
    assert keys(store.submissions("reports", after=SubmissionPosition(0, 2.5, ""))) == order[3:]
    assert (keys(store.submissions("mails")), keys(store.submissions(""))) == (["other"], ["free"])
    assert store.submissions("none") == []
    assert keys(store.list_submissions()) == sorted(row.key for row in rows)
    assert keys(store.list_submissions("b", 2)) == ["free", "high"]
    assert [store.count_submissions(queue) for queue in ("reports", "mails", "none")] == [5, 1, 0]


@pytest.mark.rule("N-50")
def test_submissions_of_at_least_a_priority_are_counted(store):
    for key, priority in (("a", 1), ("b", 0), ("c", 0), ("d", -1)):
        store.add_submission(submission(key, priority))
    counts = {
        priority: [store.has_submissions("reports", n, priority) for n in (1, 2, 3, 4, 5)] for priority in (2, 1, 0)
    }
    assert [sum(each) for each in counts.values()] == [0, 1, 3]
    assert [store.has_submissions("reports", n) for n in (4, 5)] == [True, False]
    assert not store.has_submissions("none", 1)


def test_a_submission_is_added_and_removed_once(store):
    row = submission("a")
    assert store.find_submission("a") is None
    assert [store.add_submission(row), store.add_submission(row)] == [True, False]
    assert not store.add_submission(submission("a", intent="something else"))
    assert store.find_submission("a") == row
    assert not store.drop_submission(submission("a", intent="something else"))
    assert [store.drop_submission(row), store.drop_submission(row)] == [True, False]
    assert store.find_submission("a") is None
    assert store.submissions("reports") == store.list_submissions() == []
    assert store.add_submission(submission("a", intent="something else"))


@pytest.mark.rule("X-42")
def test_tenants_have_submissions_of_the_same_key(store):
    assert store.add_submission(submission("a"))
    assert store.add_submission(submission("a", tenant="acme"))
    assert len(store.submissions("reports")) == 2
    assert store.find_submission(submission("a", tenant="acme").id).tenant == "acme"


def test_a_look_finds_the_next_timer_and_whether_a_submission_without_a_queue_waits(store):
    store.replace_timer(None, schedule(due=5.0))
    store.add_submission(submission("queued"))
    assert store.next_due(0.0) == (5.0, False)
    free = submission("free", queue="")
    store.add_submission(free)
    assert store.next_due(0.0) == (5.0, True)
    store.drop_submission(free)
    assert store.next_due(5.0) == (float("inf"), False)
    assert store.timers_due(1e12) == [schedule(due=5.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_contain_each_submission_once(kind):
    @examples(kind)
    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-2, 2), st.integers(0, 2)), max_size=9))
    def holds(choices):
        with anywhere(kind) as place, place.open() as store:
            rows = {key: submission(key, priority, float(at)) for key, priority, at in reversed(choices)}
            for row in rows.values():
                store.add_submission(row)
            pages, after = [], FIRST_SUBMISSION
            while page := store.submissions("reports", after=after, limit=2):
                pages += page
                after = page[-1].position
            assert pages == sorted(rows.values(), key=lambda row: row.position)

    holds()


@pytest.mark.rule("N-50")
@pytest.mark.parametrize("kind", LASTING)
def test_submissions_are_there_after_reopening_and_in_a_copy(kind):
    with anywhere(kind) as place:
        with place.open() as store:
            for key in "abc":
                store.add_submission(submission(key))
            store.drop_submission(submission("b"))
        with place.open() as store, anywhere("memory") as there, there.open() as copy:
            assert keys(store.submissions("reports")) == ["a", "c"]
            assert verify_loom(store).ok
            copy_loom(store, copy)
            assert copy.submissions("reports") == store.submissions("reports")
            store.scrub()
        with open_store(place.url, read_only=True) as reader:
            assert keys(reader.submissions("reports")) == ["a", "c"]
            with pytest.raises(LoomError, match="read-only"):
                reader.add_submission(submission("d"))


@pytest.mark.rule("C-53")
@pytest.mark.parametrize("name", ["loom.db", "loom.jsonl"])
def test_a_repair_keeps_submissions(tmp_path, name):
    with open_store(tmp_path / name) as store:
        store.append([*run("a", "a1"), *run("b", "b1")])
        for key in "xyz":
            store.add_submission(submission(key))
        store.drop_submission(submission("y"))
    repair_loom(tmp_path / name)
    with open_store(tmp_path / name) as store:
        assert keys(store.submissions("reports")) == ["x", "z"]


@pytest.mark.rule("K-34")
def test_a_submission_that_is_added_while_the_file_is_rewritten_waits_once(tmp_path, monkeypatch):
    path, dump = tmp_path / "loom.jsonl", JsonlStore._dump_journal

    def add_meanwhile(store, erased):
        store.add_submission(submission("a"))
        yield from dump(store, erased)

    with open_store(path) as store, monkeypatch.context() as patch:
        patch.setattr(JsonlStore, "_dump_journal", add_meanwhile)
        store.scrub()
    with open_store(path) as store:
        assert (keys(store.submissions("reports")), store.count_submissions("reports")) == (["a"], 1)
        assert store.drop_submission(submission("a"))
        assert store.submissions("reports") == []


@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_add_and_remove_a_submission_once(kind):
    with anywhere(kind) as place, place.open() as store, place.open() as other:
        assert [store.add_submission(submission("a")), other.add_submission(submission("a"))] == [True, False]
        assert other.submissions("reports") == [submission("a")]
        assert [other.drop_submission(submission("a")), store.drop_submission(submission("a"))] == [True, False]
        assert store.submissions("reports") == []


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize(
    ("change", "fault"),
    [("queue = 'mails'", "its row differs from its line"), ("line = 'nothing'", "is not a submission")],
)
def test_verify_finds_a_row_that_was_changed(kind, change, fault):
    with anywhere(kind) as place, place.open() as store:
        store.add_submission(submission("a"))
        statement = f"update submissions set {change}"
        if isinstance(store, SqliteStore):
            with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
                other.execute(statement)
        else:
            url, _, name = place.url.partition("&schema=")
            with psycopg.connect(url, autocommit=True) as other:
                other.execute(f"set search_path to {name}")
                other.execute(statement)
        (found,) = verify_loom(store).faults
        assert str(found).startswith("submission a: ")
        assert fault in str(found)


@pytest.mark.rule("N-50", "N-77")
def test_a_look_at_a_queue_reads_the_index_of_that_queue_only(tmp_path):
    with SqliteStore(tmp_path / "loom.db") as store:
        plans = []
        reader = store._readers.take()  # the next reads use it
        reader.set_trace_callback(plans.append)
        store._readers.give_back(reader)
        store.submissions("reports")
        store.has_submissions("reports", 7)
        store.count_submissions("reports")
        store.next_due(0.0)
        reader.set_trace_callback(None)
        assert len(plans) == 4
        for query in plans:
            explained = [row[3].decode() for row in reader.execute(f"explain query plan {query}")]
            (found,) = [step for step in explained if "submissions" in step]
            assert found.startswith(
                ("SEARCH submissions USING INDEX next", "SEARCH submissions USING COVERING INDEX next")
            )

"""Timers, in every store: they are set and cancelled with records, found when they are due, and replaced once."""

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import EntityEnded, KeyUsed, LoomError
from cantrip_actors.loom import Mail, SqliteStore, Timer, copy_loom, open_store, verify_loom
from cantrip_actors.loom.memory import jsonl
from cantrip_actors.loom.memory.jsonl import JsonlStore
from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.records.records import Ended, Steered
from cantrip_actors.records.timers import FIRST, Due, Rule, Scheduled, decode_timer, encode_timer
from cantrip_actors.terms.image import Image
from tests.loom.histories import AT, header
from tests.loom.statements import trace_reads
from tests.loom.test_blobs import FailingDisk, Killed
from tests.loom.test_store import KINDS, SHARED, anywhere, examples
from tests.pictures import png


def mail(key, entity="e", **facts):
    return Mail(entity_id=entity, key=key, kind="timer", body={"intent": "wake up"}, at=AT, **facts)


def timer(id="t", due=100.0, entity="e", **facts):
    return Timer(id=id, due=due, entity_id=entity, mail=mail(f"{entity}:{id}", **facts))


def schedule(id="s", due=100.0, **facts):
    what = Scheduled(to="entity", name="notes", intent="go", rule=Rule(every=60.0), created=0.0, **facts)
    return Timer(id=id, due=due, schedule=what)


def note(entity="e", text="x"):
    """Any record."""
    return Steered(entity, text, AT)


def end(entity="e"):
    return Ended(entity, "cancelled", AT)


def ids(store, until=math.inf, **options):
    return [one.id for one in store.timers_due(until, **options)]


@pytest.fixture
def box(store):
    """A store with a long-lived entity e, its child c, and another entity f."""
    store.append([header("e", lasting=True), header("c", parent_entity="e"), header("f", lasting=True)])
    return store


@given(st.floats(allow_nan=False, allow_infinity=False) | st.none(), st.text("ab é\U0001f600\ud83d", max_size=5))
def test_a_timer_is_decoded_as_it_was_encoded(due, text):
    for one in (timer(text, due, images=(Image.at("https://e.org/a.png"),)), schedule(text, due, queued=(1.0, 2.5))):
        assert decode_timer(encode_timer(one)) == one


def test_a_line_that_is_not_a_timer_is_refused():
    with pytest.raises(LoomError, match="is not a timer"):
        decode_timer(b"{}")


def test_a_timer_is_set_with_a_record(box):
    box.append([note(), note()], timers=[(1, timer("b", 20.0)), (0, timer("a", 10.0))])
    assert box.find_timer("e", "a") == timer("a", 10.0)
    assert box.timers("e") == [timer("a", 10.0), timer("b", 20.0)]
    assert box.find_timer("e", "c") is box.find_timer("nobody", "a") is None
    assert box.timers() == box.timers("f") == box.timers("nobody") == []


def test_a_timer_replaces_the_one_with_its_id(box):
    box.append([note()], timers=[(0, timer(due=10.0))])
    box.append([note()], timers=[(0, timer(due=30.0))])
    assert box.timers_due(math.inf) == [timer(due=30.0)]


def test_a_timer_without_a_due_time_cancels_the_timer_with_its_id(box):
    box.append([note()], timers=[(0, timer("a")), (0, timer("b"))])
    box.append([note()], timers=[(0, Timer(id="a", due=None, entity_id="e"))])
    box.append([note()], timers=[(0, Timer(id="unknown", due=None, entity_id="e"))])
    assert ids(box) == ["b"]


def test_a_timer_of_an_unknown_entity_is_refused(box):
    with pytest.raises(LoomError, match="which is not in this loom"):
        box.append([note()], timers=[(0, timer(entity="nobody"))])
    assert list(box.records("e")) == [header("e", lasting=True)]


def test_a_timer_keeps_the_images_of_its_mail(box):
    box.append([note()], timers=[(0, timer(images=(Image(png()),)))])
    (found,) = box.timers("e")
    assert found.mail.images[0].data == png()


def test_timers_are_due_in_order(box):
    box.append([note()], timers=[(0, timer("late", 30.0)), (0, timer("b", 10.0)), (0, timer("a", 10.0))])
    box.replace_timer(None, schedule("s", 10.0))
    box.replace_timer(None, schedule("never", None))
    assert ids(box, 9.9) == []
    assert ids(box, 10.0) == ["s", "a", "b"]
    assert ids(box) == ["s", "a", "b", "late"]
    assert ids(box, limit=2) == ["s", "a"]
    assert ids(box, after=Due(10.0, "e", "a")) == ["b", "late"]
    assert ids(box, after=Due(10.5)) == ["late"]


def test_the_next_due_time_is_found_without_reading_timers(box):
    assert box.next_due(-math.inf) == (math.inf, False)
    for n in range(3):
        box.replace_timer(None, schedule(f"s{n}", due=float(n)))
    box.replace_timer(None, schedule("never", due=None))
    assert [box.next_due(after).due for after in (-math.inf, -1.0, 0.0, 1.5, 2.0)] == [0.0, 0.0, 1.0, 2.0, math.inf]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_due_timers_contain_each_timer_once(kind):
    @examples(kind)
    @given(st.lists(st.tuples(st.sampled_from(["e", "f", ""]), st.sampled_from("abcd"), st.integers(0, 3)), max_size=9))
    def holds(rows):
        with anywhere(kind) as place, place.open() as store:
            store.append([header("e"), header("f")])
            wanted = {}
            for entity, id, due in rows:
                one = timer(id, float(due), entity) if entity else schedule(id, float(due))
                store.replace_timer(wanted.get((entity, id)), one)
                wanted[entity, id] = one
            found, after = [], FIRST
            while page := store.timers_due(2.0, after=after, limit=2):
                found += page
                after = page[-1].position
            assert sorted(found, key=repr) == sorted([one for one in wanted.values() if one.due <= 2], key=repr)
            assert [one.due for one in found] == sorted(one.due for one in found)

    holds()


# ----------------------------------------------------------------------------------------------------- with its entity


@pytest.mark.parametrize("ends", ["e", "c"])
def test_the_timers_of_an_entity_end_with_it(box, ends):
    box.append([note()], timers=[(0, timer("a", entity="e")), (0, timer("b", entity="c")), (0, timer(entity="f"))])
    box.replace_timer(None, schedule())
    box.append([end(ends)])
    assert box.timers(ends) == []
    assert len(box.timers_due(math.inf)) == 3


def test_a_timer_that_is_set_in_the_batch_that_ends_its_entity_is_not_kept(box):
    box.append([note(), end("c")], timers=[(0, timer(entity="c"))])
    assert box.timers_due(math.inf) == []


def test_the_timers_of_an_entity_end_with_it_when_the_loom_is_opened_again(place):
    if not place.lasts:
        pytest.skip("a memory loom is not opened again")
    with place.open() as store:
        store.append([header("e", lasting=True)])
        store.append([note()], timers=[(0, timer())])
        store.replace_timer(None, schedule())
    with place.open() as store:
        assert store.timers_due(math.inf) == [schedule(), timer()]
        store.append([end()])
        assert store.timers_due(math.inf) == [schedule()]
    with place.open() as store:
        assert store.timers_due(math.inf) == [schedule()]
        assert verify_loom(store).ok


# ------------------------------------------------------------------------------------------------------------- firing


@pytest.mark.rule("C-30")
def test_a_timer_is_replaced_only_if_it_is_as_expected(box):
    first, later = schedule(), schedule(due=160.0)
    assert box.replace_timer(None, first) == []
    assert box.replace_timer(None, later) is None
    assert box.replace_timer(later, first) is None
    assert box.replace_timer(first, later, [mail("k")]) is not None
    assert box.replace_timer(first, later, [mail("l")]) is None
    assert [one.mail.key for one in box.pending("e")] == ["k"]
    assert box.timers() == [later]
    assert box.replace_timer(later, None) == []
    assert box.replace_timer(later, None) is None
    assert box.timers() == []


@pytest.mark.rule("C-30")
def test_a_timer_of_an_entity_is_removed_with_the_mail_that_it_posts(box):
    box.append([note()], timers=[(0, timer())])
    (row,) = box.replace_timer(timer(), None, [timer().mail])
    assert [(one.no, one.mail) for one in box.pending("e")] == [(row.no, timer().mail)]
    assert box.timers_due(math.inf) == []


@pytest.mark.parametrize("wrong", [KeyUsed, EntityEnded])
def test_a_timer_whose_mail_is_refused_is_kept(box, wrong):
    if wrong is EntityEnded:
        one = replace(timer(), mail=mail("k", "f"))
        box.append([end("f")])
    else:
        one = timer()
        box.post([replace(one.mail, body={"intent": "something else"})])
    box.append([note()], timers=[(0, one)])
    with pytest.raises(wrong):
        box.replace_timer(one, None, [one.mail])
    assert box.timers("e") == [one]


def test_a_repeated_posting_of_the_same_mail_is_one_mail(box):
    box.replace_timer(None, schedule())
    (first,) = box.replace_timer(schedule(), schedule(due=160.0), [mail("k")])
    (second,) = box.replace_timer(schedule(due=160.0), None, [mail("k")])
    assert (first.is_new, second) == (True, first._replace(is_new=False))
    assert len(box.pending("e")) == 1


@pytest.mark.parametrize("kind", SHARED)
def test_timers_are_shared_between_store_objects(kind):
    with anywhere(kind) as place, place.open() as store, place.open() as other:
        store.append([header("e", lasting=True)])
        store.append([note()], timers=[(0, timer())])
        assert other.timers_due(math.inf) == [timer()]
        assert other.replace_timer(timer(), None, [timer().mail])
        assert store.replace_timer(timer(), None, [timer().mail]) is None
        other.append([note()], timers=[(0, timer())])
        store.append([end()])
        assert other.timers_due(math.inf) == []


# ------------------------------------------------------------------------------------------------------------- storing


def test_a_closed_or_read_only_store_sets_no_timer(place):
    if not place.lasts:
        pytest.skip("a memory loom is never read-only")
    with place.open() as store:
        store.replace_timer(None, schedule())
    with pytest.raises(LoomError, match="is closed"):
        store.replace_timer(schedule(), None)
    with open_store(place.url, read_only=True) as reader:
        assert reader.timers() == [schedule()]
        with pytest.raises(LoomError, match="read-only"):
            reader.replace_timer(schedule(), None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_copy_has_the_timers_and_schedules(kind, other):
    with anywhere(kind) as place, place.open() as store, anywhere(other) as there, there.open() as copy:
        store.append([header("e", lasting=True)])
        store.append([note()], timers=[(0, timer("a")), (0, timer("b", images=(Image(png()),)))])
        store.replace_timer(None, schedule("s"))
        store.replace_timer(None, schedule("paused", None))
        copy_loom(store, copy)
        assert copy.timers() == store.timers()
        assert copy.timers("e") == store.timers("e")
        assert copy.timers("e")[1].mail.images[0].data == png()


@pytest.mark.rule("C-32")
def test_finding_due_timers_reads_only_the_index_of_due_times(tmp_path):
    with SqliteStore(tmp_path / "loom.db") as store:
        plans = []
        trace_reads(store, plans.append)
        store.timers_due(100.0)
        trace_reads(store, None)
        query = plans[0].replace("Inf", "9e999")
        (found,) = [row[3] for row in store._fetch_rows(f"explain query plan {query}") if b"timers" in row[3]]
    assert found.startswith(b"SEARCH timers USING INDEX due_timers")


# --------------------------------------------------------------------------------------------------- the file of JSONL


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.jsonl"


def test_a_timer_whose_record_was_not_written_does_not_count(path):
    with JsonlStore(path) as store:
        store.append([header("e", lasting=True)])
        store.append([note()], timers=[(0, timer("kept"))])
        store.append([note()], timers=[(0, timer("lost")), (0, Timer(id="kept", due=None, entity_id="e"))])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([b'{"loom":1}\n', *lines[1:-1]]))  # nothing of it was acknowledged yet
    for _ in range(2):
        with JsonlStore(path) as store:
            assert ids(store) == ["kept"]
            store.append([note()])


@pytest.mark.rule("C-30")
@pytest.mark.parametrize("at", [1, 2])
def test_a_kill_at_any_write_leaves_a_timer_fired_or_due(path, at):
    with JsonlStore(path) as store:
        store.append([header("e", lasting=True)])
        store.append([note()], timers=[(0, timer())])
    with JsonlStore(path, disk=Disk(write=FailingDisk(at, Killed()).write)) as store, contextlib.suppress(Killed):
        store.replace_timer(timer(), None, [timer().mail])
    with JsonlStore(path) as store:
        due = store.timers_due(math.inf)
        assert due in ([], [timer()])
        if due:
            store.replace_timer(timer(), None, [timer().mail])
        assert [one.mail for one in store.pending("e")] == [timer().mail]


def test_a_failed_write_changes_no_timer(path):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with JsonlStore(path) as store:
        store.append([header("e", lasting=True)])
        store.append([note()], timers=[(0, timer())])
        whole = store._file.disk
        store._file.disk = Disk(write=fail)
        with pytest.raises(LoomError, match="cannot write"):
            store.replace_timer(timer(), None)
        store._file.disk = whole
        assert store.timers("e") == [timer()]
    with JsonlStore(path) as store:
        assert store.timers("e") == [timer()]


def test_a_file_with_mostly_outdated_timers_is_rewritten_when_it_is_opened(path, monkeypatch):
    monkeypatch.setattr(jsonl, "WASTE", 0)
    with JsonlStore(path) as store:
        one = schedule()
        store.replace_timer(None, one)
        for n in range(300):
            store.replace_timer(one, one := schedule(due=float(n)))
        assert store.timers() == [one]
    assert len(path.read_bytes().splitlines()) == 302
    with JsonlStore(path) as store:
        assert store.timers() == [one]
        assert len(path.read_bytes().splitlines()) == 2


def test_a_damaged_line_of_a_timer_is_named(path):
    with JsonlStore(path) as store:
        store.replace_timer(None, schedule())
    path.write_bytes(path.read_bytes().replace(b'"timer":{"id":', b'"timer":{"it":'))
    with pytest.raises(LoomError, match=r"line 2 is corrupt"):
        JsonlStore(path)


@pytest.mark.rule("N-47")
def test_timers_are_replaced_together_and_each_has_its_own_result(box):
    box.post([mail("used")])
    one, other, gone, full = (schedule(id, 10.0) for id in ("one", "other", "gone", "full"))
    for each in (one, other, full):
        box.replace_timer(None, each)
    used = mail("used", sender="somebody else")
    results = box.replace_timers(
        [
            (other, None, [mail("b")]),
            (gone, None, [mail("c")]),
            (full, None, [replace(used, body={"intent": "another one"})]),
            (one, schedule("one", 20.0), [mail("a")]),
        ]
    )
    assert [row.key for row in results[0]] == ["b"]
    assert results[1] is None
    assert isinstance(results[2], KeyUsed)
    assert [row.key for row in results[3]] == ["a"]
    assert results[0][0].no < results[3][0].no
    assert [each.id for each in box.timers()] == ["full", "one"]
    assert [each.mail.key for each in box.pending("e")] == ["used", "b", "a"]


@pytest.mark.rule("N-47")
def test_replacing_timers_changes_nothing_when_the_old_timers_do_not_exist(box):
    assert box.replace_timers([(schedule(), None, [mail("a")]), (schedule("t"), None, [])]) == [None, None]
    assert box.pending("e") == []

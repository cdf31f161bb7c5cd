"""The inbox, in every store: mail is accepted once for its key, waits in order, and is taken once, with its record."""

import errno
import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import inbox as bench
from cantrip_actors import EntityEnded, InboxFull, KeyUsed, LoomError, UnknownEntity
from cantrip_actors.loom import (
    Fenced,
    JsonlStore,
    Mail,
    MailRow,
    SqliteStore,
    Taken,
    Timer,
    copy_loom,
    mark_gone,
    open_store,
    this_process,
    verify_loom,
)
from cantrip_actors.loom.memory import jsonl
from cantrip_actors.loom.postgres.postgres import POSTING
from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.loom.sqlite import sqlite
from cantrip_actors.machine.project import Life
from cantrip_actors.records.mail import CONTROL, INTENTS, decode_mail, encode_mail, get_key
from cantrip_actors.records.records import Ended, IntentGiven, MailRefused, Steered
from cantrip_actors.terms.image import Image
from tests.exhaustive import EXHAUSTIVE
from tests.loom import postgres
from tests.loom.histories import AT, header, objects, run
from tests.loom.test_blobs import FailingDisk
from tests.loom.test_store import KINDS, anywhere, examples
from tests.pictures import images, png

LATER = "2026-11-30T00:00:00.000Z"


def mail(key, entity="e", text="go", kind="intent", **facts):
    body = {"intent": text} if kind == "intent" else {"text": text}
    return Mail(entity_id=entity, key=key, kind=kind, body=body, sender="me", at=AT, **facts)


def taker(one, entity=None):
    """The record that takes a mail."""
    entity = entity or one.entity_id
    if one.kind == "intent":
        return IntentGiven(entity, one.body["intent"], AT, key=one.key, sender=one.sender)
    return Steered(entity, one.body["text"], AT, key=one.key, sender=one.sender)


def note(entity="e"):
    """A record that takes no mail."""
    return Steered(entity, "note", AT)


def withdrawal(one):
    """The record that withdraws an intent."""
    return MailRefused(one.entity_id, one.key, "intent", "withdrawn", AT, "me", why="sold out")


def post(store, *mails):
    """Post mail that is accepted; its numbers."""
    rows = store.post(mails)
    assert all(isinstance(row, MailRow) for row in rows), rows
    return [row.no for row in rows]


def keys(store, entity="e"):
    """The keys of the mail that waits."""
    return [one.mail.key for one in store.pending(entity, 1000)]


@pytest.fixture
def box(store):
    """A store with a long-lived entity e, and another one f."""
    store.append([header("e", lasting=True, name="notes"), header("f", lasting=True)])
    return store


# ---------------------------------------------------------------------------------------------------------- one mail


@given(objects, st.lists(images, max_size=2).map(tuple), st.none() | st.text("abc", max_size=3))
def test_a_mail_is_decoded_as_it_was_encoded(body, some, child):
    one = Mail(entity_id="e", key="k", kind="decision", body=body, sender="me", at=AT, child=child, images=some)
    assert decode_mail(encode_mail(one)) == one
    assert decode_mail(encode_mail(one)).digest == one.digest


@given(objects, objects)
def test_mail_with_the_same_content_has_the_same_digest(one, other):
    first, second = (Mail(entity_id="e", key="k", kind="intent", body=body) for body in (one, other))
    turned = dict(reversed(one.items()))
    assert replace(first, body=turned, sender="you", at=LATER, key="l").digest == first.digest
    if encode_mail(first) != encode_mail(replace(second, body={**second.body})) and one != other:
        assert first.digest != second.digest


@pytest.mark.parametrize("change", [{"kind": "timer"}, {"child": "c"}, {"body": {}}, {"images": (Image(png()),)}])
def test_mail_with_other_content_has_another_digest(change):
    assert replace(mail("k"), **change).digest != mail("k").digest


@pytest.mark.parametrize("body", [{"x": {1, 2}}, {"x": object()}])
def test_a_body_that_json_cannot_express_is_refused(box, body):
    (refused,) = box.post([replace(mail("k"), body=body)])
    assert isinstance(refused, LoomError)
    assert box.pending("e") == []


@pytest.mark.parametrize("line", [b"", b"[]", b'{"entity_id":"e"}', b'{"wide":true', b'{"kind":"letter"}'])
def test_a_line_that_is_not_a_mail_is_refused(line):
    with pytest.raises(LoomError, match="is not a mail"):
        decode_mail(line)


# ------------------------------------------------------------------------------------------------------------ posting


def test_waiting_mail_is_listed_in_order_with_control_mail_first(box):
    post(box, mail("a"), mail("b", kind="steer"), mail("other", "f"))
    post(box, mail("c"), mail("d", kind="interrupt"))
    assert keys(box) == ["b", "d", "a", "c"]
    assert keys(box, "f") == ["other"]
    assert [one.mail.key for one in box.pending("e", 3)] == ["b", "d", "a"]
    assert [(one.mail.lane, one.mail.loads) for one in box.pending("e")][:4:3] == [(CONTROL, False), (INTENTS, True)]
    assert box.pending("nobody") == []


def test_mail_is_read_as_it_was_posted(box):
    one = replace(
        mail("k", child="c"), images=(Image(png(), detail="low").with_position(3), Image.at("https://e.org/a.png"))
    )
    (no,) = post(box, one)
    ((found_no, found),) = box.pending("e")
    assert (found_no, found) == (no, one)
    assert found.images[0].data == png()
    assert list(box.blobs()) == [one.images[0].digest]
    assert verify_loom(box).ok


def test_an_unloaded_entity_is_listed_as_waiting_only_for_mail_that_loads_it(box):
    post(box, mail("a", kind="steer"), mail("b", "f", kind="steer"))
    assert box.waiting() == []
    assert box.waiting(loads=False) == ["e", "f"]
    post(box, mail("c", "f", kind="stop"))
    assert box.waiting() == ["f"]
    post(box, mail("d"))
    assert sorted(box.waiting()) == ["e", "f"]


@pytest.mark.rule("C-10")
def test_mail_is_read_after_reopening(place):
    if not place.lasts:
        pytest.skip("a memory loom is not opened again")
    with place.open() as store:
        store.append([header("e", lasting=True)])
        (first, second) = post(store, mail("a"), replace(mail("b"), images=(Image(png()),)))
        store.append([taker(mail("a"))], taken=[(0, first)])
    with open_store(place.url, read_only=True) as reader:
        assert keys(reader) == ["b"]
        assert reader.waiting() == ["e"]
    with place.open() as store:
        ((no, found),) = store.pending("e")
        assert (no, found.key, found.images[0].data) == (second, "b", png())
        assert store.find_mail("e", "a").taken is not None
        assert store.find_mail("e", "b").taken is None
        (third,) = post(store, mail("c"))
        assert third > second
        assert verify_loom(store).ok


@pytest.mark.rule("C-11")
def test_a_repeated_mail_finds_the_first_one(box):
    first, again, other = box.post([mail("k"), replace(mail("k"), sender="you", at=LATER), mail("k", "f")])
    assert (first.is_new, again) == (True, first._replace(is_new=False))
    assert (other.no != first.no, other.is_new) == (True, True)
    assert box.post([mail("k")]) == [again]
    box.append([taker(mail("k"))], taken=[(0, first.no)])
    (after,) = box.post([mail("k")])
    assert (after.no, after.taken is None) == (first.no, False)
    assert box.find_mail("e", "k") == after
    assert keys(box) == []
    assert box.find_mail("e", "l") is box.find_mail("nobody", "k") is None


@pytest.mark.rule("C-11")
def test_a_key_with_other_content_is_refused(box):
    (no,) = post(box, mail("k"))
    (refused,) = box.post([mail("k", text="something else")])
    assert isinstance(refused, KeyUsed)
    assert str(refused) == "key 'k' was used for entity e with other content: use another key"
    box.append([taker(mail("k"))], taken=[(0, no)])
    (refused,) = box.post([mail("k", text="something else")])
    assert isinstance(refused, KeyUsed)


@pytest.mark.rule("C-11")
def test_refused_mail_does_not_block_other_mail(box):
    results = box.post([mail("a"), mail("a", text="else"), mail("b", "nobody"), mail("c")])
    assert [type(result) for result in results] == [MailRow, KeyUsed, UnknownEntity, MailRow]
    assert keys(box) == ["a", "c"]


@pytest.mark.rule("C-13")
def test_a_full_lane_refuses_mail_and_loses_none(box):
    box.max_waiting = 3
    results = box.post([mail(key) for key in "abcd"])
    assert [type(result) for result in results] == [MailRow, MailRow, MailRow, InboxFull]
    assert "3 mails wait for entity e" in str(results[3])
    post(box, mail("s", kind="steer"), mail("a", "f"), mail("a"))  # another lane, another inbox, a repetition
    assert keys(box) == ["s", "a", "b", "c"]
    box.append([taker(mail("a"))], taken=[(0, results[0].no)])
    post(box, mail("d"))
    (refused,) = box.post([mail("e")])
    assert isinstance(refused, InboxFull)
    assert keys(box) == ["s", "b", "c", "d"]


@pytest.mark.rule("C-13")
def test_a_control_lane_full_of_steering_messages_accepts_urgent_mail(box):
    box.max_waiting = 2
    stop = replace(mail("stop"), kind="stop", body={"reason": "enough"})
    post(box, mail("a", kind="steer"), mail("b", kind="steer"), stop)
    box.check_room(replace(stop, key="again"))
    (refused,) = box.post([mail("c", kind="steer")])
    assert isinstance(refused, InboxFull)
    results = box.post([replace(stop, key=f"{n}") for n in range(100)])
    assert [type(one) for one in results] == [*[MailRow] * 99, InboxFull]
    assert "102 mails wait for entity e" in str(results[-1])


@pytest.mark.rule("C-13")
def test_room_is_checked_before_mail_is_posted_with_a_record(box):
    box.max_waiting = 2
    post(box, mail("a"), mail("b"))
    with pytest.raises(InboxFull, match="2 mails wait for entity e"):
        box.check_room(mail("c"))
    for accepted in (mail("a"), mail("s", kind="steer"), mail("c", "f"), mail("c", "nobody")):
        box.check_room(accepted)
    box.append(
        [Steered("f", "I told e", AT)], post=[(0, mail("c"))]
    )  # a record that was checked before is not refused now
    assert keys(box) == ["a", "b", "c"]
    assert box.count_mail("e") == (0, 3, 3)


def test_mail_to_an_unknown_entity_is_refused(box):
    box.append([*run("r", "t1", ends=False), *run("c", "t2", parent="t1", parent_entity="r")])
    unknown, child = box.post([mail("k", "nobody"), mail("k", "c")])
    assert "entity nobody, which is not in this loom" in str(unknown)
    assert "goes to its root r" in str(child)


@pytest.mark.rule("LOOM-1")
def test_a_closed_store_accepts_no_mail(box):
    box.close()
    with pytest.raises(LoomError, match="is closed"):
        box.post([mail("k")])


# ------------------------------------------------------------------------------------------------------------- taking


@pytest.mark.rule("C-10")
def test_mail_is_taken_once_and_a_second_append_that_takes_it_is_refused(box):
    (no,) = post(box, mail("k"))
    box.append([taker(mail("k"))], taken=[(0, no)])
    with pytest.raises(Taken, match=f"mail {no} for entity e was taken already"):
        box.append([Steered("e", "before", AT), taker(mail("k"))], taken=[(1, no)])
    with pytest.raises(Taken):
        box.append([taker(mail("x"))], taken=[(0, 99)])
    assert len(box.records("e")) == 2
    (no,) = post(box, mail("l"))
    with pytest.raises(Taken):
        box.append([taker(mail("l")), taker(mail("l"))], taken=[(0, no), (1, no)])
    assert keys(box) == ["l"]
    assert verify_loom(box).ok


@pytest.mark.rule("C-10")
def test_a_record_takes_mail_whose_key_it_carries_and_no_other(box):
    box.append([*run("c", "t2", parent=None)])
    (no, other) = post(box, mail("k"), mail("l", "f"))
    for record, which in ((taker(mail("l")), no), (taker(mail("l")), other), (header("x", key="k"), no)):
        with pytest.raises(LoomError, match="cannot take mail"):
            box.append([record], taken=[(0, which)])
    assert keys(box) == ["k"]


def test_a_child_takes_mail_from_the_inbox_of_its_root(box):
    box.append([*run("r", "t1", ends=False), *run("c", "t2", parent="t1", parent_entity="r", ends=False)])
    one = mail("k", "r", kind="steer", child="c")
    (no,) = post(box, one)
    box.append([taker(one, "c")], taken=[(0, no)])
    assert keys(box, "r") == []
    assert verify_loom(box).ok


@pytest.mark.rule("C-10")
def test_mail_still_waits_when_the_writer_that_takes_it_has_lost_its_lease(box):
    (no,) = post(box, mail("k"))
    box.claim("e", "me", 60)
    with pytest.raises(Fenced):
        box.append([taker(mail("k"))], taken=[(0, no)])
    assert keys(box) == ["k"]


@pytest.mark.rule("C-19")
def test_mail_is_withdrawn_or_taken_but_not_both_with_any_lease_holder(box):
    first, second = post(box, mail("a"), mail("b"))
    lease = box.claim("e", "me", 60)
    box.append([withdrawal(mail("a"))], taken=[(0, first)])
    with pytest.raises(Taken):
        box.append([taker(mail("a"))], {"e": lease.token}, taken=[(0, first)])
    box.append([taker(mail("b"))], {"e": lease.token}, taken=[(0, second)])
    with pytest.raises(Taken):
        box.append([withdrawal(mail("b"))], taken=[(0, second)])
    assert keys(box) == []
    assert [record.key for record in box.records("e")[1:]] == ["a", "b"]
    assert verify_loom(box).faults == []


@pytest.mark.rule("C-19", "C-10")
def test_only_the_holder_of_a_lease_refuses_mail(box):
    (no,) = post(box, mail("k"))
    lease = box.claim("e", "me", 60)
    refused = MailRefused("e", "k", "intent", "no", AT)
    with pytest.raises(Fenced):
        box.append([refused], taken=[(0, no)])
    with pytest.raises(Fenced):
        box.append([withdrawal(mail("k"))], {"e": lease.token + 1}, taken=[(0, no)])
    box.append([refused], {"e": lease.token}, taken=[(0, no)])


@pytest.mark.rule("C-16")
def test_mail_is_posted_with_a_record_or_not_at_all(box):
    box.append([Steered("e", "I told f", AT)], post=[(0, mail("a", "f")), (0, mail("b", "f"))])
    box.append([Steered("e", "I told f again", AT)], post=[(0, mail("a", "f"))])
    assert keys(box, "f") == ["a", "b"]
    for refused, why in (
        (mail("a", "f", text="else"), KeyUsed),
        (mail("a", "x"), LoomError),
    ):
        with pytest.raises(why):
            box.append([Steered("e", "I told somebody", AT)], post=[(0, refused)])
    assert len(box.records("e")) == 3
    assert keys(box, "f") == ["a", "b"]


@pytest.mark.rule("C-10")
@pytest.mark.parametrize("last", ["terminated", "cancelled", "abandoned"])
def test_the_record_that_ends_an_entity_takes_all_its_mail(box, last):
    (first, *_) = post(box, mail("a"), mail("b"), mail("s", kind="stop"), mail("a", "f"))
    box.append([taker(mail("a")), Ended("e", last, AT, key="s")], taken=[(0, first), (1, first + 2)])
    assert keys(box) == []
    assert keys(box, "f") == ["a"]
    assert box.waiting() == ["f"]
    assert box.find_mail("e", "b").taken == box.find_mail("e", "s").taken > box.find_mail("e", "a").taken
    assert verify_loom(box).ok
    repeated, refused = box.post([mail("b"), mail("z")])
    assert repeated == box.find_mail("e", "b")
    assert isinstance(refused, EntityEnded)


@pytest.mark.parametrize("reason", ["failed", "interrupted"])
def test_the_end_of_an_episode_or_of_a_child_takes_no_mail(box, reason):
    box.append([*run("r", "t1", ends=False, lasting=True), *run("c", "t2", parent="t1", parent_entity="r")])
    post(box, mail("k", "r"))
    box.append([Ended("c", "terminated", AT), Ended("r", reason, AT)])
    assert keys(box, "r") == ["k"]


def test_the_end_of_an_entity_in_a_batch_takes_the_mail_of_that_batch(box):
    box.append(
        [Ended("f", "cancelled", AT), Steered("e", "I told f", AT)], post=[(0, mail("own", "f")), (1, mail("k", "f"))]
    )
    assert keys(box, "f") == []
    assert box.find_mail("f", "own").taken == box.find_mail("f", "k").taken is not None
    assert verify_loom(box).ok
    with pytest.raises(EntityEnded):
        box.append([Steered("e", "I told f again", AT)], post=[(0, mail("late", "f"))])


def test_a_record_takes_the_mail_whose_key_it_carries():
    assert get_key(MailRefused("e", "k", "intent", "no", AT)) == get_key(Ended("e", "failed", AT, key="k")) == "k"
    assert get_key(header("e", key="k")) is get_key(IntentGiven("e", "go", AT)) is None


# ---------------------------------------------------------------------------------------------------------- releasing


@pytest.mark.rule("C-10")
def test_a_lease_is_kept_while_mail_waits_that_would_load_its_entity(box):
    me = this_process()
    leases = [box.claim(entity, me, 60) for entity in ("e", "f", "name:notes")]
    (no,) = post(box, mail("k"))
    post(box, mail("s", "f", kind="steer"))
    assert box.release_if_empty(*leases) == leases[:1]
    with pytest.raises(Fenced):
        box.append([taker(mail("k"))], taken=[(0, no)])
    box.append([Steered("f", "free", AT)])
    box.append([taker(mail("k"))], {"e": leases[0].token}, taken=[(0, no)])
    assert box.release_if_empty(*leases) == []
    box.append([Steered("e", "free", AT)])


# --------------------------------------------------------------------------------------------------------- forgetting


@pytest.mark.rule("C-11", "N-25")
def test_mail_that_was_settled_long_ago_is_forgotten_and_its_key_is_free(place):
    with place.open() as store:
        store.append([header("e", lasting=True)])
        numbers = post(store, mail("a"), mail("b"), mail("c"))
        over = Ended("e", "failed", AT)
        late = replace(taker(mail("b")), at=LATER)
        store.append([taker(mail("a")), over, late], taken=[(0, numbers[0]), (2, numbers[1])])
        store.expire_mail(AT)
        assert store.find_mail("e", "a") is not None
        store.expire_mail("2026-11-29")
        assert store.find_mail("e", "a") is None
        assert store.find_mail("e", "b") is not None
        assert keys(store) == ["c"]
        (no,) = post(store, replace(mail("a", text="something else"), at=LATER))
        assert no not in numbers
        assert verify_loom(store).ok
        store = place.open() if place.kind in {"sqlite", "postgres"} else store
        store.close()
    if place.lasts:
        with place.open() as store:
            assert keys(store) == ["c", "a"]
            assert verify_loom(store).ok


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("more", [0, 100])
def test_the_key_of_an_intent_is_kept_until_its_episode_has_long_ended(box, more):
    numbers = post(box, mail("a"), mail("b"), mail("c"), mail("hurry", kind="steer"), mail("last", "f"))
    taken = [taker(mail("a")), taker(mail("hurry", kind="steer"))]
    box.append(taken, taken=[(0, numbers[0]), (1, numbers[3])])
    box.append([Steered("e", "on", AT)] * more)
    box.expire_mail(LATER)
    assert box.find_mail("e", "a") is not None
    assert box.find_mail("e", "hurry") is None
    box.append([Ended("e", "failed", LATER)])
    box.expire_mail(LATER)
    assert box.find_mail("e", "a") is not None
    box.expire_mail("2026-12-01")
    assert box.find_mail("e", "a") is None
    box.append([taker(mail("b")), taker(mail("c"))], taken=[(0, numbers[1]), (1, numbers[2])])
    box.expire_mail(LATER)
    assert box.find_mail("e", "b") is None  # the next intent was taken
    assert box.find_mail("e", "c") is not None


# -------------------------------------------------------------------------------------------------- arbitrary histories


class Model:
    """Two entities: what waits in each lane, which keys are known, what is recorded, and which entity has ended."""

    def __init__(self, place):
        self.place, self.store = place, place.open()
        self.store.append([header("e", lasting=True), header("f", lasting=True)])
        self.waits, self.recorded = {"e": [], "f": []}, {"e": [], "f": []}
        self.known, self.over = {}, set()

    def do(self, op, which, *, first):
        entity = "e" if first else "f"
        one = mail(KEYS[which % 8], entity, text=str(which % 3), kind="intent" if which % 4 else "steer")
        getattr(self, op)(one)

    def answer(self, one):
        """What posting a mail comes to."""
        if (digest := self.known.get((one.entity_id, one.key))) is not None:
            return MailRow if digest == one.digest else KeyUsed
        return EntityEnded if one.entity_id in self.over else MailRow

    def accept(self, one):
        if (one.entity_id, one.key) not in self.known:
            self.known[one.entity_id, one.key] = one.digest
            self.waits[one.entity_id].append(one)

    def record(self, *records, **mails):
        self.store.append(records, **mails)
        for record in records:
            self.recorded[record.entity_id].append(record)

    def post(self, one):
        assert isinstance(self.store.post([one])[0], self.answer(one))
        if self.answer(one) is MailRow:
            self.accept(one)

    def post_with_a_record(self, one):
        if "e" in self.over:
            return
        if self.answer(one) is MailRow:
            self.record(Steered("e", "told", AT), post=[(0, one)])
            self.accept(one)
        else:
            with pytest.raises(self.answer(one)):
                self.store.append([Steered("e", "told", AT)], post=[(0, one)])

    def take(self, one, at=0, record=taker):
        lane = [waits for waits in self.waits[one.entity_id] if waits.lane == one.lane]
        if lane:
            no = self.store.find_mail(one.entity_id, lane[at].key).no
            self.record(record(lane[at]), taken=[(0, no)])
            self.waits[one.entity_id].remove(lane[at])

    def take_the_last(self, one):
        self.take(one, at=-1)

    def refuse(self, one):
        self.take(one, record=lambda mine: MailRefused(mine.entity_id, mine.key, mine.kind, "no", AT))

    def withdraw(self, one):
        if one.lane == INTENTS:
            self.take(one, at=-1, record=withdrawal)

    def end(self, one):
        if one.entity_id not in self.over and one.body.get("text") == "0":
            self.record(Ended(one.entity_id, "cancelled", AT))
            self.over.add(one.entity_id)
            self.waits[one.entity_id].clear()

    def open_again(self, one):
        if self.place.lasts:
            self.store.close()
            self.store = self.place.open()

    def check(self):
        for entity, left in self.waits.items():
            assert [one.mail for one in self.store.pending(entity)] == sorted(left, key=lambda one: one.lane)
            assert list(self.store.records(entity))[1:] == self.recorded[entity]
        loading = [entity for entity in "ef" if any(one.loads for one in self.waits[entity])]
        assert sorted(self.store.waiting()) == loading
        assert sorted(self.store.waiting(loads=False)) == [entity for entity in "ef" if self.waits[entity]]
        for (entity, key), digest in self.known.items():
            row = self.store.find_mail(entity, key)
            assert (row.digest, row.taken is None) == (digest, any(one.key == key for one in self.waits[entity]))
        assert verify_loom(self.store).faults == []


OPS = ("post", "post", "post", "post_with_a_record", "take", "take", "take_the_last", "refuse", "withdraw")
KEYS = tuple("abcdefgh")


@pytest.mark.rule("C-10", "C-11", "C-19")
@pytest.mark.parametrize("kind", KINDS)
def test_any_history_of_mail_has_the_same_result_in_every_store(kind):
    @examples(kind, most=60)
    @given(
        st.lists(
            st.tuples(st.sampled_from((*OPS, "end", "open_again")), st.integers(0, 99), st.booleans()), max_size=40
        )
    )
    def holds(ops):
        with anywhere(kind) as place:
            model = Model(place)
            for op, which, first in ops:
                model.do(op, which, first=first)
            model.check()
            model.store.close()

    holds()


@pytest.mark.rule("C-12")
def test_the_cost_of_mail_does_not_grow_with_its_number(capsys):
    many = "100000" if EXHAUSTIVE else "5000"
    assert bench.main(["--many", many, "--rounds", "15"]) == 0, capsys.readouterr().out


# --------------------------------------------------------------------------------------------------- copies and damage


@pytest.mark.rule("C-10")
@pytest.mark.parametrize("target", ["copy.jsonl", "copy.db"])
def test_a_copy_has_the_mail_that_waits(box, tmp_path, target):
    with_image = replace(mail("b"), images=(Image(png()),))
    (first, *_) = post(box, mail("a"), with_image, mail("s", "f", kind="steer"))
    box.append([taker(mail("a"))], taken=[(0, first)])
    with open_store(tmp_path / target) as copy:
        assert copy_loom(box, copy).ok
        assert [one.mail for one in copy.pending("e")] == [with_image]
        assert copy.pending("e")[0].mail.images[0].data == png()
        assert keys(copy, "f") == ["s"]
        assert verify_loom(copy).ok


@pytest.fixture(params=["sqlite", "postgres"])
def tables(request, tmp_path):
    """A store with tables, and a function that changes them behind its back."""
    with anywhere(request.param) as place, place.open() as store:
        store.append([header("e", lasting=True), header("f", lasting=True)])

        def change(statement):
            if request.param == "sqlite":
                with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
                    other.execute(statement)
            else:
                with psycopg.connect(postgres.server(), autocommit=True) as other:
                    other.execute(f"set search_path to {store.schema}")
                    other.execute(statement)

        yield store, change


@pytest.mark.rule("C-10")
@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("update mail set taken = null, line = '{}' where key = 'a'", "took mail"),
        ("update mail set taken = (select min(seq) from records) where key = 'a'", "was not taken by the record that"),
        ("update mail set taken = 99 where key = 'a'", "was taken by a record that cannot be read"),
        ("update mail set key = 'z' where key = 'a'", "was not taken by the record that its row names"),
        ("update trees set intents = 7", "has a wrong count of waiting mail"),
        ("update trees set loads = 0", "has a wrong count of waiting mail"),
        ("delete from mail where taken is null", "has a wrong count of waiting mail"),
        ("delete from blobs", "is missing"),
    ],
)
def test_a_table_of_mail_that_was_changed_is_found(tables, statement, fault):
    store, change = tables
    (no, *_) = post(store, mail("a"), replace(mail("b"), images=(Image(png()),)))
    store.append([taker(mail("a"))], taken=[(0, no)])
    assert verify_loom(store).ok
    if "null, line" in statement:
        statement = statement.replace("{}", encode_mail(mail("a")).decode())
        change("update trees set intents = 2, loads = 2 where no = (select no from entities where id = 'e')")
    change(statement)
    assert any(fault in str(one) for one in verify_loom(store).faults), verify_loom(store).faults


def test_verify_finds_mail_that_waits_for_an_entity_that_has_ended(tables):
    store, change = tables
    (no,) = post(store, mail("a"))
    store.append([Ended("e", "cancelled", AT)])
    change(f"update mail set taken = null, line = '{encode_mail(mail('a')).decode()}'")
    change("update trees set intents = 1, loads = 1 where no = (select no from entities where id = 'e')")
    assert [str(one) for one in verify_loom(store).faults] == [f"mail {no} was not taken by an entity that has ended"]


# ------------------------------------------------------------------------------------------------------ other processes


def opened_again(store):
    """Another store of the same loom, as another process opens it."""
    return open_store(store.path if isinstance(store, SqliteStore) else f"{store._url}&schema={store.schema}")


@pytest.mark.rule("C-10")
def test_mail_posted_by_another_process_is_new_once_in_any_lane(tables):
    one, _ = tables
    post(one, mail("before"))
    with opened_again(one) as other:
        after, new = one.new_mail(0)
        assert [row.key for row in new] == ["before"]
        assert one.new_mail(after) == (after, [])
        other.append([Steered("f", "no mail", AT)])
        assert one.new_mail(after) == (after, [])
        for key, entity, kind in (("a", "e", "steer"), ("b", "f", "intent"), ("c", "e", "interrupt")):
            (no,) = post(other, mail(key, entity, kind=kind))
            after, new = one.new_mail(after)
            assert [(row.no, row.entity_id, row.key) for row in new] == [(no, entity, key)]
            assert one.new_mail(after) == (after, [])
        (no,) = post(other, mail("d"))
        one.append([taker(mail("d"))], taken=[(0, no)])
        assert one.new_mail(after)[1] == []
        with pytest.raises(Taken):
            other.append([taker(mail("d"))], taken=[(0, no)])


@pytest.mark.rule("N-27")
def test_mail_is_new_again_while_an_earlier_post_may_still_be_committed():
    with anywhere("postgres") as place, place.open() as one, psycopg.connect(postgres.server()) as posting:
        one.append([header("e", lasting=True)])
        lock = f"select pg_advisory_xact_lock_shared({POSTING}, hashtext('{one.schema}'))"
        posting.execute(lock)
        post(one, mail("late"))
        assert [row.key for row in one.new_mail(0)[1]] == ["late"]
        assert one.new_mail(0)[0] == 0
        posting.rollback()
        after, new = one.new_mail(0)
        assert (after > 0, [row.key for row in new]) == (True, ["late"])


def test_much_new_mail_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "LOOK", 2)
    with SqliteStore(tmp_path / "loom.db") as store:
        store.append([header("e", lasting=True)])
        post(store, *map(mail, "abcde"))
        after, parts = 0, []
        for _ in range(5):
            after, rows = store.new_mail(after)
            parts.append("".join(row.key for row in rows))
        assert parts == ["ab", "cd", "e", "", ""]


def test_new_mail_returns_the_mail_posted_after_a_number():
    with open_store("memory:") as store:
        store.append([header("e", lasting=True)])
        (first, second) = post(store, mail("a"), mail("b"))
        assert store.new_mail(0)[0] == second
        assert [row.key for row in store.new_mail(first)[1]] == ["b"]


@pytest.mark.rule("C-65")
def test_an_entity_is_held_while_another_holder_has_a_lease_on_its_tree(tables):
    one, _ = tables
    one.append([*run("r", "t1", ends=False), *run("c", "t2", parent="t1", parent_entity="r")])
    with opened_again(one) as other:
        mine, theirs = one.claim("e", this_process(), 60), other.claim("r", this_process(), 60)
        assert [one.is_held(entity) for entity in ("e", "f", "r", "c", "nobody")] == [False, False, True, True, False]
        assert [other.is_held(entity) for entity in ("e", "r")] == [True, False]
        one.release(mine)
        other.release(theirs)
        assert not one.is_held("r")
        assert not other.is_held("e")
        began = other.claim("new", this_process(), 60)
        assert one.is_held("new")
        mark_gone(began.owner)
        assert not one.is_held("new")


@pytest.mark.rule("C-65")
@pytest.mark.parametrize("read", ["header", "life", "find_held"])
def test_the_facts_of_an_entity_that_ends_meanwhile_are_not_those_of_one_that_works_and_nobody_runs(
    tables, monkeypatch, read
):
    one, _ = tables
    one.append([header("r", lasting=True), IntentGiven("r", "go", AT)])
    with opened_again(one) as other:
        lease, original = other.claim("r", this_process(), 60), getattr(one, read)

        def read_and_end(entity):
            result = original(entity)
            if other.life("r") is not Life.OVER:
                other.append([Ended("r", "cancelled", AT)], {"r": lease.token})
                other.release(lease)
            return result

        monkeypatch.setattr(one, read, read_and_end)
        facts = one.facts("r")
        assert (facts.life, facts.is_held) != (Life.BUSY, False)


def test_mail_posted_by_another_process_counts(tables):
    one, _ = tables
    one.max_waiting = 2
    with opened_again(one) as other:
        post(one, mail("a"))
        post(other, mail("b"))
        assert isinstance(one.post([mail("c")])[0], InboxFull)
        lease = one.claim("f", this_process(), 60)
        post(other, mail("a", "f"))
        assert one.release_if_empty(lease) == [lease]


# ------------------------------------------------------------------------------------------- the lines of a JSONL loom


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.jsonl"


def opened(path, **options):
    store = JsonlStore(path, **options)
    if not options.get("read_only") and store.header("e") is None:
        store.append([header("e", lasting=True), header("f", lasting=True)])
    return store


def test_half_a_line_of_mail_is_ignored(path):
    with opened(path) as store:
        post(store, mail("a"))
    whole = path.read_bytes()
    line = whole.splitlines()[-1]
    path.write_bytes(whole + line[: len(line) // 2])
    with opened(path, read_only=True) as reader:
        assert keys(reader) == ["a"]
    with opened(path) as store:
        assert keys(store) == ["a"]
        post(store, mail("b"))
    with opened(path) as store:
        assert keys(store) == ["a", "b"]


@pytest.mark.parametrize("line", [b"garbage", b'{"no":1,"mail":{}}', b'{"male":1}', b"{}", b""])
def test_a_damaged_line_of_mail_is_named(path, line):
    with opened(path) as store:
        post(store, mail("a"))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(LoomError, match=r"loom\.jsonl: line 5 is corrupt: .* Restore it from a copy"):
        opened(path)


def test_mail_of_an_entity_that_the_log_does_not_know_is_an_error(path):
    with opened(path) as store:
        post(store, mail("a"))
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[-1])
    with pytest.raises(LoomError, match="entity e has no header before it"):
        JsonlStore(path)


@pytest.mark.rule("C-10")
def test_mail_that_was_mostly_taken_is_written_anew_when_the_file_is_opened(path, monkeypatch):
    monkeypatch.setattr(jsonl, "WASTE", 0)
    with opened(path) as store:
        numbers = post(store, *(mail(f"k{n}", text="x" * 1000) for n in range(20)), mail("f1", "f"))
        for n in range(18):
            store.append([taker(mail(f"k{n}"))], taken=[(0, numbers[n])])
        store.append([Ended("f", "cancelled", AT)])
    before = path.read_bytes()
    with opened(path, read_only=True) as reader:
        assert keys(reader) == ["k18", "k19"]
    assert path.read_bytes() == before
    for _ in range(2):
        with opened(path) as store:
            assert keys(store) == ["k18", "k19"]
            assert store.find_mail("f", "f1").taken is not None
            assert isinstance(store.post([mail("k3")])[0], KeyUsed)
            assert store.post([mail("k3", text="x" * 1000)])[0].no == numbers[3]
            assert verify_loom(store).ok
        assert path.stat().st_size < len(before) / 2


def test_a_key_that_has_expired_is_free_when_the_file_is_opened_again(path):
    with opened(path) as store:
        (first, _) = post(store, mail("a"), mail("b"))
        store.append([taker(mail("a"))], taken=[(0, first)])
        store.expire_mail(LATER)
        assert store.find_mail("e", "a") is not None  # its episode has not ended
        store.append([Ended("e", "failed", AT)])
        store.expire_mail(LATER)
    for _ in range(2):
        with opened(path) as store:
            assert store.find_mail("e", "a") is None
            assert keys(store) == ["b"]
            store.scrub()


@pytest.mark.rule("C-10")
@pytest.mark.parametrize(
    ("taken", "fault"),
    [
        (lambda store: store.tip("f").position, "was taken by a record that cannot be read"),
        (lambda store: store.tip("e").position + 1, "was taken by a record that cannot be read"),
        (lambda store: store.tip("e").position, "was not taken by the record that its row names"),
    ],
)
def test_verify_finds_a_row_of_taken_mail_that_is_wrong(path, taken, fault):
    with opened(path) as store:
        numbers = post(store, *(mail(f"k{n}") for n in range(4)))
        for n in range(4):
            store.append([taker(mail(f"k{n}"))], taken=[(0, numbers[n])])
        store.scrub()
        right, wrong = store.find_mail("e", "k2").taken, taken(store)
    before = path.read_bytes()
    row = b'"taken":[%d,%d,'
    assert before.count(row % (numbers[2], right)) == 1
    path.write_bytes(before.replace(row % (numbers[2], right), row % (numbers[2], wrong)))
    with opened(path, read_only=True) as reader:
        acknowledged, found = map(str, verify_loom(reader).faults)
    assert acknowledged.startswith("acknowledged records are missing: a line of mail")
    assert found == f"mail {numbers[2]} of entity e {fault}"


def test_a_full_disk_accepts_no_mail(path):
    full = FailingDisk(2, OSError(errno.ENOSPC, "No space left on device"))
    with opened(path, disk=Disk(write=full.write)) as store:
        with pytest.raises(LoomError, match="Make room"):
            store.post([mail("a")])
        assert keys(store) == []
        post(store, mail("b"))
    with opened(path) as store:
        assert keys(store) == ["b"]


@pytest.mark.rule("C-16", "K-32")
def test_a_transaction_that_was_cut_at_any_byte_is_there_as_a_whole_or_not_at_all(path):
    with opened(path) as store:
        post(store, mail("before"))
        before = path.read_bytes()
        noted = before.index(b"\n")  # the first line, which notes the end after the other lines
        wait = Timer(id="t", due=5.0, entity_id="e", mail=mail("later"))
        seen = Steered("e", "I told f", AT, images=(Image(png()),))
        store.append([seen, note()], post=[(0, mail("k", "f"))], timers=[(1, wait)])
    whole = path.read_bytes()
    for cut in range(len(before), len(whole) + 1):
        path.write_bytes(before[:noted] + whole[noted:cut])
        with opened(path) as store:
            is_there = cut >= len(whole) - 1  # the last newline may be missing
            assert len(store.records("e")) == (3 if is_there else 1)
            assert (keys(store), keys(store, "f")) == (["before"], ["k"] if is_there else [])
            assert store.timers("e") == ([wait] if is_there else [])
            assert store.recovered == 0 or not is_there
            assert verify_loom(store).ok
            post(store, mail("after"))
        with opened(path) as store:
            assert keys(store) == ["before", "after"]


@pytest.mark.rule("C-16")
@pytest.mark.parametrize("durability", ["process", "power"])
def test_mail_posted_with_a_record_is_not_written_to_a_full_disk(path, durability):
    disk = FailingDisk(2, OSError(errno.ENOSPC, "No space left on device"))
    one = mail("k", "f")
    with opened(path, disk=Disk(write=disk.write), durability=durability) as store, pytest.raises(LoomError):
        store.append([Steered("e", "I told f", AT)], post=[(0, one)])
    for n in range(2):
        with opened(path) as again:
            assert len(again.records("e")) == 1 + n
            assert keys(again) == keys(again, "f") == []
            assert again.find_mail(one.entity_id, "k") is None
            again.append([Steered("e", "long enough to reach behind the record that is not there", AT)])


def test_a_line_of_mail_is_as_durable_as_a_record(path):
    synced = []
    disk = Disk(sync=lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    with opened(path, disk=disk, durability="power") as store:
        synced.clear()
        post(store, mail("a"))
        assert synced == ["loom.jsonl"]
        assert store.blocking


def test_lines_of_mail_that_another_program_wrote_anew_are_read(path):
    strange = Mail(entity_id="e", key="é\ud83d", kind="timer", body={"n": float("nan"), "kind": None}, at=AT)
    with opened(path) as store:
        post(store, mail("a"), strange)
        store.append([note()], timers=[(0, Timer(id="t", due=5.0, entity_id="e", mail=mail("later")))])
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    path.write_text("".join(json.dumps(dict(sorted(facts.items(), reverse=True))) + "\n" for facts in lines))
    with opened(path) as store:
        assert keys(store) == ["a", "é\ud83d"]
        assert math.isnan(store.pending("e")[1].mail.body["n"])
        assert store.replace_timer(store.find_timer("e", "t"), None) == []

"""Mail and several processes: killed posters and takers, one key in many hands, unloading while others post."""

import random
import signal
import sys
import time
from contextlib import ExitStack

import pytest

from cantrip_actors.loom import verify_loom
from cantrip_actors.records.records import IntentGiven, MailRefused
from tests.exhaustive import EXHAUSTIVE
from tests.loom.histories import header
from tests.loom.processes import python
from tests.loom.test_store import LASTING, SHARED, anywhere

pytestmark = pytest.mark.real_time

ROUNDS = 10 if EXHAUSTIVE else 2
SECONDS = 6.0 if EXHAUSTIVE else 1.0

COMMON = """
import os, random, sys, threading, time
from cantrip_actors import InboxFull, KeyUsed
from cantrip_actors.loom import Held, Mail, MailRow, Taken, open_store, this_process
from cantrip_actors.records.records import IntentGiven, MailRefused

AT = "2026-11-21T22:00:00.123Z"

def mail(key, text=""):
    return Mail(entity_id="e", key=key, kind="intent", body={"intent": text or f"do {key}"}, at=AT)

def post(store, who, n):
    key = f"{who}-{n}"
    print("try", key, flush=True)
    while isinstance(result := store.post([mail(key)])[0], InboxFull):
        time.sleep(0.001)
    assert isinstance(result, MailRow), result
    print("ok", key, flush=True)
    if n % 7 == 0:
        assert isinstance(store.post([mail(key, "something else")])[0], KeyUsed)

def take(store, limit):
    for no, one in store.pending("e", limit):
        try:
            store.append([IntentGiven("e", one.body["intent"], AT, key=one.key)], taken=[(0, no)])
        except Taken:
            pass
"""
WITHDRAWER = """
store = open_store(sys.argv[1])
while True:
    for no, one in store.pending("e", 5):
        try:
            store.append([MailRefused("e", one.key, "intent", "withdrawn", AT, why="x")], taken=[(0, no)])
        except Taken:
            continue
        print("gone", one.key, flush=True)
"""
POSTER = """
store, who = open_store(sys.argv[1]), sys.argv[2]
store.max_waiting = 20
for n in range(int(sys.argv[3]), 10**6):
    post(store, who, n)
"""
TAKER = """
store = open_store(sys.argv[1])
while True:
    take(store, 5)
"""
BOTH = """
store, who = open_store(sys.argv[1]), sys.argv[2]
for n in range(int(sys.argv[3]), 10**6):
    post(store, who, n)
    if random.random() < 0.1:
        take(store, 15)
"""


class Ledger:
    """What the posters said."""

    def __init__(self):
        self.tried, self.accepted, self.gone, self.next = set(), set(), set(), {}

    def read(self, *lines):
        for line in lines:
            word, _, key = line.partition(" ")
            if not key.rpartition("-")[2].isdigit():
                continue  # half a line
            {"try": self.tried, "ok": self.accepted, "gone": self.gone}[word].add(key)
            if word == "gone":
                continue
            who, _, n = key.rpartition("-")
            self.next[who] = max(self.next.get(who, 0), int(n))  # its last one is posted again, with its key

    def check(self, store):
        """Everything that was accepted is recorded, withdrawn or waits, once, in the order of its sender, and nothing
        else is.
        """
        recorded = [record.key for record in store.records("e") if isinstance(record, IntentGiven)]
        withdrawn = [record.key for record in store.records("e") if isinstance(record, MailRefused)]
        assert self.gone <= set(withdrawn)
        assert all(record.intent == f"do {record.key}" for record in store.records("e")[1:] if record.key in recorded)
        found = recorded + [one.mail.key for one in store.pending("e", sys.maxsize)]
        accounted = found + withdrawn
        assert self.accepted - set(accounted) == set()
        assert len(accounted) == len(set(accounted))
        assert set(accounted) <= self.tried
        for who in self.next:
            mine = [int(key.rpartition("-")[2]) for key in found if key.startswith(f"{who}-")]
            assert mine == sorted(mine)
        assert len(recorded) > 0
        assert verify_loom(store).faults == []


def struck(ledger, *processes):
    """Kill the processes, in any order, in the middle of their work."""
    time.sleep(0.3 + random.random() * 0.3)
    for process in random.sample(processes, len(processes)):
        process.send_signal(signal.SIGKILL)
        time.sleep(random.random() * 0.02)
    for process in processes:
        ledger.read(*process.stdout.read().splitlines())


@pytest.mark.rule("C-10")
@pytest.mark.parametrize("kind", SHARED)
def test_killed_posters_and_takers_lose_no_mail_and_take_none_twice(kind):
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True)])
        ledger = Ledger()
        for _ in range(ROUNDS):
            with ExitStack() as running:
                started = [
                    running.enter_context(python(COMMON + POSTER, place.url, who, ledger.next.get(who, 0)))
                    for who in "ab"
                ]
                started += [running.enter_context(python(COMMON + TAKER, place.url)) for _ in range(2)]
                for process in started[:2]:
                    ledger.read(process.stdout.readline().strip())  # it is up
                struck(ledger, *started)
        with place.open() as store:
            ledger.check(store)


@pytest.mark.rule("C-10", "C-19")
@pytest.mark.parametrize("kind", SHARED)
def test_killed_takers_and_withdrawers_take_or_withdraw_each_mail_once(kind):
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True)])
        ledger = Ledger()
        for _ in range(ROUNDS):
            with ExitStack() as running:
                poster = running.enter_context(python(COMMON + POSTER, place.url, "a", ledger.next.get("a", 0)))
                rivals = [running.enter_context(python(COMMON + one, place.url)) for one in (TAKER, WITHDRAWER)]
                for process in (poster, rivals[1]):
                    ledger.read(process.stdout.readline().strip())  # it is up
                struck(ledger, poster, *rivals)
        with place.open() as store:
            ledger.check(store)
        assert ledger.gone


@pytest.mark.rule("C-10")
@pytest.mark.parametrize("kind", LASTING if EXHAUSTIVE else ["jsonl"])
def test_a_process_that_posts_and_takes_may_be_killed_anywhere(kind):
    with anywhere(kind) as place:
        with place.open() as store:
            store.append([header("e", lasting=True)])
        ledger = Ledger()
        for _ in range(ROUNDS):
            with python(COMMON + BOTH, place.url, "a", ledger.next.get("a", 0)) as process:
                ledger.read(process.stdout.readline().strip())
                struck(ledger, process)
        with place.open() as store:
            ledger.check(store)


ONE_KEY = """
store, rows = open_store(sys.argv[1]), []
threads = [threading.Thread(target=lambda: rows.extend(store.post([mail("order-4711")]))) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*{row.no for row in rows})
"""


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("kind", SHARED)
def test_one_key_posted_20_times_at_once_in_three_processes_is_one_mail(kind):
    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        with ExitStack() as running:
            started = [running.enter_context(python(COMMON + ONE_KEY, place.url)) for _ in range(3)]
            numbers = {process.communicate()[0].strip() for process in started}
        assert len(numbers) == 1
        assert [str(one.no) for one in store.pending("e")] == list(numbers)


RIVALS = """
store = open_store(sys.argv[1])
for n in range(30):
    print(type(store.post([mail(f"order-{n}", sys.argv[2])])[0]).__name__)
"""


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("kind", SHARED)
def test_one_of_three_processes_that_post_other_content_under_the_same_key_is_accepted(kind):
    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        with ExitStack() as running:
            started = [running.enter_context(python(COMMON + RIVALS, place.url, who)) for who in "abc"]
            answers = [process.communicate()[0].split() for process in started]
        assert [sorted(each) for each in zip(*answers, strict=True)] == [["KeyUsed", "KeyUsed", "MailRow"]] * 30
        first = {one.mail.key: one.mail.body["intent"] for one in store.pending("e")}
        accepted = {f"order-{n}": "abc"[[*each].index("MailRow")] for n, each in enumerate(zip(*answers, strict=True))}
        assert first == accepted


FILLER = """
store = open_store(sys.argv[1])
store.max_waiting = 25
print(*(key for n in range(30) if isinstance(store.post([mail(key := f"{os.getpid()}-{n}")])[0], MailRow)))
"""


@pytest.mark.rule("C-13")
@pytest.mark.parametrize("kind", SHARED)
def test_an_inbox_filled_by_three_processes_keeps_its_limit(kind):
    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        with ExitStack() as running:
            started = [running.enter_context(python(COMMON + FILLER, place.url)) for _ in range(3)]
            accepted = [key for process in started for key in process.communicate()[0].split()]
        assert len(accepted) == 25
        assert {one.mail.key for one in store.pending("e")} == set(accepted)


UNLOADER = """
store, me, n, stop = open_store(sys.argv[1]), this_process(), 0, time.time() + float(sys.argv[2])
print("up", flush=True)
while time.time() < stop:  # it posts to an entity that is loaded here, elsewhere or nowhere, and loads it if it can
    n += isinstance(store.post([mail(f"{os.getpid()}-{n}")])[0], MailRow)
    try:
        lease = store.claim("e", me, 30)
    except Held:
        continue  # whoever holds it finds the mail
    while True:
        for no, one in store.pending("e"):
            record = IntentGiven("e", one.body["intent"], AT, key=one.key)
            store.append([record], {"e": lease.token}, taken=[(0, no)])
        if not store.release_if_empty(lease):
            break
print(n, flush=True)
"""


@pytest.mark.rule("C-10", "N-28")
@pytest.mark.parametrize("kind", SHARED)
def test_processes_that_unload_an_entity_while_others_post_strand_no_mail(kind):
    with anywhere(kind) as place, place.open() as store:
        store.append([header("e", lasting=True)])
        with ExitStack() as running:
            started = [running.enter_context(python(COMMON + UNLOADER, place.url, SECONDS)) for _ in range(3)]
            posted = [int(process.communicate()[0].split()[-1]) for process in started]
        assert sum(posted) > 10
        assert store.pending("e") == []
        assert len(store.records("e")) == 1 + sum(posted)
        assert verify_loom(store).faults == []

"""Reads of a loom in memory while another thread changes it, as long as one of them takes place in a thread."""

import itertools
import sys
import threading
from contextlib import contextmanager

import pytest

from cantrip_actors.loom import verify_loom
from cantrip_actors.records.records import Ended
from tests.loom.histories import AT, header
from tests.loom.test_inbox import mail, taker
from tests.loom.test_store import anywhere
from tests.loom.test_submissions import submission
from tests.loom.test_timers import timer

MANY = 300
READS = {
    "pending": lambda store: store.pending("e", MANY),
    "timers due": lambda store: store.timers_due(1e9, limit=MANY),
    "submissions": lambda store: (store.submissions("reports"), store.list_submissions()),
    "accounts": lambda store: store.accounts(""),
    "new mail": lambda store: store.new_mail(0),
    "expired mail": lambda store: store.expire_mail("2027"),
    "ended roots": lambda store: store.ended_roots(),
    "everything": verify_loom,
}


def change(store, number):
    """Add and take one of everything."""
    key, name = f"k{number}", f"new{number}"
    (row,) = store.post([mail(key)])
    store.append([taker(mail(key))], taken=[(0, row.no)])
    added = timer(key, due=float(number % MANY))
    store.replace_timer(None, added)
    store.replace_timer(added, None)
    store.add_submission(submission(key, at=0.0))
    store.drop_submission(submission(key, at=0.0))
    store.change_account(key, lambda _state, _now: ("used", None), 0.0)
    store.append([header(name), Ended(name, "cancelled", AT)])


@contextmanager
def hasty_threads():
    """Let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("what", READS)
def test_a_loom_in_memory_is_read_while_another_thread_changes_it(what):
    with anywhere("memory") as place, place.open() as store:
        store.append([header("e", lasting=True)])
        store.post([mail(f"old{number}") for number in range(MANY)])
        for number in range(MANY):
            store.replace_timer(None, timer(f"old{number}", due=float(number)))
            store.add_submission(submission(f"old{number}"))
        done = threading.Event()

        def change_on():
            for number in itertools.takewhile(lambda _: not done.is_set(), itertools.count()):
                change(store, number)

        with hasty_threads():
            changing = threading.Thread(target=change_on)
            changing.start()
            try:
                for _ in range(150 if what != "everything" else 3):
                    READS[what](store)
            finally:
                done.set()
                changing.join()

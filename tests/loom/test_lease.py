"""Leases: one of two processes runs an entity, and a late writer is refused."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

import pytest

from cantrip_actors.loom import (
    Fenced,
    Held,
    Quarantined,
    QuarantineRow,
    SqliteStore,
    mark_gone,
    open_store,
    this_process,
)
from cantrip_actors.loom.sqlite import sqlite
from cantrip_actors.loom.stores import lease
from cantrip_actors.loom.stores.lease import is_alive, is_gone
from cantrip_actors.records.records import Committed, Ended, IntentGiven, Rewarded
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import AT, header, run, turn
from tests.loom.processes import child, python
from tests.loom.test_store import SHARED, anywhere

ME, YOU = "me", "you"
MORE = [IntentGiven("e", "and again", AT)]


def test_any_process_may_append_to_an_unclaimed_entity(store):
    store.append(run("e", "t1"))
    store.append(MORE, {"another": 7})


def test_the_owner_of_an_entity_appends_with_its_token(store):
    held = store.claim("e", ME, 60)
    assert (held.entity_id, held.owner) == ("e", ME)
    assert 50 < held.until - time.time() <= 60
    tokens = MappingProxyType({"e": held.token, "another": 99})
    store.append(run("e", "t1", ends=False), tokens)
    store.append(turn("e", "t2", "t1", 2), tokens)
    assert len(store.records("e")) == 10


@pytest.mark.parametrize("begun", [True, False])
def test_an_append_without_the_token_is_refused(store, begun):
    if begun:
        store.append(run("e", "t1"))
    store.claim("e", ME, 60)
    with pytest.raises(Fenced, match=r"^nothing was recorded for entity e: it is being run under a lease"):
        store.append(MORE if begun else run("e", "t1"))
    assert len(store.records("e")) == (6 if begun else 0)


def test_a_record_without_its_token_refuses_the_whole_batch(store):
    held = store.claim("e", ME, 60)
    with pytest.raises(Fenced):
        store.append([*run("f"), *run("e", "t1")], {"e": held.token + 1})
    assert store.header("f") is None
    store.append([*run("f"), *run("e", "t1")], {"e": held.token})


def test_a_claim_covers_the_entitys_children(store):
    held = store.claim("e", ME, 60)
    store.append(run("e", "t1", ends=False), {"e": held.token})
    child = [*run("c", "t2", parent="t1", parent_entity="e", ends=False)]
    grandchild = run("g", "t3", parent="t2", parent_entity="c")
    with pytest.raises(Fenced, match=r"for entity c \(of the tree of e\)"):
        store.append([*child, *grandchild])
    store.append([*child, *grandchild], {"e": held.token})
    with pytest.raises(Fenced, match=r"for entity g \(of the tree of e\)"):
        store.append([Ended("g", "cancelled", AT)])
    store.append([Ended("g", "cancelled", AT)], {"e": held.token})


def test_a_claim_does_not_cover_forks(store):
    store.append(run("e", "t1"))
    store.claim("e", ME, 60)
    store.append(run("f", "t2", parent="t1", forked=True))


def test_a_child_is_not_claimed_on_its_own(store):
    store.append([*run("e", "t1"), *run("c", "t2", parent="t1", parent_entity="e")])
    with pytest.raises(LoomError, match="entity c runs below entity e: claim that one"):
        store.claim("c", ME, 60)


@pytest.mark.rule("LOOM-3")
def test_a_reward_needs_no_lease(store):
    store.append(run("e", "t1"))
    store.claim("e", ME, 60)
    store.append([Rewarded("e", "t1", 1.0, AT)])


@pytest.mark.rule("F-14")
def test_one_of_two_processes_that_claim_one_entity_is_refused(store):
    store.append(run("e", "t1"))
    held = store.claim("e", ME, 60)
    with pytest.raises(Held, match=r"^entity e is being run by me; its lease lasts until 20..-..-..T..:..:..Z"):
        store.claim("e", YOU, 60)
    store.append(MORE, {"e": held.token})
    assert store.claim("f", YOU, 60).token != held.token


def test_an_expired_lease_stays_valid_until_another_process_takes_it(store):
    store.append(run("e", "t1"))
    held = store.claim("e", ME, -1)
    store.append(MORE, {"e": held.token})
    taken = store.claim("e", YOU, 60)
    assert taken.token > held.token
    with pytest.raises(Fenced, match=f"lease {held.token} is over, another one has claimed it since; stop running it"):
        store.append(MORE, {"e": held.token})
    store.append(MORE, {"e": taken.token})


def test_renewing_prolongs_all_leases_of_an_owner(store):
    mine = [store.claim(entity, ME, -1) for entity in ("a", "b")]
    yours = store.claim("c", YOU, -1)
    store.renew(ME, 60)
    for held in mine:
        with pytest.raises(Held):
            store.claim(held.entity_id, YOU, 60)
    assert store.claim("c", ME, 60).token > yours.token


@pytest.mark.rule("F-33")
def test_renewal_does_not_restore_a_lost_lease(store):
    store.append(run("e", "t1"))
    held = store.claim("e", ME, -1)
    store.claim("e", YOU, 60)
    store.renew(ME, 60)
    with pytest.raises(Fenced):
        store.append(MORE, {"e": held.token})


@pytest.mark.rule("F-33")
def test_claiming_again_returns_a_new_token(store):
    store.append(run("e", "t1"))
    first, second = store.claim("e", ME, 60), store.claim("e", ME, 60)
    assert second.token > first.token
    with pytest.raises(Fenced):
        store.append(MORE, {"e": first.token})
    store.append(MORE, {"e": second.token})


@pytest.mark.rule("F-32")
def test_a_released_lease_is_free_and_its_token_is_invalid(store):
    store.append(run("e", "t1"))
    held = store.claim("e", ME, 60)
    store.release(held)
    store.release(held)
    store.append(MORE)
    with pytest.raises(Fenced, match="it was released since"):
        store.append(MORE, {"e": held.token})
    again = store.claim("e", YOU, 60)
    assert again.token > held.token
    store.release(held)
    with pytest.raises(Fenced):
        store.append(MORE)


def test_a_lease_may_be_claimed_before_the_entity_begins_and_after_others_have(store):
    held = {entity: store.claim(entity, ME, 60).token for entity in ("a", "b")}
    store.append(run("a", "t1"), held)
    store.append(run("b", "t2"), held)
    with pytest.raises(Fenced):
        store.append([Committed(turn_id="t3", entity_id="b", parent_id="t2", sequence=2, at=AT, duration_ms=1.0)])


# ------------------------------------------------------------------------------------------------------ other processes


@pytest.mark.rule("N-09", "F-33")
def test_an_entity_cannot_begin_under_a_name_that_another_holder_has_claimed_since(store):
    held = store.claim("e", this_process(), 60)
    name = store.claim("name:keeper", this_process(), 60)
    store.release(name)
    other = store.claim("name:keeper", this_process(), 60)
    keeper = header("e", name="keeper", lasting=True)
    with pytest.raises(Fenced, match="another one has claimed it since"):
        store.append([keeper], {"e": held.token, "name:keeper": name.token})
    store.append([keeper], {"e": held.token, "name:keeper": other.token})
    assert store.named("keeper") == "e"


@pytest.fixture(params=SHARED)
def shared(request, tmp_path):
    """A store that several processes may write to."""
    with anywhere(request.param) as place:
        yield place


def test_a_claim_through_another_store_is_seen(shared):
    with shared.open() as one, shared.open() as other:
        one.append(run("e", "t1"))
        held = other.claim("e", YOU, 60)
        with pytest.raises(Held):
            one.claim("e", ME, 60)
        with pytest.raises(Fenced):
            one.append(MORE)
        other.append(MORE, {"e": held.token})
        other.release(held)
        mine = one.claim("e", ME, 60)
        with pytest.raises(Fenced):
            other.append(MORE, {"e": held.token})
        one.append(MORE, {"e": mine.token})
        assert len(other.records("e")) == 8


RUN = """
import sys
from cantrip_actors.loom import open_store, this_process
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import AT, run
from cantrip_actors.records.records import IntentGiven
with open_store(sys.argv[1]) as store:
    held = store.claim("e", this_process(), float(sys.argv[2]))
    store.append(run("e", "t1"), {"e": held.token})
    print("running", flush=True)
    for line in sys.stdin:
        try:
            store.append([IntentGiven("e", line, AT)], {"e": held.token})
            print("recorded", flush=True)
        except LoomError as error:
            print(type(error).__name__, flush=True)
"""


@pytest.mark.rule("C-66")
def test_time_never_ends_the_lease_of_a_living_process(tmp_path):
    with (
        child(RUN, tmp_path / "loom.db", 0.2, stdin=subprocess.PIPE) as other,
        open_store(tmp_path / "loom.db") as store,
    ):
        assert other.stdout.readline() == "running\n"
        os.kill(other.pid, signal.SIGSTOP)
        time.sleep(0.4)
        try:
            with pytest.raises(Held, match=f"/{other.pid}/.*; its process runs"):
                store.claim("e", this_process(), 60)
            assert store.is_held("e")
        finally:
            other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert not store.is_held("e")
        store.append(MORE, {"e": store.claim("e", this_process(), 60).token})


@pytest.mark.rule("C-66")
@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_wall_clock_that_is_wrong_by_an_hour_ends_and_prolongs_no_lease(store, monkeypatch, ahead):
    lasting, over = store.claim("e", ME, 60), store.claim("f", "another", -1)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + ahead)
    with pytest.raises(Held):
        store.claim("e", YOU, 60)
    assert store.claim("f", YOU, 60).token != over.token
    store.renew(ME, 60)
    monkeypatch.setattr(time, "time", wall)
    with pytest.raises(Held):
        store.claim("e", YOU, 60)
    store.release(lasting)


@pytest.mark.rule("C-66")
def test_a_lease_ends_when_the_machine_restarts(tmp_path, monkeypatch):
    with SqliteStore(tmp_path / "loom.db") as store:
        store.claim("e", ME, 3600)
    monkeypatch.setattr(sqlite, "read_boot_id", lambda: "another")
    with SqliteStore(tmp_path / "loom.db") as store:
        store.claim("e", YOU, 60)
        with pytest.raises(Held):
            store.claim("e", ME, 60)


@pytest.mark.rule("LOOM-1")
def test_a_process_that_was_frozen_past_its_lease_is_refused_when_it_thaws():
    with (
        anywhere("postgres") as shared,
        python(RUN, shared.url, 1.0, stdin=subprocess.PIPE) as other,
        shared.open() as store,
    ):
        assert other.stdout.readline() == "running\n"
        with pytest.raises(Held):
            store.claim("e", this_process(), 60)
        os.kill(other.pid, signal.SIGSTOP)
        time.sleep(1.2)
        held = store.claim("e", this_process(), 60)
        store.append(MORE, {"e": held.token})
        os.kill(other.pid, signal.SIGCONT)
        other.stdin.write("late\n")
        other.stdin.flush()
        assert other.stdout.readline() == "Fenced\n"
        other.stdin.close()
        assert other.wait() == 0
        assert list(store.records("e")) == [*run("e", "t1"), *MORE]


@pytest.mark.rule("F-34")
def test_leases_of_a_killed_process_are_free_at_once(shared):
    with child(RUN, shared.url, 3600, stdin=subprocess.PIPE) as other, shared.open() as store:
        assert other.stdout.readline() == "running\n"
        with pytest.raises(Held, match=f"/{other.pid}/"):
            store.claim("e", ME, 60)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie then, as it may be for its supervisor
        held = store.claim("e", ME, 60)
        store.append(MORE, {"e": held.token})


# --------------------------------------------------------------------------------------------------------- quarantine


def lose(store, count, entity="e"):
    """Let so many holders in a row not come back."""
    for n in range(count):
        store.claim(entity, f"holder {n}", -1)


@pytest.mark.rule("C-65")
def test_an_entity_whose_holders_died_three_times_is_quarantined_until_that_is_lifted(place):
    with place.open() as store:
        store.append(
            [header("e", lasting=True), header("f", lasting=True), *(IntentGiven(one, "go", AT) for one in "ef")]
        )
        lose(store, 3)
        assert store.quarantined() == []
        for _ in range(2):
            with pytest.raises(
                Quarantined,
                match=r"^entity e is quarantined, .*: 3 processes in a row died, .* tried again at .*Z; .* abandon it$",
            ):
                store.claim("e", ME, 60)
            assert store.quarantined() == ["e"]
            assert not store.is_held("e")
        store.claim("f", ME, 60)
    with place.open() if place.kind in {"sqlite", "postgres"} else nullcontext(store) as store:
        assert store.quarantined() == ["e"]
        lease = store.claim("e", ME, 60, lift=True)
        assert store.quarantined() == []
        if place.kind not in {"memory", "jsonl"}:
            store.append([Ended("e", "cancelled", AT)], {"e": lease.token})
        store.release(lease)
        lose(store, 3)


@pytest.mark.rule("V-10")
def test_a_quarantine_ends_by_itself_and_each_repeated_one_lasts_twice_as_long(store):
    store.append([header("e", lasting=True), IntentGiven("e", "go", AT)])
    assert store.quarantine("e", "Bug: first", 1000.0).until == 1600.0
    for now, until in ((1600.0, 2800.0), (2800.0, 5200.0), (5200.0, 10_000.0)):
        with pytest.raises(Quarantined, match=r"Bug: first|Bug: again") as raised:
            store.claim("e", ME, 60, now=now - 1.0)
        assert raised.value.until == now
        store.claim("e", ME, 60, now=now)
        assert store.quarantines() == []
        row = store.quarantine("e", "Bug: again", now, is_repeated=True)
        assert store.quarantines() == [row] == [QuarantineRow("e", "Bug: again", until)]
    store.claim("e", ME, 60, now=10_000.0)
    assert store.quarantine("e", "Bug: after progress", 20_000.0).until == 20_600.0


@pytest.mark.rule("V-10")
def test_an_entity_that_kills_one_more_process_after_its_quarantine_is_quarantined_for_longer(store):
    store.append([header("e", lasting=True), IntentGiven("e", "go", AT)])
    lose(store, 3)
    with pytest.raises(Quarantined) as first:
        store.claim("e", ME, 60, now=1000.0)
    assert first.value.until == 1600.0
    store.claim("e", "holder 3", -1, now=1600.0)
    with pytest.raises(Quarantined) as second:
        store.claim("e", ME, 60, now=1600.0)
    assert second.value.until == 1600.0 + 1200.0


@pytest.mark.rule("V-10")
def test_a_quarantine_without_a_length_has_to_be_lifted(store):
    store.append([header("e", lasting=True), IntentGiven("e", "go", AT)])
    store.quarantine_for = None
    assert store.quarantine("e", "Bug", 1000.0).until is None
    with pytest.raises(Quarantined, match="not tried again by itself"):
        store.claim("e", ME, 60, now=1e12)
    store.claim("e", ME, 60, lift=True)


@pytest.mark.rule("C-65")
def test_only_consecutive_deaths_of_holders_count(store):
    store.append([header("e", lasting=True), IntentGiven("e", "go", AT)])
    lose(store, 2)
    store.claim("e", "holder 1", -1)  # the same one
    ended = this_process()
    mark_gone(store.claim("e", ended, 60).owner)  # it could not release it, and has ended in order
    store.release(store.claim("e", ME, 60))
    lose(store, 3)
    with pytest.raises(Quarantined):
        store.claim("e", ME, 60)


@pytest.mark.rule("C-65")
def test_an_entity_that_has_not_begun_is_not_quarantined(store):
    lose(store, 5, "name:notes")
    store.claim("name:notes", ME, 60)
    assert store.quarantined() == []


@pytest.mark.rule("C-65")
def test_an_entity_that_kills_its_process_is_quarantined(shared):
    with shared.open() as store:
        store.append([header("e", lasting=True), IntentGiven("e", "go", AT)])
        for _ in range(3):
            with python(CLAIM, shared.url, stdin=subprocess.PIPE) as other:
                assert other.stdout.readline() == "claimed\n"
                other.kill()
        with pytest.raises(Quarantined):
            store.claim("e", this_process(), 60)


CLAIM = """
import sys
from cantrip_actors.loom import open_store, this_process
with open_store(sys.argv[1]) as store:
    store.claim("e", this_process(), 3600)
    print("claimed", flush=True)
    sys.stdin.read()
"""


# ------------------------------------------------------------------------------------------------- names of processes


def test_this_process_is_alive_under_each_of_its_names():
    assert this_process() != this_process()
    assert not is_gone(this_process())
    assert is_alive(this_process())


def test_a_holder_that_has_ended_in_this_process_is_gone_and_others_are_not():
    one, other = this_process(), this_process()
    mark_gone(one)
    assert [is_gone(one), is_alive(one)] == [True, False]
    assert [is_gone(other), is_alive(other)] == [False, True]


@pytest.mark.rule("F-34")
def test_a_process_that_has_ended_is_gone():
    script = "from cantrip_actors.loom import this_process; print(this_process())"
    name = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert is_gone(name)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_processes_of_another_machine_are_unknown(part):
    parts = this_process().split("/")
    parts[3] = str(2**22 + 1)  # no process has such a number
    assert is_gone("/".join(parts))
    parts[part] += "x"
    assert not is_gone("/".join(parts))
    assert not is_alive("/".join(parts))


@pytest.mark.parametrize("name", ["", "me", "a/b/c/d/e/f", "a/b/c"])
def test_a_custom_owner_name_identifies_no_process(name):
    assert not is_gone(name)


@pytest.mark.rule("F-34")
def test_a_later_process_with_the_same_number_is_another_one():
    parts = this_process().split("/")
    parts[4] = "1"
    assert is_gone("/".join(parts))


def test_this_process_counts_neither_as_gone_nor_as_alive_without_proc(monkeypatch):
    monkeypatch.setattr(lease, "Path", lambda _: Path("/nowhere"))
    monkeypatch.setattr(lease, "_read_own_start_time", lease._read_start_time_now)  # which was read before
    assert not is_gone(this_process())
    assert not is_alive(this_process())

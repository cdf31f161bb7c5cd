"""Tables of an earlier version, in both SQL stores: here the next version is made up."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from structlog.testing import capture_logs

from cantrip_actors.loom import open_store, verify_loom
from cantrip_actors.loom.tables import schema
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import run
from tests.loom.test_store import SHARED, Place

pytestmark = pytest.mark.rule("C-54", "K-36")

STEP = "create table made_up (no {key}, data {bytes} not null); alter table entities add column color text;"
NOW, NEXT = schema.VERSION, schema.VERSION + 1


@pytest.fixture(params=SHARED)
def place(request, tmp_path):
    here = Place(request.param, tmp_path)
    with here.open() as store:
        store.append(run("e", "t1"))
    yield here
    here.clear()


@pytest.fixture
def upgrade(monkeypatch):
    """Return a function that makes this program one of a later version, with these steps."""

    def make_later(*steps):
        monkeypatch.setattr(schema, "VERSION", NOW + len(steps))
        monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, *steps))

    return make_later


def read_version(place):
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:"))) as other:
            return other.execute("pragma user_version").fetchone()[0]
    url, _, name = place.url.partition("&schema=")
    with psycopg.connect(url) as other:
        return other.execute(f"select version from {name}.version").fetchone()[0]


def test_new_tables_have_the_present_version(place):
    assert read_version(place) == NOW == 1


def test_tables_of_an_earlier_version_are_upgraded_when_they_are_opened_for_writing(place, upgrade):
    upgrade(STEP)
    with capture_logs() as logs, place.open() as store:
        assert store.migrated == (NOW, NEXT)
        assert list(store.records("e")) == run("e", "t1")
        store._transact(lambda db: db.execute("update entities set color = 'red' where id = 'e'"))
        store.append(run("f", "t2"))
        assert verify_loom(store).ok
    assert [(log["event"], log["found"], log["version"]) for log in logs] == [("loom.migrated", NOW, NEXT)]
    assert read_version(place) == NEXT
    with place.open() as store, open_store(place.url, read_only=True) as reader:
        assert store.migrated is None
        assert store._fetch_rows("select color from entities where color is not null")
        assert len(reader.records("f")) == 6


def test_tables_go_through_the_steps_of_all_versions_in_order(place, upgrade):
    upgrade("create table first (x integer);", "create table second as select x from first;")
    with place.open() as store:
        assert store.migrated == (NOW, NOW + 2)
        assert store._fetch_rows("select x from second") == []


def test_a_step_that_fails_changes_nothing(place, upgrade, monkeypatch):
    with monkeypatch.context():
        upgrade(STEP, "create table nonsense (")
        with pytest.raises(LoomError, match=r"nonsense|syntax|incomplete"):
            place.open()
    assert read_version(place) == NOW
    monkeypatch.undo()
    with place.open() as store:
        assert not store._transact(lambda db: store._has_table(db, "made_up"))
        store.append(run("f", "t2"))
        assert verify_loom(store).ok


@pytest.mark.parametrize("read_only", [True, False])
def test_tables_of_an_earlier_version_are_refused_if_they_may_not_be_upgraded(place, upgrade, read_only):
    upgrade(STEP)
    url = place.url if read_only else f"{place.url}{'&' if '?' in place.url else '?'}migrate=refuse"
    why = "was opened read-only" if read_only else "migrate=refuse was given"
    with pytest.raises(LoomError, match=rf"has tables of version {NOW}, this version uses {NEXT}, and it {why}"):
        open_store(url, read_only=read_only)
    assert read_version(place) == NOW


def test_an_unknown_way_to_migrate_is_refused(tmp_path):
    with pytest.raises(LoomError, match='unknown way to migrate "upgrate"'):
        open_store(f"sqlite:{tmp_path}/loom.db?migrate=upgrate")
    with pytest.raises(LoomError, match='unknown option "migrate"'):
        open_store(f"jsonl:{tmp_path}/loom.jsonl?migrate=upgrade")

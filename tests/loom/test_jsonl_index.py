"""The index that is kept beside a large JSONL loom: it saves the reading, and nothing else ever depends on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cantrip_actors.loom import JsonlStore, jsonl, open_store
from cantrip_actors.loom.index import Index
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import header, histories, run, turn
from tests.loom.test_store import anywhere, assert_holds

pytestmark = pytest.mark.rule("LOOM-1")


@pytest.fixture(autouse=True, scope="module")
def _every_loom_is_worth_it():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "WORTH", 1)
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "loom.jsonl"


@pytest.fixture
def index(path):
    return path.with_name("loom.jsonl.index")


@pytest.fixture
def unread(monkeypatch):
    """Return the offsets of the lines of the loom that opening parsed."""
    parsed = []
    follow = Index.follow
    monkeypatch.setattr(
        Index, "follow", lambda self, record, offset: parsed.append(offset) or follow(self, record, offset)
    )
    return parsed


def told(store):
    """What its index says."""
    return store._known.as_json() | {"unfinished": store._known.unfinished}


@given(histories(), st.data())
def test_a_loom_reads_the_same_with_and_without_an_index(history, data):
    before = data.draw(st.integers(0, len(history.batches)))
    with anywhere("jsonl") as place:
        with place.open() as store:
            for batch in history.batches[:before]:
                store.append(batch)
        with place.open() as store:
            for batch in history.batches[before:]:
                store.append(batch)
            store._keep_index = lambda: None  # killed: later lines are not in the index
        with place.open() as store:
            assert_holds(store, history)
            with_it = told(store)
            store._keep_index = lambda: None
            store.path.with_name("loom.jsonl.index").unlink(missing_ok=True)
        with place.open() as store:
            assert told(store) == with_it


def test_indexed_lines_are_not_read_again(path, unread):
    with JsonlStore(path) as store:
        store.append(run("e", "t1", "t2") + run("f", "t3"))
    with JsonlStore(path) as store:
        assert unread == []
        end = path.stat().st_size
        store.append(run("g", "t4"))
        store._keep_index = lambda: None
    with JsonlStore(path) as store:
        assert min(unread) == end
        assert [len(store.records(one)) for one in "efg"] == [10, 6, 6]


@pytest.mark.parametrize("at", range(7))
def test_a_damaged_index_is_ignored(path, index, at):
    with JsonlStore(path) as store:
        store.append(run("e", "t1", "t2"))
    whole = index.read_bytes()
    spot = len(whole) * at // 7
    for broken in (whole[:spot], whole[:spot] + bytes([whole[spot] ^ 1]) + whole[spot + 1 :]):
        index.write_bytes(broken)
        with JsonlStore(path) as store:
            assert list(store.records("e")) == run("e", "t1", "t2")
            assert store.owner("t2") == "e"
        assert index.read_bytes() == whole


def test_a_line_changed_after_indexing_is_detected(path):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
    path.write_bytes(path.read_bytes().replace(b'{"kind":"turn"', b'{"kind":"burn"'))
    with pytest.raises(LoomError, match="line 7 is corrupt"):
        JsonlStore(path)


def test_a_truncated_loom_has_its_remaining_records(path):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
        whole = path.read_bytes()
        store.append(run("f", "t2"))
    path.write_bytes(whole)
    with JsonlStore(path) as store:
        assert [head.entity_id for head in store.headers()] == ["e"]
        store.append([header("f"), *turn("f", "t2", None, 1)])
    with JsonlStore(path) as store:
        assert store.owner("t2") == "f"


def test_a_torn_line_is_cut_off_with_an_index(path):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
    with path.open("ab") as file:
        file.write(b'{"kind":"turn","ent')
    with JsonlStore(path) as store:
        assert store.recovered.line == 8
        assert list(store.records("e")) == run("e", "t1")


def test_a_reader_uses_the_index_and_does_not_change_it(path, index, unread):
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
    with open_store(path, read_only=True) as store:
        assert unread == []
        assert len(store.records("e")) == 6
    index.unlink()
    with open_store(path, read_only=True):
        pass
    assert not index.exists()


def test_a_loom_works_when_its_index_cannot_be_written(path, index, monkeypatch):
    index.mkdir()
    with capture_logs() as logs, JsonlStore(path) as store:
        store.append(run("e", "t1"))
    assert "will take longer" in logs[0]["event"]
    with JsonlStore(path) as store:
        assert list(store.records("e")) == run("e", "t1")
    assert sorted(one.name for one in path.parent.iterdir()) == ["loom.jsonl", "loom.jsonl.index"]


def test_a_small_loom_has_no_index(path, index, monkeypatch):
    monkeypatch.setattr(jsonl, "WORTH", 100)
    with JsonlStore(path) as store:
        store.append(run("e", "t1"))
    assert not index.exists()

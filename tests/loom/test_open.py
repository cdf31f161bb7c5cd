"""`open_store` by URL: the store that each URL opens, and the error for an invalid one."""

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from cantrip_actors.loom import JsonlStore, MemoryStore, SqliteStore, open_loom, open_store
from cantrip_actors.loom.stores.store import Postponed
from cantrip_actors.terms.errors import LoomError
from tests.loom.histories import run


def opened_path(url, kind=JsonlStore, **options) -> Path:
    with open_store(url, **options) as store:
        assert isinstance(store, kind)
        return store.path


@pytest.mark.parametrize("url", ["memory:", "memory://"])
def test_a_memory_url_opens_a_memory_store(url):
    assert isinstance(open_store(url), MemoryStore)


def test_an_absolute_path_has_three_slashes(tmp_path):
    assert opened_path(f"jsonl://{tmp_path}/a.jsonl") == tmp_path / "a.jsonl"


def test_one_slash_is_an_absolute_path_too(tmp_path):
    assert opened_path(f"jsonl:{tmp_path}/a.jsonl") == tmp_path / "a.jsonl"


def test_no_slash_is_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert opened_path("jsonl:runs/a.log") == tmp_path / "runs" / "a.log"


@pytest.mark.parametrize("name", ["a.jsonl", "sub/a.jsonl", "50%25.jsonl", "odd:name.jsonl", "./sqllite:a.jsonl"])
def test_a_path_that_ends_in_jsonl_opens_a_jsonl_loom(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert opened_path(name) == tmp_path / name


@pytest.mark.parametrize("url", ["sqlite:sub/a.db", "sub/a.db", "sqlite:sub/a%2Edb"])
def test_a_sqlite_url_is_like_a_file_url(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert opened_path(url, SqliteStore) == tmp_path / "sub" / "a.db"
    assert opened_path(f"sqlite://{tmp_path}/sub/a.db", SqliteStore, read_only=True) == tmp_path / "sub" / "a.db"


def test_a_path_object_is_accepted(tmp_path):
    assert opened_path(tmp_path / "a.jsonl") == tmp_path / "a.jsonl"


def test_escapes_in_a_url_are_resolved(tmp_path):
    assert opened_path(f"jsonl://{tmp_path}/what%3F%20100%25.jsonl") == tmp_path / "what? 100%.jsonl"


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    assert opened_path("jsonl:~/a.jsonl") == tmp_path / "a.jsonl"


@pytest.mark.parametrize(("durability", "is_postponed"), [("process", False), ("power", True), ("none", False)])
@pytest.mark.parametrize("scheme", ["jsonl", "sqlite"])
def test_an_attempt_postpones_an_append_that_waits_for_the_disk(tmp_path, scheme, durability, is_postponed):
    with open_store(f"{scheme}:{tmp_path}/loom?durability={durability}") as store:
        with pytest.raises(Postponed) if is_postponed else nullcontext():
            store.attempt(partial(store.append, run("e", "t1")))
        assert len(store.records("e")) == (0 if is_postponed else 6)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://[host/db", "not an address of a Postgres database"),
        ("postgres:///db?durability=ful", 'unknown durability "ful"'),
        ("json:loom.jsonn", 'unknown kind of loom "json": did you mean "jsonl"?'),
        ("memroy:", 'did you mean "memory"?'),
        ("sqllite:loom.db", 'unknown kind of loom "sqllite": did you mean "sqlite"?'),
        ("josnl:loom.jsonl", 'did you mean "jsonl"?'),
        ("postgress://host/loom.db", 'did you mean "postgres"?'),
        ("redis://host", "known: jsonl, memory"),
        ("loom.txt", "names no loom: expected a path ending in .db or .jsonl"),
        ("loom.jsonl?durability=power", "names no loom: expected a path ending in .db or .jsonl, sqlite:path"),
        ("", "names no loom"),
        ("jsonl:", "names no file"),
        ("jsonl:///", "names no file"),
        ("sqlite:", "names no file: expected for example sqlite:loom.db"),
        ("sqlite::memory:", "write memory: for a loom in memory"),
        ("sqlite://loom.db", "names a host: write sqlite:loom.db or sqlite:///loom.db"),
        ("sqlite:loom.db?durability=full", 'unknown durability "full"'),
        ("jsonl://host.jsonl", "names a host: write jsonl:host.jsonl or jsonl:///host.jsonl"),
        ("jsonl:a.jsonl?durabilty=power", 'unknown option "durabilty": did you mean "durability"?'),
        ("jsonl:a.jsonl?durability=powr", 'unknown durability "powr": did you mean "power"?'),
        ("memory:thing", "takes neither a path nor options"),
        ("memory:?durability=power", "takes neither a path nor options"),
    ],
)
def test_an_invalid_url_is_refused_with_the_valid_forms(tmp_path, monkeypatch, url, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoomError) as caught:
        open_store(url)
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_loom_cannot_be_opened_for_reading(tmp_path):
    with pytest.raises(LoomError, match="always empty"):
        open_store("memory:", read_only=True)


def test_reading_a_missing_loom_creates_no_file(tmp_path):
    with pytest.raises(LoomError, match="There is no such loom"):
        open_store(tmp_path / "x" / "a.jsonl", read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [True, False])
def test_a_folder_is_refused_as_a_loom(tmp_path, read_only):
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(LoomError, match=r"a\.jsonl"):
        open_store(tmp_path / "a.jsonl", read_only=read_only)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_pipe_is_refused_without_waiting(tmp_path, read_only):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(LoomError, match="a loom needs one"):
        open_store(tmp_path / "a.jsonl", read_only=read_only)


async def test_a_loom_opened_for_reading_accepts_no_reward(tmp_path):
    with open_store(tmp_path / "a.jsonl") as store:
        store.append(run("e", "t1"))
    with open_loom(tmp_path / "a.jsonl") as loom:
        assert [turn.id for turn in loom.turns("e")] == ["t1"]
        with pytest.raises(LoomError, match="read-only"):
            await loom.reward("t1", 1.0)


async def test_a_loom_opened_for_writing_accepts_rewards(tmp_path):
    with open_store(tmp_path / "a.jsonl") as store:
        store.append(run("e", "t1"))
    with open_loom(tmp_path / "a.jsonl", read_only=False) as loom:
        await loom.reward("t1", 1.0)
    with open_loom(tmp_path / "a.jsonl") as loom:
        assert loom["t1"].reward == 1.0

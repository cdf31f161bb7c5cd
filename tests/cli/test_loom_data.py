"""The commands that forget, prune, back up, compact, migrate and repair a loom."""

import sqlite3
from contextlib import closing

import pytest

from cantrip_actors import Runtime
from cantrip_actors.cli.loom_data import _with_option
from cantrip_actors.loom import open_store, verify_loom
from cantrip_actors.loom.tables import schema
from tests.runtime.spells import cantrip as spell
from tests.runtime.spells import done

LOOM = "sqlite:.cantrip/loom.db"


@pytest.fixture
def cast(place):
    """The ids of an entity, and of a long-lived one that was stopped."""
    with Runtime.blocking(LOOM) as runtime:
        episode = runtime.cast(spell([done("MARK-result")]), "MARK-intent")
        entity = runtime.invoke(spell([done("MARK-result")]), "MARK-intent", name="notes")
        entity.stop()
        return episode.entity_id, entity.id


@pytest.mark.rule("C-50")
def test_forget_takes_a_part_of_an_id_or_a_name_and_prints_counts(cantrip, cast, place):
    said = cantrip("loom", "forget", cast[0][-8:], "--by", "anna", "--why", "asked")
    assert said.code == 0
    assert "1 entities with 6 records (" in said.out
    found = cantrip("loom", "forget", "notes", "--json").json
    assert (found["entities"], found["forks"], found["quotes"]) == ([cast[1]], [], [])
    assert not [path for path in place.rglob("*.db*") if b"MARK" in path.read_bytes()]


@pytest.mark.rule("C-50")
def test_views_show_forgotten_entities(cantrip, cast):
    cantrip("loom", "forget", cast[0])
    assert cantrip("loom", "ls", "--json").json[0]["state"] == "forgotten"
    for command in (["ls"], ["tree"], ["show", cast[0]], ["thread", cast[0]], ["stats"], ["search", "MARK"]):
        said = cantrip("loom", *command)
        assert (said.code, command, said.err) == (0, command, "")
    assert "1 of them forgotten (6 tombstones)" in cantrip("loom", "verify", LOOM).out


@pytest.mark.rule("C-50")
def test_forgetting_an_entity_that_has_not_ended_says_what_to_do(cantrip, place):
    with Runtime.blocking(LOOM) as runtime:
        runtime.invoke(spell([done("a")]), "go", name="notes")
    said = cantrip("loom", "forget", "notes")
    assert said.code != 0
    assert "has not ended, and is not forgotten: stop it first" in said.err


@pytest.mark.parametrize("command", ["forget notes", "prune --older-than 0s", "compact"])
def test_a_loom_that_another_process_writes_cannot_be_opened_and_is_not_changed(cantrip, place, command):
    name, *options = command.split()
    with Runtime.blocking("jsonl:loom.jsonl") as runtime:
        runtime.invoke(spell([done("a")]), "go", name="notes").stop()
        before = (place / "loom.jsonl").read_bytes()
        where = ["jsonl:loom.jsonl"] if name == "compact" else ["--loom", "jsonl:loom.jsonl"]
        said = cantrip("loom", name, *options, *where)
        assert (said.code, (place / "loom.jsonl").read_bytes()) == (2, before)
        assert "is open for writing already" in said.err


def test_a_dry_run_of_prune_only_reads(cantrip, place):
    with Runtime.blocking("jsonl:loom.jsonl") as runtime:
        entity = runtime.invoke(spell([done("a")]), "go", name="notes")
        entity.stop()
        dry_run = ("loom", "prune", "--older-than", "0s", "--dry-run", "--loom", "jsonl:loom.jsonl", "--json")
        assert cantrip(*dry_run).json["entities"] == [entity.id]
    with (place / "loom.jsonl").open("ab") as file:
        file.write(b'{"kind":"begun by a writer that was killed')
    before = (place / "loom.jsonl").read_bytes()
    assert cantrip(*dry_run).json["entities"] == [entity.id]
    assert (place / "loom.jsonl").read_bytes() == before


@pytest.mark.rule("C-52")
def test_prune_lists_or_forgets_older_entities(cantrip, cast):
    assert "0 entities would be forgotten" in cantrip("loom", "prune", "--older-than", "1d", "--dry-run").out
    assert len(cantrip("loom", "prune", "--older-than", "0s", "--dry-run", "--json").json["entities"]) == 2
    assert "2 entities with " in cantrip("loom", "prune", "--older-than", "0s").out
    assert "0 entities would be forgotten" in cantrip("loom", "prune", "--older-than", "60", "--dry-run").out
    said = cantrip("loom", "prune", "--older-than", "soon")
    assert said.code == 2
    assert "expected a duration" in said.err


@pytest.mark.rule("C-51")
def test_backup_copies_and_verifies(cantrip, cast, place):
    said = cantrip("loom", "backup", LOOM, "backup.db")
    assert (said.code, "every record is as it was written" in said.out) == (0, True)
    with open_store("backup.db", read_only=True) as store:
        assert verify_loom(store).ok
    assert cantrip("loom", "backup", LOOM, "backup.db").code != 0
    assert cantrip("loom", "compact", LOOM).code == 0


@pytest.mark.rule("C-54")
def test_migrate_says_what_it_did(cantrip, cast, place, monkeypatch):
    assert "is of the present version already" in cantrip("loom", "migrate", LOOM).out
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setattr(schema, "STEPS", ("create table made_up (no {key})",))
    assert "tables of version 1 are of version 2 now" in cantrip("loom", "migrate", LOOM).out
    assert cantrip("loom", "migrate", ".cantrip/loom.db", "--json").json["migrated"] is None


@pytest.mark.rule("C-53")
def test_repair_says_what_it_left_out(cantrip, cast, place):
    with closing(sqlite3.connect(".cantrip/loom.db", isolation_level=None)) as other:
        other.execute("update records set body = replace(body, 'MARK-intent', 'MARK-edited') where seq = 2")
    said = cantrip("loom", "repair", LOOM)
    assert said.code == 0
    assert f"{cast[0]}: 5 lines left out" in said.out
    assert cantrip("loom", "verify", LOOM).code == 0


@pytest.mark.rule("C-50", "C-52", "C-54")
@pytest.mark.parametrize(
    "command",
    [
        "forget notes --loom LOOM",
        "prune --older-than 1d --loom LOOM",
        "compact LOOM",
        "migrate LOOM",
        "backup LOOM copy.db",
        "repair LOOM",
        "verify LOOM",
        "head LOOM",
        "copy LOOM copy.db",
    ],
)
@pytest.mark.parametrize("name", ["typo.db", "typo.jsonl"])
def test_a_loom_that_does_not_exist_is_an_error_and_is_not_made(cantrip, place, command, name):
    said = cantrip("loom", *command.replace("LOOM", name).split())
    assert (said.code, said.out) == (2, "")
    assert "here is no such loom" in said.err
    assert not [*place.glob("typo*"), *place.glob("copy*")]


def test_an_option_can_be_added_to_any_url():
    assert _with_option("loom.db", "a=b") == "sqlite:loom.db?a=b"
    assert _with_option("/x/loom.db", "a=b") == "sqlite:///x/loom.db?a=b"
    assert _with_option("postgresql://u@h/d?schema=s", "a=b") == "postgresql://u@h/d?schema=s&a=b"

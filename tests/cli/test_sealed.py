"""Sealed looms and dispatches on the command line: `--key`, `--head`, and the key file that the environment names."""

import shutil

import pytest

from cantrip_actors import Runtime
from cantrip_actors.dispatch import Dispatches
from tests.dispatch.contracts import contract
from tests.runtime.spells import cantrip as spell
from tests.runtime.spells import done

LOOM = "sqlite:.cantrip/loom.db"


@pytest.fixture
def key(place, tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "seal.key"
    file.write_bytes(b"sixteen bytes and more")
    file.chmod(0o600)
    with Runtime.blocking(LOOM, seal_key=file) as runtime:
        runtime.cast(spell([done("one")]), "intent")
    return file


@pytest.fixture
def environment(key, monkeypatch):
    monkeypatch.setenv("CANTRIP_SEAL_KEY", str(key))
    return key


@pytest.mark.rule("X-21")
def test_verify_says_whether_the_key_was_used(cantrip, key):
    assert "sealed, checked with its key" in cantrip("loom", "verify", LOOM, "--key", str(key)).out
    assert "sealed, and not checked: no key" in cantrip("loom", "verify", LOOM).out
    assert cantrip("loom", "verify", LOOM, "--json", "--key", str(key)).json["seal"] == "checked"


@pytest.mark.rule("X-21")
def test_an_exported_head_finds_an_older_copy(cantrip, key, place):
    shutil.copytree(place / ".cantrip", place / "old")
    with Runtime.blocking(LOOM, seal_key=key) as runtime:
        runtime.cast(spell([done("two")]), "intent")
    said = cantrip("loom", "head", LOOM, "--output", "heads.json", "--key", str(key))
    assert (said.code, "the heads of 2 histories" in said.out) == (0, True)
    assert cantrip("loom", "verify", LOOM, "--head", "heads.json").code == 0
    said = cantrip("loom", "verify", "sqlite:old/loom.db", "--head", "heads.json", "--key", str(key))
    assert said.code == 1
    assert "is an older copy, or forged" in said.out
    assert cantrip("loom", "head", LOOM).json["records"] == 12


def test_a_file_of_heads_is_never_overwritten(cantrip, key, place):
    (place / "heads.json").write_text("mine")
    said = cantrip("loom", "head", LOOM, "--output", "heads.json")
    assert (said.code, (place / "heads.json").read_text()) == (1, "mine")
    assert "give the path of a new file" in said.err


def test_the_environment_names_the_key_for_every_command(cantrip, environment, place):
    assert len(cantrip("loom", "ls", "--json").json) == 1
    assert "checked with its key" in cantrip("loom", "verify", LOOM).out
    assert cantrip("loom", "backup", LOOM, "backup.db").code == 0
    assert cantrip("loom", "compact", LOOM).code == 0
    assert cantrip("loom", "prune", "--older-than", "90d").code == 0


def test_a_sealed_loom_is_read_without_its_key_and_not_written(cantrip, key):
    assert len(cantrip("loom", "ls", "--json").json) == 1
    said = cantrip("loom", "compact", LOOM)
    assert (said.code, "CANTRIP_SEAL_KEY" in said.err) == (2, True)


def test_copy_seals_and_unseals(cantrip, key, place):
    assert cantrip("loom", "copy", LOOM, "plain.jsonl", "--key", str(key)).code == 0
    assert "sealed" not in cantrip("loom", "verify", "plain.jsonl").out
    assert cantrip("loom", "copy", "plain.jsonl", "again.db", "--to-key", str(key)).code == 0
    assert "checked with its key" in cantrip("loom", "verify", "again.db", "--key", str(key)).out


@pytest.mark.rule("X-21")
def test_dispatches_are_verified_with_key_and_head(cantrip, environment, place):
    folder = place / ".cantrip/dispatches"
    logs = Dispatches(folder, seal_key=environment)
    logs.create(contract(dispatch_id="mend"), author="ann")
    shutil.copytree(folder, place / "old")
    assert cantrip("dispatch", "approve", "mend", "--by", "ann").code in (0, 1)
    logs.create(contract(dispatch_id="other"), author="ann")
    assert "the heads of 2 histories" in cantrip("dispatch", "head", "--output", "heads.json").out
    assert cantrip("dispatch", "verify", "--head", "heads.json").out.startswith(
        ".cantrip/dispatches: 2 dispatches: every"
    )
    said = cantrip("dispatch", "verify", "--dir", "old", "--head", "heads.json")
    assert (said.code, "other: the log is gone" in said.out) == (1, True)
    path = folder / "mend.jsonl"
    path.write_bytes(path.read_bytes().replace(b"ann", b"eve", 1))
    said = cantrip("dispatch", "verify", "--json")
    assert (said.code, [*said.json["faults"]]) == (1, ["mend"])

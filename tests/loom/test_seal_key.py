"""A loom that is sealed with a key: a change of its history without the key is noticed."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from cantrip_actors import LoomError, Runtime
from cantrip_actors.loom import (
    DamagedLoom,
    Heads,
    Wanted,
    WrongSealKey,
    backup_loom,
    collect_heads,
    compact_loom,
    copy_loom,
    forget_entities,
    open_loom,
    open_store,
    repair_loom,
    verify_loom,
)
from cantrip_actors.own_files.claims import Own
from cantrip_actors.records.codec import encode
from cantrip_actors.records.records import Ended, Rewarded
from cantrip_actors.records.seal import NOTHING, seal, split_link
from tests.loom import postgres
from tests.loom.histories import AT, run, turn
from tests.loom.test_store import drop
from tests.runtime.spells import cantrip, done

SECRET = b"sixteen bytes and more"
FAMILY = [
    *run("e", "t1", ends=False),
    *run("c", "t2", parent="t1", parent_entity="e"),
    Ended("c", "terminated", AT),
    *turn("e", "t3", "t1", 2, terminated=True),
    Ended("e", "terminated", AT),
]
OTHER = run("other", "t4")


class Sealed:
    """A sealed loom, and an attacker who can write it but has no key."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.path = folder / ("loom.db" if kind == "sqlite" else "loom.jsonl")
        self.url = postgres.fresh() if kind == "postgres" else f"{kind}:{self.path}"

    def open(self, key=SECRET, **options):
        return open_store(self.url, seal_key=key, **options)

    def verify(self, key=SECRET, heads=None):
        with self.open(key, read_only=True) as store:
            return verify_loom(store, heads)

    def change(self, change):
        """Replace the lines by `change(lines)`, each with a link that fits the one before it, as far as one can."""
        if self.kind == "jsonl":
            first, *lines = self.path.read_bytes().splitlines()
            self.path.write_bytes(b"".join(line + b"\n" for line in (first, *linked(change(lines)))))
            return
        connect = sqlite3.connect if self.kind == "sqlite" else self._server
        sign = "?" if self.kind == "sqlite" else "%s"
        with closing(connect(self.path)) as connection:
            rows = connection.execute("select entity, turn, body from records order by seq").fetchall()
            owners = {split_link(body.encode())[0]: (entity, turn) for entity, turn, body in rows}
            lines = linked(change([body.encode() for *_, body in rows]))
            connection.execute("delete from records")
            for seq, line in enumerate(lines, 1):
                entity, name = owners.get(split_link(line)[0], rows[0][:2])
                connection.execute(
                    f"insert into records values ({sign}, {sign}, {sign}, {sign})",  # test code
                    (seq, entity, name, line.decode()),
                )
            connection.commit()

    def _server(self, _):
        address, _, schema = self.url.partition("&schema=")
        return psycopg.connect(address, options=f"-c search_path={schema}")

    def edit_in_place(self, old, new):
        """Change bytes of one length in the file."""
        data = self.path.read_bytes()
        assert old in data
        self.path.write_bytes(data.replace(old, new, 1))


def linked(lines):
    """The lines with the links that one can make without a key."""
    made, heads = [], {}
    for line in lines:
        tree = b"other" if b'"entity":"other"' in line else b"e"
        whole, heads[tree] = seal(split_link(line)[0], heads.get(tree, NOTHING))
        made.append(line if split_link(line)[1] is None else whole)
    return made


@pytest.fixture(params=["jsonl", "sqlite", "postgres"])
def loom(request, tmp_path):
    made = Sealed(request.param, tmp_path)
    with made.open() as store:
        store.append(FAMILY)
        store.append(OTHER)
    yield made
    if made.kind == "postgres":
        drop(made.url)


def edit(lines):
    return [line.replace(b'"terminated"', b'"truncated"') for line in lines]


def cut(lines):
    return lines[:-1]


def cut_tree(lines):
    return [line for line in lines if b'"entity":"other"' not in line]


def swap(lines):
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def swap_trees(lines):
    other = [line for line in lines if b'"entity":"other"' in line]
    return [*other, *(line for line in lines if line not in other)]


def insert(lines):
    return [*lines, encode(Rewarded("e", "t1", 1.0, AT))[:-1] + b',"chain":"%b"}' % (b"0" * 24)]


def take_out(lines):
    return [*lines[:5], *lines[6:]]


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("change", [edit, cut, cut_tree, swap, swap_trees, insert, take_out])
def test_a_change_without_the_key_is_detected(loom, change):
    assert loom.verify().ok
    loom.change(change)
    assert loom.verify().faults


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("change", [cut, cut_tree])
def test_a_cut_end_is_found_although_the_remaining_hashes_are_valid(loom, change):
    if loom.kind == "jsonl":
        first, *lines = loom.path.read_bytes().splitlines()
        loom.path.write_bytes(b"".join(line + b"\n" for line in (first, *change(lines))))
    else:
        connect = sqlite3.connect if loom.kind == "sqlite" else loom._server
        with closing(connect(loom.path)) as connection:
            fewer = len(change([b'"entity":"e"'] * len(FAMILY) + [b'"entity":"other"'] * len(OTHER)))
            connection.execute(f"delete from records where seq > {fewer}")  # test code
            connection.commit()
    found = loom.verify().faults
    assert any("missing" in str(fault) for fault in found), found


@pytest.mark.rule("X-21")
def test_a_record_of_another_loom_with_the_same_key_is_refused(tmp_path):
    one, two = (Sealed("jsonl", tmp_path / name) for name in "ab")
    for each in (one, two):
        each.path.parent.mkdir()
        with each.open() as store:
            store.append(OTHER)
    first = one.path.read_bytes().splitlines(keepends=True)[0]
    rest = two.path.read_bytes().splitlines(keepends=True)[1:]
    one.path.write_bytes(b"".join([first, *rest]))
    assert not one.verify().ok


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("key", [SECRET, False])
def test_exported_heads_find_an_older_copy_of_the_whole_loom(tmp_path, key):
    loom = Sealed("jsonl", tmp_path / "now")
    loom.path.parent.mkdir()
    with loom.open() as store:
        store.append(FAMILY)
    shutil.copytree(tmp_path / "now", tmp_path / "old")
    with loom.open() as store:
        store.append(OTHER)
        store.append([Rewarded("e", "t1", 1.0, AT)])
        heads = Heads.from_json(collect_heads(store).as_json())
    assert loom.verify(key, heads).ok
    shutil.rmtree(tmp_path / "now")
    shutil.copytree(tmp_path / "old", tmp_path / "now")
    assert loom.verify(key).ok
    found = [str(fault).partition(":")[0] for fault in loom.verify(key, heads).faults]
    assert sorted(found) == ["entity e", "entity other"]


@pytest.mark.rule("X-21")
def test_heads_find_an_older_copy_of_a_loom_without_a_key(tmp_path):
    with open_store(tmp_path / "loom.db") as store:
        store.append(FAMILY)
        shutil.copy(tmp_path / "loom.db", tmp_path / "old.db")
        before = collect_heads(store)
        store.append(OTHER)
        after = collect_heads(store)
        assert verify_loom(store, before).ok
        assert verify_loom(store, after).ok
    with open_store(tmp_path / "old.db") as store:
        store.append(FAMILY)
        assert verify_loom(store, before).ok
        (fault,) = verify_loom(store, after).faults
        assert str(fault).startswith("entity other: its tree is not as far as when its head was exported")


@pytest.mark.rule("X-21")
def test_a_loom_in_memory_is_sealed_like_the_others():
    with open_store("memory:", seal_key=SECRET) as store:
        store.append(FAMILY)
        found = verify_loom(store)
        assert (found.ok, found.seal) == (True, "checked")
        assert verify_loom(store, collect_heads(store)).ok
        store.append(OTHER)
        assert verify_loom(store).ok


def test_a_sealed_loom_and_one_without_a_key_have_the_same_fingerprint(loom):
    with open_store("memory:") as plain:
        plain.append(FAMILY)
        plain.append(OTHER)
        assert loom.verify().fingerprint == verify_loom(plain).fingerprint


# ----------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.rule("X-21")
@pytest.mark.parametrize(("key", "why"), [(None, "is sealed: give its key"), (b"another key, as long", "another key")])
def test_a_sealed_loom_is_opened_with_its_key_only(loom, key, why):
    for read_only in (True, False):
        with pytest.raises(WrongSealKey, match=why):
            loom.open(key, read_only=read_only)
    with loom.open() as store:
        store.append([Rewarded("e", "t1", 1.0, AT)])
    assert loom.verify().ok


def test_a_sealed_loom_read_without_its_key_is_reported_as_unchecked(loom):
    with loom.open(False, read_only=True) as store:
        assert list(store.records("e"))
        assert verify_loom(store).seal == "unchecked"
    with pytest.raises(LoomError, match="for reading"):
        loom.open(False)


def test_a_loom_with_records_cannot_be_sealed(tmp_path):
    with open_store(tmp_path / "loom.db") as store:
        store.append(OTHER)
    with pytest.raises(WrongSealKey, match="--to-key"):
        open_store(tmp_path / "loom.db", seal_key=SECRET)
    with (
        open_store(tmp_path / "loom.db", read_only=True) as source,
        open_store(tmp_path / "sealed.db", seal_key=SECRET) as target,
    ):
        copy_loom(source, target)
        assert verify_loom(target).seal == "checked"


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_file_that_others_can_read_is_refused(tmp_path, mode):
    file = tmp_path / "seal.key"
    file.write_bytes(SECRET)
    file.chmod(mode)
    with pytest.raises(LoomError, match="chmod 600"):
        open_store(tmp_path / "loom.db", seal_key=file)
    assert not (tmp_path / "loom.db").exists()


@pytest.mark.rule("X-21")
def test_no_gate_reaches_the_file_with_the_key(tmp_path):
    file = tmp_path / "seal.key"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    with open_store(tmp_path / "loom.db", seal_key=file), file.open() as opened:
        assert Own.now().has_file(opened.fileno())
    with open_store(tmp_path / "loom.db", seal_key=SECRET):  # the newline at its end is not part of it
        pass


@pytest.mark.parametrize(
    ("key", "why"),
    [(b"short", "at least 16"), (Path("no/such/file"), "cannot read the key"), (Path("/dev/null"), "regular file")],
)
def test_a_key_that_cannot_be_used_is_refused_before_a_loom_is_made(tmp_path, key, why):
    with pytest.raises(LoomError, match=why):
        open_store(tmp_path / "loom.db", seal_key=key)
    assert [*tmp_path.iterdir()] == []


def test_the_name_of_a_key_file_is_not_accepted_as_the_key(tmp_path):
    file = tmp_path / "a-long-enough-name.key"
    file.write_bytes(SECRET)
    with pytest.raises(LoomError, match="the name of a file"):
        open_store(tmp_path / "loom.db", seal_key=str(file))


# ------------------------------------------------------------------------------------------------ what looms go through


def test_a_sealed_loom_is_written_on_by_later_processes(loom):
    for n in range(3):
        with loom.open() as store:
            store.append(run(f"later{n}", f"l{n}"))
    assert loom.verify().ok


def test_records_after_the_head_of_a_killed_process_are_checked_and_kept(tmp_path):
    loom = Sealed("jsonl", tmp_path)
    with loom.open() as store:
        store.append(FAMILY)
        first = loom.path.read_bytes().partition(b"\n")[0]
        store.append(OTHER)
    rest = loom.path.read_bytes()[len(first) :]
    loom.path.write_bytes(first + rest)  # as if it had been killed before it wrote the head
    assert loom.verify().ok
    with loom.open() as store:
        store.append([Rewarded("e", "t1", 1.0, AT)])
    assert loom.verify().ok


@pytest.mark.rule("X-21")
@pytest.mark.parametrize("change", [lambda line: line[:-1], lambda line: line.replace(b',"head":', b',"hade":')])
def test_a_sealed_file_whose_first_line_was_changed_is_damaged(tmp_path, change):
    loom = Sealed("jsonl", tmp_path)
    with loom.open() as store:
        store.append(FAMILY)
    first, end, rest = loom.path.read_bytes().partition(b"\n")
    loom.path.write_bytes(change(first) + end + rest)
    with pytest.raises(DamagedLoom, match="first line"):
        loom.open()


def test_a_sealed_loom_is_backed_up_compacted_and_forgotten_like_others(loom, tmp_path):
    backup_loom(loom.url, tmp_path / "backup.jsonl", seal_key=SECRET)
    with open_store(tmp_path / "backup.jsonl", read_only=True, seal_key=SECRET) as copy:
        assert verify_loom(copy).seal == "checked"
    with loom.open() as store:
        forget_entities(store, Wanted(["e"]))
        compact_loom(store)
    found = loom.verify()
    assert (found.faults, found.forgotten) == ([], 2)


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_repairing_a_sealed_loom_drops_forged_records(tmp_path, kind):
    loom = Sealed(kind, tmp_path)
    with loom.open() as store:
        store.append(FAMILY)
        store.append(OTHER)
        store.append(run("forged", "t5", ends=False))
        store.append(turn("forged", "t6", "t5", 2, text="a genuine answer", terminated=True))
    loom.edit_in_place(b"a genuine answer", b"a forged answer!")
    with pytest.raises(WrongSealKey):
        repair_loom(loom.url)
    done = repair_loom(loom.url, seal_key=SECRET)
    assert done.left_out
    found = loom.verify()
    assert (found.ok, found.seal) == (True, "checked")


def test_heads_are_not_exported_from_a_loom_with_faults(loom):
    loom.change(edit)
    with loom.open(read_only=True) as store, pytest.raises(LoomError, match="has faults"):
        collect_heads(store)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"heads":2}', b'{"heads":1,"trees":[],"salt":"","records":1}'])
def test_an_invalid_heads_file_is_refused(data):
    with pytest.raises(LoomError, match=r"heads|cantrip loom head"):
        Heads.from_json(data)


@pytest.mark.rule("X-21")
async def test_a_runtime_with_a_key_seals_its_loom(tmp_path):
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url, seal_key=SECRET) as runtime:
        assert (await runtime.cast(cantrip([done(1)]), "one")).result == 1
        await runtime.backup(tmp_path / "backup.db")
    with open_loom(url, seal_key=SECRET), open_store(tmp_path / "backup.db", read_only=True, seal_key=SECRET) as store:
        assert verify_loom(store).seal == "checked"

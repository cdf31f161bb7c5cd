"""Files that are not a loom are not changed, and files of the runtime are private to its user."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cantrip_actors import Call, Cantrip, Circle, LoomError, Runtime, scripted
from cantrip_actors.dispatch import Dispatches
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.opening import open_store
from cantrip_actors.wards import max_turns
from tests.dispatch.contracts import contract


def cantrip() -> Cantrip:
    return Cantrip(scripted(["yes"] * 3), Call(), Circle(gates=["done"], wards=[max_turns(2)]))


def cast(url: str | Path) -> None:
    with Runtime.blocking(url) as runtime:
        runtime.cast(cantrip(), "hello")


FOREIGN = {
    "a line without an end": b"meeting at nine",
    "an object without an end": b'{"name": "ann", "age": 7}',
    "somebody's kind of record": b'{"kind":"cat","name":"Tom"}',
    "lines": b"first\nsecond\n",
    "lines, the last without an end": b"first\nsecond",
    "bytes": bytes(range(256)),
    "spaces": b"   ",
}


@pytest.mark.rule("X-14")
@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("how", ["plain", "link", "sqlite"])
def test_a_file_that_is_not_a_loom_is_refused_and_not_changed(tmp_path: Path, what: str, how: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(FOREIGN[what])
    file.chmod(0o644)
    if how == "link":
        (tmp_path / "link.jsonl").symlink_to(file)
    url = {"plain": f"jsonl:{file}", "link": str(tmp_path / "link.jsonl"), "sqlite": f"sqlite:{file}"}[how]
    before, there = file.stat(), sorted(one.name for one in tmp_path.iterdir())
    with pytest.raises(LoomError, match=r"\w"):
        cast(url)
    after = file.stat()
    assert file.read_bytes() == FOREIGN[what]
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert sorted(one.name for one in tmp_path.iterdir()) == there


@pytest.mark.rule("X-14", "Z-13")
@pytest.mark.parametrize("scheme", ["jsonl", "sqlite"])
@pytest.mark.parametrize("content", [*FOREIGN.values(), bytes(4096)], ids=[*FOREIGN, "zeros of a power cut"])
def test_a_file_that_is_not_a_loom_is_not_read_as_an_empty_one(tmp_path: Path, scheme: str, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(LoomError, match=r"not a loom|not a database|corrupt"):
        open_store(f"{scheme}:{tmp_path / 'notes.txt'}", read_only=True)


@pytest.mark.rule("X-14")
@pytest.mark.parametrize("scheme", ["jsonl", "sqlite"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_name_that_no_file_can_have_is_refused_with_a_plain_message(
    tmp_path: Path, scheme: str, read_only: bool
) -> None:
    with pytest.raises(LoomError, match=r"cannot open .*: File name too long"):
        open_store(f"{scheme}:{tmp_path / ('x' * 300)}", read_only=read_only)


@pytest.mark.rule("X-14")
@pytest.mark.parametrize(
    "torn", [b"{", b'{"loom"', b'{"loom":1}', b'{"kind":"header","entity":"a', b'{"loom":1}\n{"kind":"hea']
)
def test_a_loom_whose_creation_was_interrupted_by_a_kill_is_opened(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "loom.jsonl").write_bytes(torn)
    cast(tmp_path / "loom.jsonl")
    with open_store(tmp_path / "loom.jsonl", read_only=True) as store:
        assert verify_loom(store).ok


@pytest.mark.rule("X-14")
@pytest.mark.parametrize("url", ["sqlite:{}/loom.db%00.txt", "jsonl:{}/loom.jsonl%00.txt", "sqlite:%00", "{}/a\0b.db"])
def test_a_name_with_a_nul_character_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(LoomError, match="NUL"):
        open_store(url.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


needs_modes = pytest.mark.skipif(sys.platform == "win32", reason="a mode does not say there who may read a file")


def modes(folder: Path) -> dict[str, str]:
    wide = {}
    for one in folder.rglob("*"):
        mode, expected = stat.S_IMODE(one.stat().st_mode), 0o700 if one.is_dir() else 0o600
        if mode & ~expected:
            wide[one.name] = f"{mode:04o}"
    return wide


@needs_modes
@pytest.mark.rule("X-20")
@pytest.mark.parametrize("name", [".cantrip/loom.db", ".cantrip/loom.jsonl", "new/deep/loom.jsonl"])
def test_a_loom_is_private_to_its_user_under_any_umask(tmp_path: Path, umask: None, name: str) -> None:
    with Runtime.blocking(tmp_path / name, create=True) as runtime:
        entity = runtime.invoke(cantrip(), "hello", name="ann")
        entity.send("again")
        assert modes(tmp_path) == {}  # SQLite's own files are there, too
    cast(tmp_path / name)
    assert len(list((tmp_path / name).parent.iterdir())) >= 1
    assert modes(tmp_path) == {}


@needs_modes
@pytest.mark.rule("X-20")
def test_the_log_of_a_dispatch_is_private_to_its_user(tmp_path: Path, umask: None) -> None:
    log = Dispatches(tmp_path / ".cantrip" / "dispatches")
    log.create(contract(), author="ada")
    assert modes(tmp_path) == {}


@needs_modes
@pytest.mark.rule("X-20")
@pytest.mark.parametrize("name", ["loom.db", "loom.jsonl"])
def test_a_loom_that_others_can_read_is_narrowed_and_reported(tmp_path: Path, name: str) -> None:
    home = tmp_path / ".cantrip"
    cast(home / name)
    home.chmod(0o755)
    for one in home.iterdir():
        one.chmod(0o666)
    with capture_logs() as logs:
        cast(home / name)
    assert modes(tmp_path) == {}
    told = {Path(one["path"]).name: one["mode"] for one in logs if one["event"].startswith("others could read")}
    assert told[".cantrip"] == "0755"
    assert told[name] == "0666"


@needs_modes
@pytest.mark.rule("X-20")
def test_a_folder_of_the_user_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data").chmod(0o755)
    cast(tmp_path / "data" / "loom.db")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755

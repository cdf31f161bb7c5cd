"""No file gate reads, lists or writes a file of the runtime under any name."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_actors import Call, Cantrip, Circle, InvalidCantrip, Runtime, open_loom, scripted
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.files import list_files, read, search, write
from cantrip_actors.circle.medium import ProgramLimits, medium
from cantrip_actors.circle.shell import medium as shell_medium
from cantrip_actors.dispatch import Dispatches
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.opening import open_store
from cantrip_actors.own_files.claims import FileClaim, Own, claim_file, claim_folder, hold
from cantrip_actors.recipes import load_recipe
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("X-11")

LOOMS = ("project/.cantrip/loom.db", "project/looms/notes.db", "project/looms/notes.jsonl")
SECRET = "what another entity was told"


def cast(url: Path, text: str) -> None:
    cantrip = Cantrip(scripted(["yes"]), Call(), Circle(gates=["done"], wards=[max_turns(2)]))
    with Runtime.blocking(url, create=True) as runtime:
        runtime.cast(cantrip, text)


@pytest.fixture(params=LOOMS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A project's folder, and the loom in it that is open."""
    path = tmp_path / request.param
    cast(path, SECRET)
    with open_loom(path):
        yield tmp_path / "project", path


def spellings(root: Path, path: Path) -> list[str]:
    """Ways to name a file below a root."""
    folder, name = path.parent.name, path.name
    plain = f"{folder}/{name}"
    odd = f"{folder[0]}{folder[1:].swapcase()}/{name}"
    links = {"link": path, "folder": path.parent, "again": root / "link", "up": root / "deep" / "link"}
    (root / "deep").mkdir()
    for new, target in links.items():
        (root / new).symlink_to(target)
    (root / "deep" / "link").symlink_to(Path("..") / folder / name)
    os.link(path, root / "hard")
    os.link(path, root / "deep" / "hard.txt")
    ways = [
        plain,
        f"./{plain}",
        f"{folder}//{name}",
        f"{folder}/./{name}",
        str(path),
        f"{root}/./{plain}",
        f"//{path}"[1:],
    ]
    ways += ["link", "folder/" + name, "again", "up", "deep/link", "hard", "deep/hard.txt", "./hard", f"{root}/hard"]
    ways += [f"{'./' * n}{plain}" for n in (10, 100, 1000, (4095 - len(plain)) // 2, (4096 - len(plain)) // 2)]
    ways += [plain + ending for ending in ("-wal", "-shm", "-journal", ".key", ".head", ".new")]
    ways += [f"folder/{name}{ending}" for ending in ("-wal", "-shm", ".key", ".anything")]
    ways += [
        f"{folder}/{wrong}"
        for wrong in (name.upper(), name.title(), name.replace("l", "\N{FULLWIDTH LATIN SMALL LETTER L}"))
    ]
    ways += [
        odd,
        f"{folder}/.{name}.part",
        f"{folder}/.{name}.0a.draft",
        f"{plain}/",
        f"{plain}/x",
        f"{plain}/../{name}",
    ]
    ways += [
        f"/proc/self/root{path}",
        f"/proc/self/cwd/{plain}",
        f"/dev/fd/../..{path}",
        f"file://{path}",
        f"~/{plain}",
    ]
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(fd.readlink()).startswith(str(path)):
                ways += [str(fd), f"/dev/fd/{fd.name}"]
    return ways


def attack(root: Path, way: str) -> None:
    """Try to read, search, list and replace it; every one of them has to be refused or find nothing."""
    with contextlib.suppress(GateError):
        assert SECRET not in str(read(root=root, path=way))
    with contextlib.suppress(GateError):
        assert not [line for line in search("told", root=root, path=way) if SECRET in line]
    with contextlib.suppress(GateError):
        list_files(root=root, path=way)
    with contextlib.suppress(GateError):
        write(way, "", root=root)


def test_no_spelling_reaches_an_open_loom(project: tuple[Path, Path]) -> None:
    root, path = project
    ways = spellings(root, path)
    assert len(ways) >= 45
    files = {one: one.read_bytes() for one in path.parent.iterdir()}
    for way in ways:
        attack(root, way)
    assert {one: one.read_bytes() for one in path.parent.iterdir() if one in files} == files
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok


def test_the_refusal_names_the_runtimes_file(project: tuple[Path, Path]) -> None:
    root, path = project
    for run in (lambda: read(root=root, path=str(path)), lambda: write(str(path), "", root=root)):
        with pytest.raises(GateError, match="belongs to the runtime, which keeps its looms"):
            run()


def test_an_entity_cannot_replace_the_loom_that_records_it(tmp_path: Path) -> None:
    path = tmp_path / ".cantrip" / "loom.db"
    crystal = scripted(
        [{"tool_calls": [{"gate": "write", "args": {"path": ".cantrip/loom.db", "content": ""}}]}, "sorry"]
    )
    circle = Circle(gates=["done", write.with_(root=tmp_path), read.with_(root=tmp_path)], wards=[max_turns(3)])
    with Runtime.blocking(path) as runtime:
        episode = runtime.cast(Cantrip(crystal, Call(), circle), "empty it")
    assert "belongs to the runtime" in str(episode.thread[0].gate_calls[0].result)
    with open_store(path, read_only=True) as store:
        assert verify_loom(store).ok


def test_a_loom_of_another_process_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    for name in ("theirs.db", "theirs.jsonl", "by-any-name.txt"):
        cast(tmp_path / name, SECRET) if not name.endswith(".txt") else (tmp_path / name).write_bytes(
            (tmp_path / "theirs.jsonl").read_bytes()
        )
        with pytest.raises(GateError, match="belongs to the runtime"):
            read(root=tmp_path, path=name)
        with pytest.raises(GateError, match="belongs to the runtime"):
            write(name, "", root=tmp_path)
    with pytest.raises(GateError, match="belongs to the runtime"):
        write("theirs.db-wal", "", root=tmp_path)
    assert search("told", root=tmp_path) == []


def test_dispatches_and_recipes_are_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "notes.yaml"
    recipe.write_text("crystal: {scripted: [hello]}\ncircle: {gates: [done], wards: [max_turns: 2]}\n")
    cantrip = load_recipe(recipe)
    log = Dispatches(tmp_path / "work")
    for path in ("notes.yaml", "work/D-1.jsonl", "work/deep/D-1.jsonl", "work"):
        with pytest.raises(GateError, match="belongs to the runtime"):
            write(path, "", root=tmp_path)
    (tmp_path / "work").mkdir()
    with pytest.raises(GateError, match="belongs to the runtime"):
        list_files(root=tmp_path, path="work")
    with pytest.raises(GateError, match="belongs to the runtime"):
        read(root=tmp_path / "work", path="D-1.jsonl")
    assert list_files(root=tmp_path, recursive=True) == ["notes.yaml", "work/"]
    assert cantrip.circle.gates
    assert log.ids() == ()


def test_files_that_only_look_like_runtime_files_are_allowed(tmp_path: Path) -> None:
    claim = claim_file(tmp_path / "notes.db")
    for name in ("notes", "my-notes.db", "notes.dbx", "sub/notes.db", "cantrip", "x.key", "loom.txt"):
        assert write(name, "mine", root=tmp_path).startswith("wrote")
        assert read(root=tmp_path, path=name) == "mine"
    for name in ("notes.db", "NOTES.db", "notes.db-wal", "notes.db.anything", ".notes.db.0a.draft"):
        with pytest.raises(GateError, match="belongs to the runtime"):
            write(name, "mine", root=tmp_path)
    claim.release()
    claim.release()
    assert write("notes.db", "mine", root=tmp_path).startswith("wrote")


def test_a_folder_is_claimed_until_every_claim_is_released(tmp_path: Path) -> None:
    first, second = claim_folder(tmp_path / "work"), claim_folder(tmp_path / "work")
    first.release()
    with pytest.raises(GateError, match="belongs to the runtime"):
        write("work/x", "", root=tmp_path)
    second.release()
    assert write("work/x", "", root=tmp_path).startswith("wrote")


def test_a_folder_that_is_swapped_for_a_link_while_it_is_walked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast(tmp_path / "looms" / "notes.db", SECRET)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "notes.db").write_text("harmless")
    real = Own.has_name

    def swapping(self: Own, folder: int, name: str) -> bool:
        found = real(self, folder, name)
        if name == "sub" and (tmp_path / "sub").is_dir() and not (tmp_path / "sub").is_symlink():
            (tmp_path / "sub").rename(tmp_path / "was")
            (tmp_path / "sub").symlink_to("looms")
        return found

    monkeypatch.setattr(Own, "has_name", swapping)
    with open_loom(tmp_path / "looms" / "notes.db"), pytest.raises(GateError):
        read(root=tmp_path, path="sub/notes.db")


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root can mount, and only on Linux")
def test_a_bind_mount_of_a_loom_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "looms" / "notes.db"
    cast(path, SECRET)
    script = """
import sys
from pathlib import Path
from cantrip_actors import open_loom
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.files import read, write
root = Path(sys.argv[1])
from cantrip_actors.own_files.claims import claim_folder
claim_folder(root / "work")
with open_loom(root / "looms" / "notes.db"):
    for way in ("mounted/notes.db", "alone", "desk/x"):
        for run in (lambda: read(root=root, path=way), lambda: write(way, "", root=root)):
            try:
                run()
            except GateError as refused:
                assert "belongs to the runtime" in str(refused), refused
            else:
                raise SystemExit(way)
"""
    (tmp_path / "mounted").mkdir()
    (tmp_path / "alone").touch()
    for name in ("work", "desk"):
        (tmp_path / name).mkdir()
    pairs = {"looms": "mounted", "looms/notes.db": "alone", "work": "desk"}
    mounts = " && ".join(f"mount --bind {tmp_path}/{source} {tmp_path}/{target}" for source, target in pairs.items())
    command = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$0" -c "$1" {tmp_path}', sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="shells are confined on Linux only")
def test_no_shell_is_opened_where_it_could_read_a_loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        shell = medium("shell")
    except InvalidCantrip as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(shell_medium, "SYSTEM", (str(tmp_path),))
    claim = claim_file(tmp_path / "loom.db")
    with pytest.raises(InvalidCantrip, match="belongs to the runtime, and programs of a shell can read"):
        shell.open([], ProgramLimits())
    claim.release()
    shell.open([], ProgramLimits()).close()


@pytest.mark.rule("X-11")
def test_a_claim_that_the_collector_releases_within_another_claim_does_not_block(tmp_path, monkeypatch):
    class Owner:
        """Keeps a claim."""

    owner = Owner()
    hold(owner, claim_file(tmp_path / "old.db"))
    other = [owner]
    other.append(other)  # only the collector ends it
    del owner, other

    class Collecting(type(tmp_path)):
        """A path that makes the collector run where it is compared."""

        def __hash__(self):
            gc.collect()
            return super().__hash__()

    claim = FileClaim(Collecting(tmp_path / "new.db"), is_folder=False)
    Own.now()
    claim.release()

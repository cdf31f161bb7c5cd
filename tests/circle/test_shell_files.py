"""A limit restores the files of a shell, and snapshots contain them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("shells are confined on Linux only", allow_module_level=True)

from cantrip_actors.circle.medium import Answer, Exceeded, Finished, Medium, ProgramLimits, Suspended
from cantrip_actors.circle.shell import files as shell_files
from cantrip_actors.circle.shell.files import ShellFiles
from cantrip_actors.circle.shell.medium import ShellSandbox
from cantrip_actors.terms.own_gates import CALL_AGENT
from tests.circle.shell_jails import JAILS, confined_by

LIMITS = ProgramLimits(seconds=20, gate_calls=2)
TOO_MANY = "call_agent a; call_agent b; call_agent c"


@pytest.fixture(params=JAILS)
def box(request: pytest.FixtureRequest) -> Any:
    opened = confined_by(request.param).open([CALL_AGENT.definition], LIMITS)
    yield opened
    opened.close()


def printed(box: ShellSandbox, code: str) -> str:
    step = box.begin(code)
    assert isinstance(step, Finished), step
    return step.output


def exceeds(box: ShellSandbox, code: str) -> None:
    step = box.begin(f"{code}\n{TOO_MANY}")
    while isinstance(step, Suspended):
        step = box.answer(step, Answer(None))
    assert isinstance(step, Exceeded), step


LOOK = "find . -printf '%P %y %m %s %T@ %l\\n' | sort; find . -type f -exec sha1sum {} + | sort"
MADE = (
    "mkdir -p d/e empty; echo one > a; echo two > d/b; printf 'x\\0y' > 'd/e/ä b\n'; ln -s /etc/passwd out; ln -s d in;"
    "mkfifo pipe; { chmod 750 d; chmod 400 a; } 2>/dev/null;"
    " touch -d 2001-02-03 d/b; truncate -s 2M holes; echo end >> holes"
)


@pytest.mark.alternate_jails
@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize(
    "change",
    [
        "echo changed > a2; chmod u+w a; echo changed >> a; rm d/b",
        "rm -rf ./* .??*",
        "chmod 000 d; chmod 777 a",
        "mv d moved; ln -s moved d",
        "rm -r d; ln -s /etc d",
        "rm a; mkdir a; echo x > a/x",
        "rm a; mkfifo a; rm pipe; echo x > pipe",
        "touch d/b in out; : > holes",
        "mv a d/a; mv d/b a; ln a d/hard",
        "for i in {1..300}; do echo $i > f$i; done",
    ],
)
def test_a_limit_restores_the_files(box: ShellSandbox, change: str) -> None:
    before = printed(box, f"{MADE}; {LOOK}; x=1")
    exceeds(box, f"x=2; {change}; cd /")
    assert printed(box, LOOK) == before
    assert printed(box, "echo $x") == "1\n"
    exceeds(box, change)  # restored files can be restored again
    assert printed(box, LOOK) == before


@pytest.mark.alternate_jails
@pytest.mark.rule("CIRCLE-9")
def test_exceeding_the_file_limit_undoes_file_changes(box: ShellSandbox) -> None:
    before = printed(box, f"{MADE}; {LOOK}")
    step = box.begin(
        "rm -r d; for n in {1..9}; do head -c 40000000 /dev/zero > big$n; done; touch f{1..25000}; sleep 60"
    )
    assert step == Exceeded("what its files may take")
    assert printed(box, LOOK) == before


@pytest.mark.alternate_jails
@pytest.mark.rule("CIRCLE-9")
def test_a_file_that_changes_twice_in_a_clock_tick_is_rolled_back(box: ShellSandbox) -> None:
    for n in range(6):
        printed(box, f"echo {n:02} > f")
        exceeds(box, "echo xx > f")
        assert printed(box, "cat f") == f"{n:02}\n"


def test_files_in_tmp_are_kept_with_the_sandbox() -> None:
    box = confined_by("bubblewrap").open([CALL_AGENT.definition], LIMITS)
    printed(box, "echo 1 > /tmp/a; echo 2 > /dev/shm/b")
    exceeds(box, "rm /tmp/a; echo 3 > /dev/shm/b")
    assert printed(box, "cat /tmp/a /dev/shm/b") == "1\n2\n"
    box.begin("exit 0")
    assert printed(box, "cat /tmp/a /dev/shm/b") == "1\n2\n"
    box.close()


@pytest.mark.rule("CIRCLE-9")
def test_only_changed_files_are_copied(box: ShellSandbox) -> None:
    printed(box, "for i in {1..50}; do echo $i > f$i; done; sleep 0.05; touch settled")
    copied = box._files._copied
    printed(box, "sleep 0.05; cat f1")
    settled = box._files._copied
    assert settled <= copied + 51  # those that were just written once more, by a clock that has ticks
    printed(box, "sleep 0.05; echo new > f7")
    assert box._files._copied == settled + 1
    assert len(list((box._files.folder / "copies").iterdir())) == 51


# -------------------------------------------------------------------------------------------------------------- images


@pytest.fixture
def shell() -> Medium:
    return confined_by("bubblewrap")


STATE = (
    "x='a  b'; declare -A m=([k]='v\n'); declare -ri r=5; export E=1; f() { echo \"f:$x\"; }; g() { echo g; }; "
    "export -f g; shopt -s nullglob expand_aliases; set -o pipefail; alias hi='echo alias'; trap 'echo usr' USR1; "
    "umask 027; set -- 'p q' r; cd d; echo t > /tmp/t"
)
ASK = (
    'echo "$x|${m[k]}|$r|$E|$1|$2|$PWD"; f; bash -c g; shopt nullglob; set -o | grep pipefail; hi; trap -p USR1; umask;'
    "cat /tmp/t; cd ..; " + LOOK
)


@pytest.mark.rule("CIRCLE-9", "LOOM-4")
def test_a_snapshot_has_variables_functions_options_directory_and_files(shell: Medium) -> None:
    box, other = (shell.open([CALL_AGENT.definition], LIMITS) for _ in range(2))
    printed(box, f"{MADE.replace('2M', '50K')}; {STATE}")
    printed(other, "y=1; echo other > file")
    image = box.dump()
    assert image is not None
    other.load(image)
    assert printed(other, ASK) == printed(box, ASK)
    assert printed(other, 'echo "[$y]"; ls file 2>/dev/null || :') == "[]\n"
    exceeds(other, "x=9; rm -rf *")  # a limit rolls back to the loaded state
    assert printed(other, LOOK) == printed(box, LOOK)
    box.close()
    other.close()


@pytest.mark.parametrize(
    "code", ["exec 9</dev/null", "exec {fd}<>f", "truncate -s 50M large", "head -c 9000000 /dev/urandom > large"]
)
def test_a_shell_whose_state_text_cannot_express_has_no_snapshot(shell: Medium, code: str) -> None:
    box = shell.open([], LIMITS)
    assert box.dump() is not None
    printed(box, code)
    assert box.dump() is None
    printed(box, "exec 9<&-; [ -z $fd ] || exec {fd}<&-; rm -f large")
    assert box.dump() is not None
    box.close()


def test_landlock_has_no_snapshots_because_folder_names_differ_each_time() -> None:
    box = confined_by("landlock").open([], LIMITS)
    printed(box, "x=1")
    assert box.dump() is None
    with pytest.raises(ValueError, match="confined in the same way"):
        box.load(b"0\n[]\n")
    box.close()


GOOD = ["home/x", 0o100600, 1, 0, ""]


@pytest.mark.rule("X-41")
@pytest.mark.parametrize(
    "files",
    [
        None,
        [None],
        [["home/x"]],
        [["../x", *GOOD[1:]]],
        [["home/../../x", *GOOD[1:]]],
        [["/x", *GOOD[1:]]],
        [["home//x", *GOOD[1:]]],
        [["home/" + 256 * "x", *GOOD[1:]]],
        [["home/\0", *GOOD[1:]]],
        [["home/x", 0o020600, 1, 0, ""]],  # a device
        [["home/x", 0o100600, 1 << 63, 0, ""]],
        [["home/x", 0o100600, 1, -1, ""]],
        [["home/x", 0o120777, 1, 0, ""]],  # a link to nothing
        [["home/x", 0o120777, 1, 0, "a\0b"]],
        [["home/x", 0o100600, 1, 7, ""]],  # bytes that are not there
    ],
)
def test_a_snapshot_with_impossible_files_is_refused_and_the_shell_continues(files: object) -> None:
    box = confined_by("bubblewrap").open([], LIMITS)
    with pytest.raises(ValueError, match=r"\w"):
        box.load(b"0\n" + orjson.dumps(files) + b"\n")
    assert printed(box, "echo ok") == "ok\n"
    box.close()


# ---------------------------------------------------------------------------------------------- the files by themselves

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["write", "folder", "link", "pipe", "remove", "mode", "rename"]), PATHS, PATHS),
    max_size=12,
)


def change(top: Path, changes: list[tuple[str, str, str]]) -> None:
    for what, path, other in changes:
        place = top / path
        try:
            match what:
                case "write" if not place.is_fifo():
                    place.write_text(f"{other} {len(changes)}")
                case "folder":
                    place.mkdir()
                case "link":
                    place.symlink_to(other)
                case "pipe":
                    os.mkfifo(place)
                case "mode":
                    place.chmod(0o700 | len(other))
                case "rename":
                    place.rename(top / other)
                case "remove":
                    place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
        except OSError:
            continue


def seen(top: Path) -> list[Any]:
    rows = []
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        what: Any = path.readlink() if path.is_symlink() else None
        if stat.S_ISREG(status.st_mode):
            what = path.read_bytes()
        mode = None if path.is_symlink() else stat.S_IMODE(status.st_mode)
        rows.append((str(path.relative_to(top)), stat.S_IFMT(status.st_mode), mode, what))
    return rows


@pytest.mark.rule("CIRCLE-9")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=CHANGES, second=CHANGES, third=CHANGES)
def test_every_change_of_files_is_undone(first: Any, second: Any, third: Any) -> None:
    files, other = ShellFiles(None), ShellFiles(None)
    try:
        for changes in (first, second):  # written without a link's end outside: the first component is never one
            change(files.home, changes)
            assert files.keep()
            before = seen(files.home)
            change(files.home, third)
            files.undo()
            assert seen(files.home) == before
        image = files.pack()
        assert image is not None
        other.unpack(image)
        assert seen(other.home) == before
        assert other.pack() is not None
    finally:
        files.remove()
        other.remove()


def test_the_target_of_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    files = ShellFiles(None)
    (files.home / "folder").mkdir()
    (files.home / "folder" / "x").write_text("mine")
    assert files.keep()
    (files.home / "folder" / "x").unlink()
    (files.home / "folder").rmdir()
    (files.home / "folder").symlink_to(tmp_path)
    (files.home / "x").symlink_to(tmp_path / "secret")
    assert files.keep()
    assert b"canary" not in (files.pack() or b"")
    (tmp_path / "x").write_text("the host's")
    files.undo()
    assert (tmp_path / "x").read_text() == "the host's"
    files.remove()
    assert (tmp_path / "secret").read_text() == "canary"


def test_a_snapshot_with_forged_paths_writes_nothing_outside(tmp_path: Path) -> None:
    files = ShellFiles(None)
    link, regular = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o644
    rows = [["home", stat.S_IFDIR | 0o700, 0, 0, ""], ["home/a", link, 0, 0, str(tmp_path)]]
    files.unpack(orjson.dumps([*rows, ["home/a/pwned", regular, 0, 1, ""]]) + b"\nx")
    for path in (f"{tmp_path}/pwned", "../pwned"):
        with pytest.raises(ValueError, match="in none of its folders"):
            files.unpack(orjson.dumps([*rows, [path, regular, 0, 1, ""]]) + b"\nx")
    assert list(tmp_path.iterdir()) == []
    assert [path.name for path in files.folder.rglob("pwned")] == []
    files.remove()


@pytest.mark.parametrize("deep", [False, True])
def test_too_many_or_too_deep_files_are_detected(deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_files, "ENTRIES", 50)
    monkeypatch.setattr(shell_files, "DEEPEST", 10)
    files = ShellFiles(None)
    assert not files.has_too_much()
    if deep:
        (files.home / "/".join("d" * 11)).mkdir(parents=True)
    else:
        for n in range(51):
            (files.tmp / str(n)).touch()
    assert files.has_too_much()
    assert not files.keep()
    files.undo()
    assert not files.has_too_much()
    files.remove()

"""What the jails of shells hold: nothing runs after a program; memory, disk, users and sockets have bounds."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("shells are confined on Linux only", allow_module_level=True)

from cantrip_actors import Circle, InvalidCantrip
from cantrip_actors.circle.medium import Finished, ProgramLimits
from cantrip_actors.circle.shell.medium import ShellSandbox
from cantrip_actors.wards import max_turns
from tests.circle.shell_jails import JAILS, confined_by
from tests.forked import Forked

pytestmark = pytest.mark.real_time

LIMITS = ProgramLimits(seconds=3, memory=64 << 20, output=20_000)
MIB = 1 << 20


@pytest.fixture(params=JAILS)
def box(request: pytest.FixtureRequest) -> Iterator[ShellSandbox]:
    opened = confined_by(request.param).open([], LIMITS)
    yield opened
    opened.close()


DAEMON = """python3 -c 'import os, time
os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(300)'"""
RENAMED = """python3 -c 'import ctypes, os, time
ctypes.CDLL(None).prctl(15, b"bash"); os.fork() or time.sleep(300)' &"""
FORGED = """
for fd in /proc/$$/fd/* 103 104 105 106 107; do printf 'e\\0 0\\0\\n' >&${fd##*/}; done 2>/dev/null
sleep 300 &
"""
SAID = """
said=$(builtin trap -p EXIT)
for fd in 107 104 105; do echo "$said" >&$fd; done 2>/dev/null
sleep 300 &
"""
HEADLESS = """
import ctypes, os, platform, threading, time
def lose_the_first_thread(work):
    threading.Thread(target=work).start()
    time.sleep(0.2)
    ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
"""Return Python that continues in another thread after its first thread, which the kernel lists, has ended."""

LEAVES = {
    "a job": "sleep 300 &",
    "a session of its own": "setsid sleep 300 & disown",
    "a double fork": "(sleep 300 & ) &",
    "a daemon": DAEMON,
    "a fork bomb": "bomb() { bomb | bomb & }; bomb",
    "a slow fork bomb": "while :; do sleep 300 & done",
    "kill is gone": "enable -n kill; sleep 300 & echo off",
    "all that ends programs is gone": "enable -n kill builtin trap printf read declare; sleep 300 &",
    "renamed builtins": "kill() { :; }; trap() { :; }; exit() { :; }; builtin() { :; }; sleep 300 &",
    "traps": "trap '' HUP INT TERM QUIT USR1 USR2 PIPE CHLD; sleep 300 & (trap '' TERM; sleep 301) &",
    "a trap that starts anew": "trap 'sleep 300 &' EXIT; sleep 301 &",
    "a forged end": FORGED,
    "the trap of the prelude, read and said": SAID,
    "stopped": "sleep 300 & kill -STOP $!; disown -a",
    "another name": RENAMED,
    "an exec": "exec sleep 300 &",
    "a coprocess": "coproc sleep 300; disown -a",
    "a process without its first thread": (
        f"python3 - <<'END'\n{HEADLESS}\n"
        "os.fork() and (time.sleep(1), os._exit(0))\n"
        "lose_the_first_thread(lambda: time.sleep(300))\nEND"
    ),
    "nohup": "nohup sleep 300 >/dev/null 2>&1 &",
}


def left_of(mark: str) -> list[int]:
    """The processes whose environment has a mark."""
    found = []
    for path in map(Path, glob.glob("/proc/[0-9]*/task/[0-9]*/environ")):  # noqa: PTH207  # a Path's trips over who ends
        try:
            if mark.encode() in path.read_bytes() and b"Z (zombie)" not in path.with_name("status").read_bytes():
                found.append(int(path.parents[2].name))
        except OSError:
            continue
    return found


@pytest.mark.alternate_jails
@pytest.mark.rule("X-02")
@pytest.mark.parametrize("what", LEAVES)
def test_no_process_of_a_program_runs_after_it(box: ShellSandbox, what: str) -> None:
    mark = f"MARK{uuid.uuid4().hex}"
    if "bomb" in what:
        box.limits = replace(box.limits, seconds=1)  # it runs until its limit
    box.begin(f"export LEFT={mark}\n{LEAVES[what]}")
    ends = time.monotonic() + 20  # the kernel takes its time to bury what was killed
    while left_of(mark) and time.monotonic() < ends:
        time.sleep(0.02)
    assert left_of(mark) == []
    assert Finished(None, output="ok\n") in (box.begin("echo ok"), box.begin("echo ok"))


HELD = {
    "unlinked files in memory": """
import os
held = []
for n in range(40):
    fd = os.open(f"{folder}/f", os.O_RDWR | os.O_CREAT); os.unlink(f"{folder}/f"); held.append(fd)
    for _ in range(32): os.write(fd, bytes(1 << 20))
    print("took", (n + 1) * 32, flush=True)
""",
    "unlinked files of a process without its first thread": f"""{HEADLESS}
def hold():
    for n in range(16):
        fd = os.open("f", os.O_RDWR | os.O_CREAT); os.unlink("f")
        for _ in range(32): os.write(fd, bytes(1 << 20))
        print("took", (n + 1) * 32, flush=True)
        time.sleep(0.1)
lose_the_first_thread(hold)
""",
    "System V shared memory": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for n in range(16):
    one = libc.shmget(0, 32 << 20, 0o1600)
    if one < 0: raise OSError(ctypes.get_errno(), "refused")
    at = libc.shmat(one, None, 0); ctypes.memset(at, 1, 32 << 20)
    print("took", (n + 1) * 32, flush=True)
""",
    "memfd": """
import os
held = []
for n in range(16):
    fd = os.memfd_create("x"); held.append(fd)
    for _ in range(32): os.write(fd, bytes(1 << 20))
    print("took", (n + 1) * 32, flush=True)
""",
    "shared anonymous mappings": """
import mmap
held = []
for n in range(16):
    one = mmap.mmap(-1, 32 << 20); held.append(one)
    for at in range(0, 32 << 20, 4096): one[at] = 1
    print("took", (n + 1) * 32, flush=True)
""",
    "many processes": """
import mmap, os, time
for n in range(16):
    if os.fork() == 0:
        one = mmap.mmap(-1, 32 << 20)
        for at in range(0, 32 << 20, 4096): one[at] = 1
        print("took", 32, flush=True)
        time.sleep(60)
time.sleep(60)
""",
}


def taken(output: str) -> int:
    """The most mebibytes that a program says it took."""
    return max((int(line.split()[1]) for line in output.splitlines() if line.startswith("took ")), default=0)


@pytest.mark.alternate_jails
@pytest.mark.rule("X-03")
@pytest.mark.parametrize("how", [how for how in HELD if not how.startswith("unlinked files")])
def test_memory_that_no_process_owns_is_refused_or_bounded(box: ShellSandbox, how: str) -> None:
    step = box.begin(f"python3 - <<'END'\n{HELD[how]}\nEND")
    assert taken(step.output) * MIB <= 1.5 * LIMITS.memory, step
    assert Finished(None, output="ok\n") in (box.begin("echo ok"), box.begin("echo ok"))


@pytest.mark.alternate_jails
@pytest.mark.rule("X-03", "X-04")
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "."])
def test_unlinked_files_count_towards_a_limit(box: ShellSandbox, folder: str) -> None:
    code = f"folder = {folder!r}\n{HELD['unlinked files in memory']}"
    step = box.begin(f"[[ -w {folder} ]] || cd .\npython3 - <<'END'\n{code}\nEND")
    assert not isinstance(step, Finished) or "took" not in step.output, step
    assert taken(step.output) <= 1.5 * 256, step
    assert Finished(None, output="ok\n") in (box.begin("echo ok"), box.begin("echo ok"))


@pytest.mark.rule("X-04")
def test_unlinked_files_count_towards_a_limit_when_the_first_thread_of_their_process_has_ended(
    box: ShellSandbox,
) -> None:
    code = HELD["unlinked files of a process without its first thread"]
    step = box.begin(f"python3 - <<'END'\n{code}\nEND")
    assert not isinstance(step, Finished) or "took" not in step.output, step
    assert taken(step.output) <= 1.5 * 256, step
    assert Finished(None, output="ok\n") in (box.begin("echo ok"), box.begin("echo ok"))


@pytest.mark.rule("X-04")
def test_files_held_open_between_programs_count_towards_a_limit(box: ShellSandbox) -> None:
    for n in range(8):
        step = box.begin(f"exec {{fd{n}}}>f{n}; rm f{n}; head -c 60M /dev/zero >&$fd{n}; echo held {n}")
        if not isinstance(step, Finished):
            break
    else:
        pytest.fail("480 MiB without a name were kept over eight programs")
    assert Finished(None, output="ok\n") in (box.begin("echo ok"), box.begin("echo ok"))


@pytest.mark.rule("X-04")
def test_no_file_is_written_between_programs(box: ShellSandbox) -> None:
    box.begin("(while :; do head -c 1M /dev/zero >> grows; sleep 0.01; done) & disown; setsid -f true; echo")
    sizes = {box.begin("stat -c %s grows 2>/dev/null || echo 0").output for _ in range(3)}
    time.sleep(0.1)
    sizes.add(box.begin("stat -c %s grows 2>/dev/null || echo 0").output)
    assert len(sizes) == 1


UID = """
import sys
from cantrip_actors.circle.medium import ProgramLimits
from cantrip_actors.circle.medium import medium
box = medium("shell", sys.argv[1]).open([], ProgramLimits(seconds=20))
print(box.begin("id -u").output.strip(), flush=True)
sys.stdin.read()
box.close()
"""


@pytest.mark.rule("X-05")
@pytest.mark.skipif(os.getuid() != 0, reason="only a host that is root gives its shells users of their own")
@pytest.mark.parametrize("jail", JAILS)
def test_shells_of_several_hosts_have_users_of_their_own(jail: str) -> None:
    confined_by(jail)  # type: ignore[arg-type]  # one of the jails
    hosts = [Forked(UID, jail, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    users = []
    for host in hosts:
        assert host.stdout is not None
        users.append(int(host.stdout.readline()))
    for host in hosts:
        host.communicate("")
    assert len(set(users)) == 3
    assert min(users) >= 2_000_000_000


SOCKETS = """
import ctypes, errno, os, socket
def tried(what, call):
    try:
        call()
    except OSError as error:
        print(what, errno.errorcode.get(error.errno, error.errno))
    else:
        print(what, "WENT THROUGH")
pair = lambda kind: socket.socketpair(socket.AF_UNIX, kind)
a, b = pair(socket.SOCK_STREAM)
tried("datagram pair", lambda: pair(socket.SOCK_DGRAM))
tried("seqpacket pair", lambda: pair(socket.SOCK_SEQPACKET))
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 40):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        tried(f"socket {family} {kind}", lambda: socket.socket(family, kind))
for where in ("/dev/log", "/run/systemd/notify", "/run/systemd/journal/socket", "\\0abstract"):
    tried("sendto", lambda: a.sendto(b"x", where))
    tried("connect", lambda: a.connect(where))
    tried("bind", lambda: b.bind(where if where[0] != "/" else "mine"))
tried("listen", lambda: a.listen())
tried("accept", lambda: a.accept())
tried("sendmsg", lambda: a.sendmsg([b"x"]))
libc = ctypes.CDLL(None, use_errno=True)
def called(name, *args):
    def call():
        if getattr(libc, name)(*args) < 0:
            raise OSError(ctypes.get_errno(), name)
    return call
tried("inotify_init", called("inotify_init"))
tried("inotify_init1", called("inotify_init1", 0))
tried("fanotify_init", called("fanotify_init", 0, 0))
"""


@pytest.mark.rule("X-10")
def test_sockets_and_file_notifications_are_forbidden(box: ShellSandbox) -> None:
    box.limits = box.limits.again()
    step = box.begin(f"python3 - <<'END'\n{SOCKETS}\nEND")
    assert isinstance(step, Finished), step
    lines = step.output.splitlines()
    assert len(lines) == 35
    assert not [line for line in lines if "WENT THROUGH" in line]


PROTOCOL = {0, 1, 2, 63, *range(103, 108)}
"""Descriptors of a program: its own three, and the pipes by which gates are called and the host hears how it ends."""


@pytest.mark.rule("X-10")
def test_a_program_inherits_no_descriptor_but_those_of_the_protocol() -> None:
    box = confined_by("bubblewrap").open([], LIMITS)
    step = box.begin(
        "python3 -c 'import os; h = os.open(\"/proc/self/fd\", 0); print(*(n for n in os.listdir(h) if int(n) != h))'"
    )
    assert isinstance(step, Finished), step
    assert {int(number) for number in step.output.split()} <= PROTOCOL | {3, 4}
    box.close()


@pytest.mark.rule("X-03")
def test_a_circle_may_require_a_jail() -> None:
    circle = Circle(["done"], [max_turns(1)], medium="shell", jail="bubblewrap")
    assert circle.jail == "bubblewrap"
    with pytest.raises(InvalidCantrip, match='unknown jail "bubblewrp": did you mean "bubblewrap"'):
        Circle(["done"], [max_turns(1)], medium="shell", jail="bubblewrp")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(InvalidCantrip, match="confines shells"):
        Circle(["done"], [max_turns(1)], jail="bubblewrap")
    plain = Circle(["done"], [max_turns(1)], medium="shell")
    assert "jail" not in plain.as_json()
    assert circle.as_json()["jail"] == "bubblewrap"

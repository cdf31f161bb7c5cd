"""What confines a shell: bubblewrap, or Landlock where user namespaces are forbidden. There is no third way.

Both get the same filter of system calls. `jail()` looks once a process which of them works here, by running it, and
raises InvalidCantrip with the reasons where none does: a bare shell is never started.

One thread of the process starts all shells: bubblewrap dies with its parent, and to the kernel that is the thread that
started it, not the process.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import pyseccomp  # type: ignore[import-untyped]

from cantrip_actors.circle import leftovers, scratch
from cantrip_actors.circle.shell import landlock as shell_landlock
from cantrip_actors.circle.shell.files import Files
from cantrip_actors.terms.errors import InvalidCantrip

__all__ = ["Jail", "JailName", "jail"]

JailName = Literal["bubblewrap", "landlock"]

TELLING: Final = 5.0
"""Seconds that bubblewrap may take to make its namespaces, and to say so."""

_BASH: Final = ("bash", "--noprofile", "--norc")

_FORBIDDEN: Final = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp
    mount umount umount2 pivot_root chroot unshare setns
    move_mount fsopen fsconfig fspick fsmount open_tree mount_setattr
    bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register
    init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff
    open_by_handle_at name_to_handle_at fanotify_init syslog acct quotactl personality iopl ioperm modify_ldt vhangup
    clock_settime settimeofday adjtimex sethostname setdomainname lookup_dcookie socket
"""
_NO_NAMESPACES: Final = """
    setsid
    shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
    migrate_pages move_pages process_madvise process_mrelease
"""
"""Forbidden too where nothing has a namespace: a session is how the host finds all processes of a shell, and nothing
else of the host may be within reach of a shell that runs as the host's own user, which Landlock does not see to."""
_OTHERS: Final = (
    ("prlimit64", 0, 0),
    ("setpriority", 0, 0),
    ("setpriority", 1, 0),
    ("ioprio_set", 0, 1),
    ("ioprio_set", 1, 0),
    ("sched_setaffinity", 0, 0),
    ("sched_setscheduler", 0, 0),
    ("sched_setparam", 0, 0),
    ("sched_setattr", 0, 0),
)
"""There, too: calls for other processes, by which argument has to be what for the process itself."""
_NO_NAMES: Final = """
    chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat
    setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat
"""
"""Forbidden where a shell runs as its host's user under Landlock, which lets the rights and times of any file of that
user be changed by its name. What has been opened can be changed still."""

_NAMESPACES: Final = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_TERMINAL: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into somebody's terminal

_TRIAL: Final = b'echo x >made && { ! : </etc/passwd; } 2>/dev/null && echo "confined $BASH_VERSION"\n'

_users = itertools.count(2_000_000_000)


@dataclass(frozen=True, slots=True)
class Jail:
    """A way to confine a shell. `uid` says whether each shell gets a user of its own, which takes root."""

    name: JailName
    program: str
    own_users: bool
    bash: str = "5"
    """The shell's version."""

    @property
    def same_paths(self) -> bool:
        """Whether each shell sees its files under the same names as any other."""
        return self.name == "bubblewrap"

    @property
    def is_host(self) -> bool:
        """Whether a shell is to the kernel the same user as its host, with nothing but Landlock between them."""
        return self.name == "landlock" and os.getuid() != 0

    def user(self) -> int | None:
        """Whom the next shell runs as; None for whoever runs this process."""
        if os.getuid() != 0:
            return None
        return next(_users) if self.own_users else 65534

    def others(self) -> int:
        """How many processes the kernel counts as the shell's that are none of it: those of a user that it shares."""
        if self.name == "bubblewrap" or (os.getuid() == 0 and self.own_users):
            return 0
        uid = 65534 if os.getuid() == 0 else os.getuid()
        count = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    count += (process / "task").stat().st_nlink - 2  # the kernel counts threads
        return count

    def start(self, files: Files, **pipes: Any) -> tuple[subprocess.Popen[bytes], int | None]:
        """Start a confined bash among its `files`, with `pipes` as `subprocess.Popen` takes them.

        With it comes, of bubblewrap, a descriptor of the first process of the namespace: with that one, all end.
        """
        return _starter(os.getpid()).submit(self._start, files, pipes).result()

    def _start(self, files: Files, pipes: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int | None]:
        user = files.user
        code = os.memfd_create("seccomp")
        told, tells = os.pipe()
        try:
            os.write(code, _filter(namespaces=self.name == "bubblewrap", names=not self.is_host))
            os.lseek(code, 0, os.SEEK_SET)
            if self.name == "bubblewrap":
                arguments = [*_bubblewrap(self.program, files, code, tells), *_BASH]
                pipes |= {} if user is None else {"user": user, "group": user, "extra_groups": []}
            else:
                launcher = str(Path(shell_landlock.__file__))
                arguments = [self.program, "-I", "-S", launcher, str(-1 if user is None else user), str(files.home)]
                arguments += [str(code), str(os.getpid())]
            scratch.watch()
            descriptors = (code, tells, *pipes.pop("pass_fds", ()))
            process = subprocess.Popen(  # noqa: S603  # that is what this file is for
                arguments, env={}, cwd="/", start_new_session=True, pass_fds=descriptors, **pipes
            )
            os.close(tells)
            tells = -1
            leftovers.record_session(files.folder, process.pid)
            return process, _first(told) if self.name == "bubblewrap" else None
        finally:
            for descriptor in (code, told, *((tells,) if tells >= 0 else ())):
                os.close(descriptor)


def _first(told: int) -> int | None:
    """The first process of bubblewrap's namespace, as it tells of it; None where it did not get that far."""
    text = b""
    poll = select.poll()
    poll.register(told, select.POLLIN)
    ends = time.monotonic() + TELLING
    while poll.poll(max(ends - time.monotonic(), 0) * 1000) and (part := os.read(told, 4096)):
        text += part
    try:
        return os.pidfd_open(orjson.loads(text)["child-pid"])
    except (orjson.JSONDecodeError, KeyError, ProcessLookupError):
        return None


def _bubblewrap(program: str, files: Files, code: int, tells: int) -> list[str]:
    home = {"PATH": "/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
    return [
        # bash can never trap a signal that is ignored when it starts, as SIGINT is under nohup
        *("/usr/bin/env", "--default-signal", "/usr/bin/nice", "-n", "10", program),
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
        *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *("--proc", "/proc", "--dev", "/dev", "--bind", str(files.shared), "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
        *("--bind", str(files.tmp), "/tmp"),  # noqa: S108
        *("--bind", str(files.home), "/workspace", "--chdir", "/workspace", "--remount-ro", "/"),
        *("--clearenv", *(part for name, value in home.items() for part in ("--setenv", name, value))),
        *("--info-fd", str(tells), "--seccomp", str(code), "--"),
    ]


def _filter(*, namespaces: bool, names: bool) -> bytes:
    """The filter of system calls, compiled for this machine. What it forbids fails as if one were not allowed to.

    `namespaces` says whether the shell has some of its own, `names` whether it may change files by their names.
    """
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)

    def forbid(name: str, *arguments: pyseccomp.Arg) -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):  # a call that this machine does not have
            made.add_rule(refuse, name, *arguments)

    for name in _FORBIDDEN.split():
        forbid(name)
    if not namespaces:
        for name in _NO_NAMESPACES.split():
            forbid(name)
        for name, argument, own in _OTHERS:
            forbid(name, pyseccomp.Arg(argument, pyseccomp.NE, own))
    if not names:
        for name in _NO_NAMES.split():
            forbid(name)
        forbid("utimensat", pyseccomp.Arg(1, pyseccomp.NE, 0))  # without a name it is for what has been opened
    made.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags cannot be looked at; all fall back to clone
    for flag in _NAMESPACES:
        made.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in _TERMINAL:
        made.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request))
    with tempfile.TemporaryFile() as code:
        made.export_bpf(code)
        code.seek(0)
        return code.read()


@cache
def _starter(_process: int) -> ThreadPoolExecutor:
    """Return the thread that starts shells, which a forked process does not inherit."""
    return ThreadPoolExecutor(1, "shells")


def jail(name: JailName | None = None) -> Jail:
    """The jail of that name, or the better one that works; raises InvalidCantrip, saying why none does."""
    reasons = []
    for one in (name,) if name is not None else ("bubblewrap", "landlock"):
        found = _look(one)
        if isinstance(found, Jail):
            return found
        reasons.append(f"{one}: {found}")
    raise InvalidCantrip(f'medium "shell" finds nothing here to confine a shell with; {"; ".join(reasons)}')


@cache
def _look(name: JailName) -> Jail | str:
    """The jail, tried out, or what is missing."""
    program = shutil.which("bwrap") if name == "bubblewrap" else sys.executable
    if program is None:
        return "there is no program bwrap; install the system's package bubblewrap"
    if name == "landlock" and (version := shell_landlock.version()) < shell_landlock.ABI:
        return f"this kernel has version {max(version, 0)} of Landlock, {shell_landlock.ABI} is needed (Linux 6.12)"
    reason = ""
    for own_users in (True, False) if os.getuid() == 0 else (False,):
        found = _tried(Jail(name, program, own_users))
        if isinstance(found, Jail):
            return found
        reason = found
    return reason


def _tried(found: Jail) -> Jail | str:
    """The jail with the version of its bash, or why it does not work: it runs a shell that looks if it is confined."""
    files = Files(found.user())
    try:
        pipe = subprocess.PIPE
        process, first = found.start(files, stdin=pipe, stdout=pipe, stderr=pipe)
        if first is not None:
            os.close(first)
        try:
            out, error = process.communicate(_TRIAL, timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "it did not start within 20 s"
        confined, _, bash = out.decode(errors="replace").strip().partition(" ")
        if confined == "confined":
            return replace(found, bash=bash)
        lines = error.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return lines[-1][:300]
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        return str(problem)
    finally:
        files.remove()

"""Confinement of shells: by bubblewrap, or by Landlock where user namespaces are forbidden, and never without.

Both get the same filter of system calls. `jail()` finds out once per process which of them works here, by running it,
and raises InvalidCantrip with the reasons if neither does: an unconfined shell is never started.

One thread of the process starts all shells, because bubblewrap dies with its parent, and for the kernel the parent is
the thread that started it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from cantrip_actors.circle import leftovers, scratch
from cantrip_actors.circle.shell import groups, syscalls
from cantrip_actors.circle.shell import landlock as shell_landlock
from cantrip_actors.circle.shell.files import ShellFiles
from cantrip_actors.circle.shell.groups import Group
from cantrip_actors.circle.shell.users import next_user
from cantrip_actors.terms.circle import JailName
from cantrip_actors.terms.errors import InvalidCantrip

TELLING: Final = 5.0
"""Seconds that bubblewrap may take to make and report its namespaces."""

_BASH: Final = ("bash", "--noprofile", "--norc")
_WAITING: Final = ("/bin/sh", "-c", 'read -r _ && exec "$@"', "sh")
"""Runs its remaining arguments once it has read a line; until then it can be put into a control group."""

_TRIAL: Final = b'echo x >made && { ! : </etc/passwd; } 2>/dev/null && echo "confined $BASH_VERSION"\n'


@dataclass(frozen=True, slots=True)
class StartedShell:
    """The host's handles of a confined shell."""

    process: subprocess.Popen[bytes]
    first: int | None
    """The first process of bubblewrap's namespace; when it ends, all processes in the namespace end."""
    control: int | None
    """Landlock only: a pipe; when it is closed, the killer ends all processes."""
    group: Group | None


@dataclass(frozen=True, slots=True)
class Jail:
    """A mechanism that confines a shell. `uid` says whether each shell gets a user of its own, which requires root."""

    name: JailName
    program: str
    own_users: bool
    bash: str = "5"
    """The shell's version."""

    @property
    def same_paths(self) -> bool:
        """Whether every shell sees its files under the same paths."""
        return self.name == "bubblewrap"

    @property
    def is_host(self) -> bool:
        """Whether a shell runs as the host's user, so that only Landlock separates them."""
        return self.name == "landlock" and os.getuid() != 0

    def choose_user(self) -> int | None:
        """Return the user id for the next shell; None for the user of this process."""
        if os.getuid() != 0:
            return None
        return next_user() if self.own_users else 65534

    def count_others(self) -> int:
        """Return the number of other processes of a shared user, which the kernel counts towards the shell's limit."""
        if self.name == "bubblewrap":
            return 0
        if os.getuid() == 0 and self.own_users:
            return 1  # the killer is the only other process
        uid = 65534 if os.getuid() == 0 else os.getuid()
        count = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    count += (process / "task").stat().st_nlink - 2  # threads count as processes
        return count

    def start(self, files: ShellFiles, limits: Mapping[str, str] | None = None, **pipes: Any) -> StartedShell:
        """Start a confined bash among its `files`, with `pipes` as arguments of `subprocess.Popen`.

        `limits` are the limits of its control group, if the machine has delegated one.
        """
        return _get_starter(os.getpid()).submit(self._start, files, limits or {}, pipes).result()

    def _start(self, files: ShellFiles, limits: Mapping[str, str], pipes: dict[str, Any]) -> StartedShell:
        user, is_bubblewrap = files.user, self.name == "bubblewrap"
        machine = groups.find_delegated()
        group = None if machine is None else machine.make(limits)
        code = os.memfd_create("seccomp")
        ours, theirs = os.pipe()
        if not is_bubblewrap:
            ours, theirs = theirs, ours
        try:
            shared = machine is not None and machine.bounds_memory
            os.write(code, syscalls.compile_filter(namespaces=is_bubblewrap, names=not self.is_host, shared=shared))
            os.lseek(code, 0, os.SEEK_SET)
            if is_bubblewrap:
                arguments = [*_build_command(self.program, files, code, theirs), *_BASH]
                pipes |= {} if user is None else {"user": user, "group": user, "extra_groups": []}
            else:
                launcher = str(Path(shell_landlock.__file__))
                arguments = [self.program, "-I", "-S", launcher, str(-1 if user is None else user), str(files.home)]
                arguments += [str(code), str(os.getpid()), str(theirs)]
            if group is not None:
                arguments = [*_WAITING, *arguments]
            scratch.watch()
            descriptors = (code, theirs, *pipes.pop("pass_fds", ()))
            process = subprocess.Popen(  # noqa: S603  # that is what this file is for
                arguments, env={}, cwd="/", start_new_session=True, pass_fds=descriptors, **pipes
            )
            if group is not None:
                assert process.stdin is not None
                try:
                    group.add(process.pid)
                except OSError:
                    process.kill()
                    process.wait()
                    raise
                process.stdin.write(b"\n")
                process.stdin.flush()
            os.close(theirs)
            theirs = -1
            leftovers.record_session(files.folder, process.pid)
            if not is_bubblewrap:
                control, ours = ours, -1
                return StartedShell(process, None, control, group)
            return StartedShell(process, _read_first(ours), None, group)
        except BaseException:
            if group is not None:
                group.remove()
            raise
        finally:
            for descriptor in (code, ours, theirs):
                if descriptor >= 0:
                    os.close(descriptor)


def _read_first(descriptor: int) -> int | None:
    """Return the first process of bubblewrap's namespace, as bubblewrap reports it; None if bubblewrap failed."""
    text = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ends = time.monotonic() + TELLING
    while poll.poll(max(ends - time.monotonic(), 0) * 1000) and (part := os.read(descriptor, 4096)):
        text += part
    try:
        return int(orjson.loads(text)["child-pid"])
    except (orjson.JSONDecodeError, KeyError):
        return None


def _build_command(program: str, files: ShellFiles, code: int, tells: int) -> list[str]:
    home = {"PATH": "/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
    return [
        # bash can never trap a signal that is ignored when it starts, as SIGINT is under nohup
        *("/usr/bin/env", "--default-signal", "/usr/bin/nice", "-n", "10", program),
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
        *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        # it reads as zeros too, but cannot be mapped as shared memory, which no process limit counts
        *("--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"),
        *("--bind", str(files.shared), "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
        *("--bind", str(files.tmp), "/tmp"),  # noqa: S108
        *("--bind", str(files.home), "/workspace", "--chdir", "/workspace", "--remount-ro", "/"),
        *("--clearenv", *(part for name, value in home.items() for part in ("--setenv", name, value))),
        *("--info-fd", str(tells), "--seccomp", str(code), "--"),
    ]


@cache
def _get_starter(_process: int) -> ThreadPoolExecutor:
    """Return the thread that starts shells; a forked process, which does not inherit threads, gets its own."""
    return ThreadPoolExecutor(1, "shells")


def jail(name: JailName | None = None) -> Jail:
    """Return the jail of that name, or the strongest one that works. Raises InvalidCantrip with the reasons."""
    reasons = []
    for candidate in (name,) if name is not None else ("bubblewrap", "landlock"):
        result = _look(candidate)
        if isinstance(result, Jail):
            return result
        reasons.append(f"{candidate}: {result}")
    raise InvalidCantrip(f'medium "shell" found no mechanism here that confines a shell; {"; ".join(reasons)}')


@cache
def _look(name: JailName) -> Jail | str:
    """Return the jail after a trial run, or a text that says what is missing."""
    program = shutil.which("bwrap") if name == "bubblewrap" else sys.executable
    if program is None:
        return "the program bwrap is missing: install the system's package bubblewrap"
    if name == "landlock" and (version := shell_landlock.read_version()) < shell_landlock.ABI:
        return f"this kernel has version {max(version, 0)} of Landlock, {shell_landlock.ABI} is needed (Linux 6.12)"
    reason = ""
    for own_users in (True, False) if os.getuid() == 0 else (False,):
        result = _try(Jail(name, program, own_users))
        if isinstance(result, Jail):
            return result
        reason = result
    return reason


def _try(candidate: Jail) -> Jail | str:
    """Return the jail with its bash version, or why it does not work. Runs a shell that checks its confinement."""
    files = ShellFiles(candidate.choose_user())
    try:
        pipe = subprocess.PIPE
        started = candidate.start(files, stdin=pipe, stdout=pipe, stderr=pipe)
        process = started.process
        try:
            out, error = process.communicate(_TRIAL, timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "it did not start within 20 s"
        finally:
            if started.control is not None:
                os.close(started.control)
            if started.group is not None:
                started.group.remove()
        confined, _, bash = out.decode(errors="replace").strip().partition(" ")
        if confined == "confined":
            return replace(candidate, bash=bash)
        lines = error.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return lines[-1][:300]
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        return str(problem)
    finally:
        files.remove()

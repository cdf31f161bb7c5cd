"""Confine this process by Landlock and a seccomp filter, then become bash: for systems that forbid user namespaces.

It runs as a program of its own (`python -I -S landlock.py UID WORKSPACE FILTER-FD HOST-PID CONTROL-FD`), because
confinement cannot be undone and must not be set up between fork and exec of a process with threads. It imports the
standard library only, and all of it before it confines itself.

It leaves a second process beside bash, the killer, which waits for the end of a pipe (CONTROL-FD) and then kills every
process that it can. Landlock lets a signal reach only processes that are confined by the same rules or by more. The
killer is confined once and the shell twice, so the killer reaches everything in the shell at once, whatever user it
runs as, and nothing in the shell reaches the killer.

It allows reading and running files in the system's own folders, anything in the workspace, and signals and abstract
sockets among its own processes. The filter forbids all other access: sockets, new sessions (so that the host finds
every process by its session), other namespaces, tracing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from pathlib import Path

KILLER = ("/bin/sh", "-c", "read _; kill -s KILL -- -1")

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")

ABI = 6
"""The first version of Landlock that keeps signals inside (Linux 6.12); before it, `kill` would reach the host."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 1, 38, 22, 36
_SECCOMP_MODE_FILTER, _SIGKILL, _PATH_BENEATH = 2, 9, 1

_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14  # what can be done to a file: execute, write, read, truncate
_ALL = (1 << 16) - 1
_DEVICES = 1 << 15  # ioctl on devices: handled, and so forbidden everywhere but in the workspace
_NETWORK, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals


def read_version() -> int:
    """Return the version of Landlock that this kernel has; 0 or less if it has none."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, 0, 1))


def restrict(workspace: str) -> None:
    """Confine this process and all that it will start. Raises OSError if that fails."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), what)
        return result

    attributes = struct.pack("<QQQ", _ALL, _NETWORK, _SCOPES)
    rules = check(libc.syscall(_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")
    allowed = [(path, _READ) for path in SYSTEM] + [(path, 1 << 1 | 1 << 2) for path in DEVICES]
    for path, access in [*allowed, (workspace, _ALL & ~_DEVICES)]:
        if Path(path).exists():
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rights = access if Path(path).is_dir() else access & _FILE
            rule = struct.pack("<Qi", rights, folder)
            check(libc.syscall(_ADD, rules, _PATH_BENEATH, rule, 0), path)
            os.close(folder)
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    check(libc.syscall(_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)


def filter_calls(program: bytes) -> None:
    """Install a compiled filter of system calls. Raises OSError if that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP" if struct.calcsize("P") == 8 else "HxxP", len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(head), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def leave_killer(control: int) -> None:
    """Start the killer, confined as this process is now, and close this process's end of the pipe."""
    if os.fork() == 0:
        os.dup2(control, 0)
        nothing = os.open("/dev/null", os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setpgid(0, 0)
        os.execve(KILLER[0], KILLER, {})  # noqa: S606  # a shell is the smallest program that every machine has
    os.close(control)


def main(uid: int, workspace: str, source: int, host: int, control: int) -> None:
    """Become a confined bash that ends with its host."""
    program = os.read(source, 1 << 20)
    os.close(source)
    if uid >= 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # after setuid, which resets it
    if os.getppid() != host:  # the host died before that
        sys.exit(1)
    # bash can never trap a signal that is ignored when it starts: SIGPIPE, by this Python, or SIGINT, under nohup
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.nice(10)
    os.chdir(workspace)
    restrict(workspace)
    leave_killer(control)
    # an orphan becomes a child of the shell again, so it cannot hide from a walk through the shell's children
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    restrict(workspace)
    filter_calls(program)
    home = {"PATH": "/usr/bin:/bin", "HOME": workspace, "TMPDIR": workspace, "LANG": "C.UTF-8"}
    os.execve("/bin/bash", ["bash", "--noprofile", "--norc"], home)  # noqa: S606  # no other shell before this one


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))

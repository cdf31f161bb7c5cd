"""The filter of system calls for every shell. A forbidden call fails as if permission were denied."""

from __future__ import annotations

import contextlib
import errno
import socket
import tempfile
from collections.abc import Callable
from typing import Final

import pyseccomp  # type: ignore[import-untyped]

_FORBIDDEN: Final = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp
    mount umount umount2 pivot_root chroot unshare setns
    move_mount fsopen fsconfig fspick fsmount open_tree mount_setattr
    bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register
    init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff
    open_by_handle_at name_to_handle_at syslog acct quotactl personality iopl ioperm modify_ldt vhangup
    clock_settime settimeofday adjtimex sethostname setdomainname lookup_dcookie
    socket connect bind listen accept accept4 sendmsg sendmmsg
    inotify_init inotify_init1 inotify_add_watch fanotify_init fanotify_mark
    memfd_create memfd_secret
    shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
"""Calls that reach other processes, the network or the kernel, that report what others do to files, or that take memory
that no process limit counts."""

_NO_NAMESPACES: Final = "setsid migrate_pages move_pages process_madvise process_mrelease"
"""Calls that are forbidden too where a shell has no namespaces. A later host finds all processes of a shell by their
session, and a shell that runs as the host's own user must not reach the host's other processes, which Landlock does not
prevent."""

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
"""Also forbidden there: calls for other processes; by the argument that must have this value for the process itself."""

_NO_NAMES: Final = """
    chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat
    setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat
"""
"""Forbidden where a shell runs as its host's user under Landlock, which allows changing the rights and times of any
file of that user by its name. Open files can still be changed."""

_CLONE_PARENT: Final = 0x8000
"""A flag for a child of the caller's parent, which is outside the shell's process tree."""

_NAMESPACES: Final = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_TERMINAL: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into another terminal
_SHARED_ANONYMOUS: Final = 0x21  # MAP_SHARED, also as part of MAP_SHARED_VALIDATE, and MAP_ANONYMOUS
_ALL_BITS: Final = 0xFFFFFFFF
_SOCKET_TYPE: Final = 0xF


def compile_filter(*, namespaces: bool, names: bool, shared: bool) -> bytes:
    """Return the filter, compiled for this machine.

    `namespaces` says whether the shell has its own namespaces, `names` whether it may change files by their names,
    `shared` whether something bounds the memory that processes share.
    """
    syscall_filter = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)

    def forbid(name: str, *arguments: pyseccomp.Arg) -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):  # this machine does not have the call
            syscall_filter.add_rule(refuse, name, *arguments)

    for name in _FORBIDDEN.split():
        forbid(name)
    _forbid_addresses(forbid)
    if not shared:
        forbid("mmap", _match_bits(3, _SHARED_ANONYMOUS))
    if not namespaces:
        for name in _NO_NAMESPACES.split():
            forbid(name)
        for name, argument, own in _OTHERS:
            forbid(name, pyseccomp.Arg(argument, pyseccomp.NE, own))
    if not names:
        for name in _NO_NAMES.split():
            forbid(name)
        forbid("utimensat", pyseccomp.Arg(1, pyseccomp.NE, 0))  # without a name it changes an open file
    syscall_filter.add_rule(
        pyseccomp.ERRNO(errno.ENOSYS), "clone3"
    )  # its flags cannot be looked at; all fall back to clone
    for flag in (*_NAMESPACES, _CLONE_PARENT):
        forbid("clone", _match_bits(0, flag))
    for request in _TERMINAL:
        forbid("ioctl", _match_bits(1, request, _ALL_BITS))
    with tempfile.TemporaryFile() as code:
        syscall_filter.export_bpf(code)
        code.seek(0)
        return code.read()


def _forbid_addresses(forbid: Callable[..., None]) -> None:
    """Forbid every call that can reach a socket by an address."""
    # a pair of streams connects only to itself, and runtimes need one to start programs; a datagram socket, which could
    # be sent to a name, is refused
    forbid("socketpair", pyseccomp.Arg(0, pyseccomp.NE, int(socket.AF_UNIX)))
    for kind in {*range(_SOCKET_TYPE + 1)} - {int(socket.SOCK_STREAM)}:
        forbid("socketpair", _match_bits(1, kind, _SOCKET_TYPE))
    forbid("sendto", pyseccomp.Arg(4, pyseccomp.NE, 0))  # without an address it equals `send`


def _match_bits(argument: int, value: int, mask: int | None = None) -> pyseccomp.Arg:
    """Return the condition that an argument has these bits, out of those of the mask."""
    return pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, value if mask is None else mask, value)

"""A confined shell as a process: its input, its output, its gate calls, its end.

A shell lives as long as its entity; between steps no thread serves it and nothing reads from it. A step is `wait`: it
runs until the shell calls a gate, reports the end of the program, or has ended. Any process in the jail can write into
the pipes, so their content is untrusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cantrip_actors.circle import leftovers
from cantrip_actors.circle.shell import process_tree
from cantrip_actors.circle.shell.confine import Jail
from cantrip_actors.circle.shell.files import ShellFiles
from cantrip_actors.circle.shell.state_text import write_restore
from cantrip_actors.circle.step import Limit, LimitExceeded

CHUNK: Final = 65536

LARGEST: Final = 16 * 1024 * 1024
"""The most bytes of one request of a shell, or of its state."""

WORDS: Final = 1000
"""The most words of one gate call."""

DYING: Final = 2.0
"""Seconds that killed processes may take to end."""

QUIET: Final = 1.0
"""Seconds until a stopped shell stands still, and until the processes that it has killed itself are dead."""

START: Final = 20.0
"""Seconds that a shell may take to start."""

ENDS: Final = 1000
"""Ends that a program may claim before it ends."""

ABOVE: Final = 300
"""The lowest file descriptor of the pipes that a shell gets; it may use 256 descriptors of its own."""

WAYS: Final = (107, 104, 105, 106)
"""The shell's own descriptors of the pipes that it starts with (`prelude.sh`)."""

OUTPUT: Final = 103
"""The shell's own descriptor of its output."""

LOOK: Final = 0.02
"""Seconds between two checks of the shell's resources."""

DEAD: Final = 2.0
"""Seconds in which a living caller of a gate begins to read the answer, also on a busy machine."""


_OWN_WORDS: Final = (
    b"__o=${BASHOPTS##*expand_aliases*}; __o=${__o:+u}; POSIXLY_CORRECT=; \\unset -f builtin unset exec; "
    b"\\unset POSIXLY_CORRECT; \\builtin shopt -u expand_aliases\n"
)
"""Restores the meaning of the words that are used between two programs, whatever a program has redefined. Setting that
variable needs no word, and while it is set, no function replaces `unset`. `__o` keeps for the program whether aliases
are expanded."""


_ANSWER: Final = (
    b"POSIXLY_CORRECT=; \\unset -f builtin unset; \\unset POSIXLY_CORRECT; \\builtin printf '%%s\\0' idle %b >&107\n"
)
"""A line that a shell reads and answers after it has reported the end of its program."""


@dataclass(frozen=True, slots=True)
class CalledGate:
    """The program calls a gate: its name, and the words after it."""

    gate: str
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class ShellEnded:
    """The program has ended. `state` is text that gives another shell the state of this one."""

    status: int
    state: bytes
    leaves: bool
    """True if the shell ends with the program, as after `exit`, or can run no other one."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The shell itself has ended, with this code."""

    status: int
    telling: bool = False
    """True if the shell ended while it reported its state."""


class ShellProcess:
    """One confined bash. Not thread-safe, except `kill`."""

    def __init__(
        self, jail: Jail, files: ShellFiles, greeting: Callable[[Sequence[int]], str], limits: Mapping[str, str]
    ) -> None:
        ask_out, ask_in = os.pipe()
        answer_out, answer_in = os.pipe()
        token_out, token_in = os.pipe()
        theirs = _move_descriptors(ask_in, answer_out, token_out, token_in)
        try:
            started = jail.start(
                files,
                limits,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=theirs,
            )
        except BaseException:
            for descriptor in (*theirs, ask_out, ask_in, answer_out, answer_in, token_out, token_in):
                os.close(descriptor)
            raise
        for descriptor in (*theirs, ask_in, answer_out):
            os.close(descriptor)
        self._process, self._control, self._group = started.process, started.control, started.group
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._ask, self._answer, self._token = ask_out, answer_in, (token_out, token_in)
        self._exit = os.pidfd_open(self._process.pid)
        self._first_pid = started.first
        self._first = _open_handle(started.first)
        self._shell_pid, self._shell, self._fixed = 0, -1, frozenset[int]()
        """The shell itself, and the jail's other processes that are there without a program."""
        self._fitness = b""
        """The shell's resource limits and its ways to the host, which a program can lower or close, and not restore."""
        self._claimed: ShellEnded | None = None
        """A claimed end of a program. It counts once the shell reads the next line, with this word, or has ended."""
        self._word = b""
        self._claims = 0
        for descriptor in (self._stdin, self._stdout, self._ask, self._answer):
            os.set_blocking(descriptor, False)
        self._buffer = bytearray()
        self._ended: set[int] = set()
        """The pipes that the shell has closed."""
        self._to_shell = bytearray(greeting(theirs).encode())
        self._to_gate = bytearray()
        self._closed = False
        self._reaping = threading.Lock()
        self._await_start()

    def _await_start(self) -> None:
        """Wait until the shell has started; then a program's time begins. Raises OSError if it does not start."""
        output = bytearray()
        event = self.wait(START, output.extend, lambda: None)
        with contextlib.suppress(OSError):
            if isinstance(event, ShellEnded) and self._find_shell():
                return
        self.close()
        raise OSError(f"the shell did not start: {output[:300].decode(errors='replace').strip() or event}")

    def _find_shell(self) -> bool:
        """Find the shell's process. No program has run yet, so no other process can be it."""
        if self._first_pid is None:
            self._shell_pid, self._fixed = self._process.pid, frozenset(process_tree.list_children(self._process.pid))
        else:
            below = process_tree.list_children(self._first_pid)
            if len(below) != 1:
                return False
            self._shell_pid = below[0]
        self._shell = os.pidfd_open(self._shell_pid)
        self._fitness = self._read_fitness()
        return True

    def _read_fitness(self) -> bytes:
        """Return the resources that the shell needs to run a program, as the kernel lists them. Raises OSError if a way
        is closed.
        """
        ways = (Path(f"/proc/{self._shell_pid}/fd/{there}").readlink() for there in (0, OUTPUT, *WAYS))
        return b"\n".join((process_tree.read_limits(self._shell_pid), *map(os.fsencode, ways)))

    def list_processes(self) -> Iterator[int]:
        """Yield the jail's processes, without those of the host."""
        top = self._first_pid or self._shell_pid
        return (
            process
            for process in process_tree.walk_descendants(top)
            if process != self._first_pid and process not in self._fixed
        )

    def stop(self) -> bool:
        """Stop the shell, and return True if it can run another program; `begin` continues it.

        Nothing else in the jail may live: only the shell can then start processes, and it is stopped, so nothing runs.
        Returns False if it does not stop, if something else lives or may live, or if the program has lowered a limit
        or closed a way to the host, without which the next one might not even start: kill the shell then.
        """
        ends = time.monotonic() + QUIET
        try:
            signal.pidfd_send_signal(self._shell, signal.SIGSTOP)
            before = None
            while time.monotonic() < ends:
                # below the shell first: orphans move meanwhile to the first process, which is checked next
                processes = None
                if process_tree.is_stopped(self._shell_pid):
                    processes = self._list_below(self._shell_pid) | self._list_below(self._first_pid)
                    if processes == before and all(map(process_tree.is_dead, processes)):
                        return self._read_fitness() == self._fitness
                before = processes
                if processes:
                    time.sleep(0.001)
        except OSError:
            return False
        return False

    def _list_below(self, process: int | None) -> frozenset[int]:
        """Return a process's children, without the ones that belong to the jail itself."""
        return (
            frozenset()
            if process is None
            else frozenset(process_tree.list_children(process)) - self._fixed - {self._shell_pid}
        )

    def begin(self, state: bytes, variables: Mapping[str, bytes], text: bytes) -> None:
        """Queue the shell's state, its variables and a program, which it reads when `wait` is called.

        Drops earlier input that was not requested, and the last output of dying processes of the previous program.
        """
        self._claimed, self._claims = None, 0
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._shell, signal.SIGCONT)
        self._drain(self._ask, lambda _: None)
        self._drain(self._stdout, lambda _: None)
        self._buffer.clear()
        self._to_gate.clear()
        self._forget_answer()
        self._to_shell += _OWN_WORDS
        if state:
            self._to_shell += (
                _write_read_command(b"__program", state) + b'; builtin eval "$__program" &>/dev/null\n' + state
            )
        for name, value in variables.items():
            self._to_shell += _write_read_command(name.encode(), value) + b"\n" + value
        self._to_shell += _write_read_command(b"__program", text) + b'; builtin eval "$__program"\n' + text

    def _forget_answer(self) -> None:
        """Drop an unread answer, such as one to a background call, so that it does not answer another call."""
        if self._count_unread():
            # a separate file description, because the shell's own must block
            ours = os.open(f"/proc/self/fd/{self._answer}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(BlockingIOError):
                while os.read(ours, CHUNK):
                    pass
            os.close(ours)
        self._renew_token()

    def _count_unread(self) -> int:
        count = bytearray(4)
        fcntl.ioctl(self._answer, termios.FIONREAD, count)
        return int.from_bytes(count, sys.byteorder)

    def _renew_token(self) -> None:
        """Put exactly one token into the pipe, whatever happened to the previous one. The shell blocks on it."""
        poll = select.poll()
        poll.register(self._token[0], select.POLLIN)
        if poll.poll(0):
            os.read(self._token[0], CHUNK)
        os.write(self._token[1], b".")

    def answer(self, text: str, *, failed: bool) -> None:
        """Queue the answer to the waiting gate call, which is sent when `wait` is called."""
        data = text.replace("\0", "").encode("utf-8", "replace")
        self._to_gate += b"%d%010d" % (failed, len(data)) + data

    def wait(
        self, seconds: float, prints: Callable[[bytes], None], check: Callable[[], Limit | None]
    ) -> CalledGate | ShellEnded | Gone | LimitExceeded | None:
        """Continue until something happens; return None if nothing does for this many seconds.

        `prints` receives the shell's output; `check` is called often, and returns the name of an exceeded limit. Such a
        limit is only returned; the caller must act on it.
        """
        ends = time.monotonic() + seconds
        looks = time.monotonic() + LOOK
        left = 0.0
        while (now := time.monotonic()) < ends:
            if now >= looks:
                looks = now + LOOK
                exceeded = check()
                if exceeded is not None:
                    return LimitExceeded(exceeded)
                left = left + LOOK if self._count_unread() and not self._to_gate else 0.0
                if left >= DEAD:  # the caller was killed, as by `timeout`; others wait for its token
                    left = 0.0
                    self._forget_answer()
            ready = self._poll(min(ends, looks) - now)
            gone = self._exit in ready
            self._write(ready)
            if self._stdout in ready:
                self._drain(self._stdout, prints)
            if self._ask in ready:
                self._drain(self._ask, self._buffer.extend)
            if len(self._buffer) > LARGEST:
                return LimitExceeded("memory")
            if (event := self._take()) is not None:
                self._drain(self._stdout, prints)  # this output was printed before the end
                return event
            if self._claims > ENDS:
                return LimitExceeded("gate_calls")
            if gone:
                self._drain(self._stdout, prints)
                return self._explain_end()
        return None

    def _explain_end(self) -> ShellEnded | Gone:
        """Return the meaning of the shell's end: the end of the program, if the shell had announced one."""
        status = self._read_status()
        if self._claimed is not None:  # an exit trap does not know the signal that ends the shell
            end = self._claimed
            code = status if status >= 0 else 128 - status
            return ShellEnded(code if end.leaves else end.status, end.state, leaves=True)
        return Gone(status, self._buffer.startswith(b"end\0"))

    def _poll(self, seconds: float) -> set[int]:
        poll = select.poll()
        for descriptor in {self._stdout, self._ask, self._exit} - self._ended:
            poll.register(descriptor, select.POLLIN)
        for descriptor, waiting in ((self._stdin, self._to_shell), (self._answer, self._to_gate)):
            if waiting:
                poll.register(descriptor, select.POLLOUT)
        return {descriptor for descriptor, _ in poll.poll(max(seconds, 0) * 1000)}

    def _drain(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        """Read the available bytes, up to a bound, because the jail may write faster than this reads."""
        for _ in range(16):
            try:
                part = os.read(descriptor, CHUNK)
            except BlockingIOError:
                return
            if not part:
                self._ended.add(descriptor)
                return
            take(part)

    def _read_status(self) -> int:
        """Return the shell's exit code, negative for a signal. It stays a zombie, so that its session is not reused."""
        ended = os.waitid(os.P_PIDFD, self._exit, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _write(self, ready: set[int]) -> None:
        for descriptor, waiting in ((self._stdin, self._to_shell), (self._answer, self._to_gate)):
            if waiting and descriptor in ready:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    del waiting[: os.write(descriptor, waiting[:CHUNK])]

    def _take(self) -> CalledGate | ShellEnded | None:
        """Return the first event in the complete records from the shell; None if there is none yet.

        Any process in the jail may write a record, so a record of an end is only a claim. It counts once the shell
        reads the next line, which it does only between programs.
        """
        while (end := self._buffer.find(0)) >= 0:
            head = bytes(self._buffer[:end])
            if head == b"idle":
                fields = self._take_fields(end + 1, 1)
                if fields is None:
                    return None
                if self._claimed is not None and fields[0] == self._word:
                    return self._claimed
            elif head == b"end":
                fields = self._take_fields(end + 1, 6)
                if fields is None:
                    return None
                self._claim(*fields)
            elif head.isdigit() and len(head) < 5 and 0 < int(head) <= WORDS:
                fields = self._take_fields(end + 1, int(head))
                if fields is None:
                    return None
                gate, *words = (field.decode(errors="replace") for field in fields)
                return CalledGate(gate, words)
            else:
                self._buffer.clear()  # an unknown process has written this
        return None

    def _claim(self, status: bytes, how: bytes, *left: bytes) -> None:
        if status.isdigit() and len(status) < 4:
            self._claims += 1
            self._word = secrets.token_hex(8).encode()
            self._claimed = ShellEnded(int(status) & 255, write_restore(*left), leaves=how != b"on")
            if how != b"exit":  # after `exit` it reads nothing more: it ends
                self._to_shell += _ANSWER % self._word

    def _take_fields(self, start: int, count: int) -> list[bytes] | None:
        """Remove and return the next `count` fields from `start` on; None if they are incomplete."""
        fields = []
        for _ in range(count):
            end = self._buffer.find(0, start)
            if end < 0:
                return None
            fields.append(bytes(self._buffer[start:end]))
            start = end + 1
        del self._buffer[:start]
        return fields

    def kill(self) -> None:
        """Kill the shell and all that it has started, from any thread."""
        with self._reaping:
            if self._closed:
                return
            if self._group is not None:
                self._group.kill()
            for descriptor in (self._first, self._exit):
                with contextlib.suppress(ProcessLookupError):
                    if descriptor is not None:
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if self._control is not None:
                os.close(self._control)
                self._control = None
                self._await_killer()

    def _await_killer(self) -> None:
        """Wait until the killer has killed all processes; kill them one by one if there is no killer."""
        killers = [handle for handle in map(_open_handle, self._fixed) if handle is not None]
        poll = select.poll()
        for killer in killers:
            poll.register(killer, select.POLLIN)
        if not killers or not poll.poll(DYING * 1000):
            leftovers.end_session(self._process.pid)
        for killer in killers:
            os.close(killer)

    def close(self) -> None:
        """End the shell, and release its resources."""
        self.kill()
        with self._reaping:
            self._closed = True
            self._process.wait()
            if self._first is not None:
                poll = select.poll()
                poll.register(self._first, select.POLLIN)  # the first process ends after all others in its namespace
                poll.poll(DYING * 1000)
                os.close(self._first)
            if self._group is not None:
                self._group.remove()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        for descriptor in (self._ask, self._answer, *self._token, self._exit, self._shell):
            if descriptor >= 0:
                os.close(descriptor)

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel ended a process because the jail had no memory left."""
        return self._group is not None and self._group.has_killed_for_memory()


def _open_handle(process: int | None) -> int | None:
    """Return a descriptor of a process, or None if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return None if process is None else os.pidfd_open(process)
    return None


def _write_read_command(name: bytes, text: bytes) -> bytes:
    """Return the command that reads `text`, which follows its line, into a variable.

    A shell reads its program byte by byte, but a text of known length at once, and in far less memory than parsing
    takes. Resetting a locale that is not installed prints a complaint.
    """
    return b"%b=; { LC_ALL=C builtin read -r -N %d %b; } 2>/dev/null" % (name, len(text), name)


def _move_descriptors(*descriptors: int) -> list[int]:
    """Return duplicates of descriptors under numbers that no shell uses, because a shell starts with these numbers."""
    return [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ABOVE) for descriptor in descriptors]

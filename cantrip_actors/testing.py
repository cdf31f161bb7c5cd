"""Tools for tests of agents: virtual time, and crashes of the process at any write to its loom.

A crash takes no real process: after it the runtimes of the program write nothing any more, as after `kill -9`, and the
program is cancelled. `run_with_crashes` then runs the program again, as a supervisor of processes would.

    await run_with_crashes(program, [Crash(3), Crash(1, recorded=True)])

`docs/testing.md` shows how to test an agent with it, and for every crash that Hypothesis thinks of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Generic, NoReturn, TypeVar

import anyio
from anyio.lowlevel import current_token

from cantrip_actors.loom import MemoryStore, Store
from cantrip_actors.loom.store import Postponed
from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.terms.arguments import check_kind, check_whole
from cantrip_actors.terms.errors import LoomError
from supervisors.testing import Stuck, virtual

__all__ = ["Crash", "Crashed", "Process", "Stuck", "Survived", "run_with_crashes", "virtual"]

T = TypeVar("T")

_COUNTED = ("append", "post", "replace_timers", "add_submission", "drop_submission")
"""The methods of a store that write records, mail, timers and submissions."""
_OTHER = (
    *("claim", "renew", "release", "release_if_empty", "quarantine", "change_account", "join", "beat", "leave"),
    *("keep_checkpoint", "prepare_forget", "drop_unused_blobs", "expire_mail", "scrub"),
)
"""The other methods with which a store writes."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of the process at one of its writes.

    Args:
        write: which write of records, mail, timers or a submission it is, from 1 on, counted from the start of the
            process.
        recorded: whether the loom has this write. Its caller gets an error in either case.

    Raises:
        ValueError: `write` is not a whole number from 1 on, or `recorded` is not a bool.
    """

    write: int
    recorded: bool = False

    def __post_init__(self) -> None:
        check_whole("write", self.write, 1)
        check_kind("recorded", self.recorded, bool, "True or False")


class Crashed(LoomError):
    """The process has crashed, because its test says so: it can write nothing any more."""


class Process:
    """One life of a program. `attach` makes its runtimes die with it.

    Args:
        crash: when it crashes; None for a life without a crash. Its writes are counted from the first `attach` on.
    """

    def __init__(self, crash: Crash | None = None) -> None:
        check_kind("crash", crash, Crash | None, "a Crash, or None")
        self.has_crashed = False
        """Whether the crash has come."""
        self.writes = 0
        """The writes so far."""
        self._crash = crash
        self._memories: list[MemoryStore] = []
        self._opened = 0
        self._end: Callable[[], object] = lambda: None

    def attach(self, runtime: Runtime) -> Runtime:
        """Make a runtime part of this process, and return it. It may be open already; then its next write counts.

        In `run_with_crashes` a loom in memory keeps its records from one life to the next: the n-th loom in memory
        that a life opens has the records of the n-th one of the life before.
        """
        check_kind("runtime", runtime, Runtime, "a Runtime")
        tree = runtime._tree  # noqa: SLF001  # of this package
        if tree.was_opened:
            self._watch(tree.store)
        else:
            opening = tree.opening
            tree.opening = lambda: self._open(opening)
        return runtime

    def _begin(self, memories: list[MemoryStore], end: Callable[[], object]) -> None:
        """Let it use the looms in memory of the lives before it, and call `end` when it crashes."""
        self._memories, self._end = memories, end

    def _open(self, opening: Callable[[], Store]) -> Store:
        store = opening()
        if type(store) is MemoryStore:  # and none with a file
            if self._opened == len(self._memories):
                self._memories.append(store)
            store = self._memories[self._opened]
            store.reopen()
            self._opened += 1
        self._watch(store)
        return store

    def _watch(self, store: Store) -> None:
        for name in (*_COUNTED, *_OTHER):
            if hasattr(store, name):  # only stores that processes share have nodes
                setattr(store, name, self._guard(name, getattr(type(store), name).__get__(store)))

    def _guard(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a store that writes while the process lives."""

        @wraps(write)
        def guarded(*args: Any, **named: Any) -> Any:
            if self.has_crashed:
                raise Crashed(_CRASHED)
            crash = None
            if name in _COUNTED:
                self.writes += 1
                if self._crash is not None and self.writes == self._crash.write:
                    crash = self._crash
            if crash is not None and not crash.recorded:
                self._die()
            try:
                result = write(*args, **named)
            except Postponed:  # nothing is written: the same write follows in a thread
                self.writes -= name in _COUNTED
                raise
            if crash is not None:
                self._die()
            return result

        return guarded

    def _die(self) -> NoReturn:
        self.has_crashed = True
        self._end()
        raise Crashed(_CRASHED)


_CRASHED = "the process has crashed at this write, because its test says so"


@dataclass(frozen=True, slots=True)
class Survived(Generic[T]):
    """What a program returned in its last life, and how many lives ended in a crash before."""

    value: T
    crashes: int


async def run_with_crashes(program: Callable[[Process], Awaitable[T]], crashes: Sequence[Crash] = ()) -> Survived[T]:
    """Run a program until it has ended, and crash it on the way: the first life at the first crash, and so on.

    A life that crashes is cancelled, and what it raises has no effect; the program is then called again, as a new
    process, to continue from the loom. The life after the last crash runs to its end, and so does one that has fewer
    writes than its crash says: then the later crashes are not needed.

    Args:
        program: the whole program, as `main` would be: it opens its runtimes, each given to `process.attach`, and
            does or resumes its work. It must not keep anything from an earlier life but what a test counts.
        crashes: one for each life that crashes.

    Raises:
        ValueError: `crashes` holds something else.
        Exception: what the program raises in a life that has not crashed.
    """
    memories: list[MemoryStore] = []
    loop: Any = current_token().native_token  # a store may write in a thread
    run_soon = loop.call_soon_threadsafe if hasattr(loop, "call_soon_threadsafe") else loop.run_sync_soon
    lives = [Process(crash) for crash in crashes]
    for number, process in enumerate([*lives, Process()]):
        scope = anyio.CancelScope()
        process._begin(memories, partial(run_soon, scope.cancel))  # noqa: SLF001  # of this module
        try:
            with scope:
                value = await program(process)
                if not process.has_crashed:
                    return Survived(value, number)
        except Exception:
            if not process.has_crashed:
                raise
    raise AssertionError("the last life has no crash")

"""Crashes of a process, at any write to its loom and at any wait of its gates and queries.

A crash takes no real process: after it the runtimes of the program write nothing any more, as after `kill -9`, no gate
continues, and the program is cancelled. `run_with_crashes` then runs the program again, as a supervisor of processes
would.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, cast, get_args

import anyio
from anyio.lowlevel import current_token

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.loom import MemoryStore, Store
from cantrip_actors.loom.stores.store import Postponed
from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.terms.arguments import check, check_kind, check_whole, is_number, is_text
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.user_code.attempt import WATCH, CodeKind
from cantrip_actors.user_code.threads import get_run_soon

T = TypeVar("T")

CodeMoment: TypeAlias = Literal["start", "inside", "end"]

COUNTED_WRITES = ("append", "post", "replace_timers", "add_submission", "drop_submission")
"""The methods of a store that write records, mail, timers and submissions."""
_OTHER = (
    *("claim", "renew", "release", "release_if_empty", "quarantine", "change_account", "join", "beat", "leave"),
    *("keep_checkpoint", "prepare_forget", "drop_unused_blobs", "expire_mail", "scrub", "append_copied"),
    *("ask_to_drain", "use_release", "sweep"),
)
"""The other methods with which a store writes."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of the process: at one of its writes, in a call of a gate, in a query, or after some time.

    `Crash(3)` is at the third write, `Crash(gate="pay", at="end")` when the first call of `pay` has ended and before
    its result is recorded, `Crash(query=2)` while the second answer is awaited, `Crash(after=60)` a minute after the
    process began. All are counted from the start of the process.

    Args:
        write: which write of records, mail, timers or a submission it is, from 1 on.
        recorded: whether the loom has this write. Its caller gets an error in either case.
        gate: the name of the gate.
        call: which call of this gate it is, from 1 on. Each attempt of a gate that is tried again counts.
        query: which query to a crystal it is, from 1 on.
        at: in a gate or a query: before it begins, while it waits ("inside"), or when it has ended.
        wait: which of its waits it is, from 1 on, if `at` is "inside". Code before this wait has run, code after it
            never does. A blocking gate waits once, for its thread, which nothing cuts.
        after: seconds since the process began.

    Raises:
        ValueError: not exactly one of `write`, `gate`, `query` and `after` is there, a value is outside of its range,
            or an argument is for another kind of crash, which would never come.
    """

    write: int | None = None
    recorded: bool = False
    gate: str | None = None
    call: int = 1
    query: int | None = None
    at: CodeMoment = "inside"
    wait: int = 1
    after: float | None = None

    def __post_init__(self) -> None:
        places = {"write": self.write, "gate": self.gate, "query": self.query, "after": self.after}
        if len(stated := [name for name, value in places.items() if value is not None]) != 1:
            got = ", ".join(stated) or "none of them"
            raise ValueError(f"expected one of write, gate, query and after, got {got}")
        for name in ("write", "query"):
            if places[name] is not None:
                check_whole(name, places[name], 1)
        check_whole("call", self.call, 1)
        check_whole("wait", self.wait, 1)
        check_kind("recorded", self.recorded, bool, "True or False")
        check(self.gate is None or is_text(self.gate), "gate", "the name of a gate", self.gate, ValueError)
        if self.at not in get_args(CodeMoment):
            raise ValueError(f"at: expected {', '.join(map(repr, get_args(CodeMoment)))}, got {self.at!r}")
        if self.after is not None and not (is_number(self.after) and self.after >= 0):
            raise ValueError(f"after: expected seconds from 0 on, got {self.after!r}")
        self._check_place()

    def _check_place(self) -> None:
        """Refuse arguments of another kind of crash: no moment would equal this one."""
        is_in_code = self.gate is not None or self.query is not None
        if self.recorded and self.write is None:
            raise ValueError("recorded: expected it with write only")
        if self.call != 1 and self.gate is None:
            raise ValueError("call: expected it with gate only")
        if self.at != "inside" and not is_in_code:
            raise ValueError("at: expected it with gate or query only")
        if self.wait != 1 and not (is_in_code and self.at == "inside"):
            raise ValueError('wait: expected it with at="inside" of a gate or a query only')


class Crashed(LoomError, GateError):
    """The process has crashed, because its test says so: it can write nothing any more."""


class Process:
    """One life of a program. `attach` makes its runtimes die with it.

    Args:
        crash: when it crashes; None for a life without a crash. Its writes are counted from the first `attach` on, its
            gates and queries in `run_with_crashes` only.
    """

    def __init__(self, crash: Crash | None = None) -> None:
        check_kind("crash", crash, Crash | None, "a Crash, or None")
        self.writes: int = 0
        """The writes so far."""
        self._crash = crash
        self._is_dead = False
        self._points: list[Crash] = []
        """Where it could have crashed so far."""
        self._calls: Counter[tuple[CodeKind, str]] = Counter()
        self._memories: list[MemoryStore] = []
        self._opened = 0
        self._is_attached = False
        self._end: Callable[[], object] = lambda: None
        self._read_clock: Callable[[], float] = lambda: 0.0
        self._deadline = math.inf
        """When it crashes if nothing else crashes it before, by that clock."""

    @property
    def has_crashed(self) -> bool:
        """Whether the crash has come."""
        if self._read_clock() >= self._deadline:
            self._is_dead = True
        return self._is_dead

    def attach(self, runtime: Runtime) -> Runtime:
        """Make a runtime part of this process, and return it. It may be open already; then its next write counts.

        In `run_with_crashes` a loom in memory keeps its records from one life to the next: the n-th loom in memory
        that a life opens has the records of the n-th one of the life before.
        """
        check_kind("runtime", runtime, Runtime, "a Runtime")
        self._is_attached = True
        tree = runtime._tree  # noqa: SLF001  # of this package
        if tree.was_opened:
            self._watch(tree.store)
        else:
            opening = tree.opening
            tree.opening = lambda: self._open(opening)
        return runtime

    def _check_attached(self) -> None:
        """Raise ValueError if no runtime was part of this life: then nothing has died with it."""
        if self._is_attached or (self._crash is not None and self._crash.after is not None and self.has_crashed):
            return
        raise ValueError(
            "program: no runtime was given to process.attach, so no crash reaches one and this test tests nothing: "
            "write `async with process.attach(Runtime.open(…)) as runtime:`"
        )

    async def _live(self, program: Callable[[Process], Awaitable[T]], memories: list[MemoryStore]) -> T | None:
        """Run a program until it ends or crashes. It uses the looms in memory of the lives before it."""
        self._read_clock, scope = _find_clock(), anyio.CancelScope()
        self._memories, self._end = memories, partial(get_run_soon(), scope.cancel)
        if self._crash is not None and self._crash.after is not None:
            self._deadline = scope.deadline = anyio.current_time() + self._crash.after
        watcher = WATCH.set(self._do)
        try:
            with scope:
                return await program(self)
        except Exception:
            if not self.has_crashed:
                raise
        finally:
            WATCH.reset(watcher)
            if not self.has_crashed:
                self._deadline = math.inf
        return None

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
        for name in (*COUNTED_WRITES, *_OTHER):
            if hasattr(store, name):  # only stores that processes share have nodes
                setattr(store, name, self._guard(name, getattr(type(store), name).__get__(store)))

    def _guard(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a store that writes while the process lives."""

        @wraps(write)
        def guarded(*args: Any, **named: Any) -> Any:
            if self.has_crashed:
                raise Crashed(_CRASHED)
            crash = None
            if name in COUNTED_WRITES:
                self.writes += 1
                self._points += [Crash(self.writes), Crash(self.writes, recorded=True)]
                if self._crash is not None and self.writes == self._crash.write:
                    crash = self._crash
            if crash is not None and not crash.recorded:
                self._die()
            try:
                result = write(*args, **named)
            except Postponed:  # nothing is written: the same write follows in a thread
                if name in COUNTED_WRITES:
                    self.writes -= 1
                    del self._points[-2:]
                raise
            if crash is not None:
                self._die()
            return result

        return guarded

    def _die(self) -> NoReturn:
        self._fall()
        raise Crashed(_CRASHED)

    def _fall(self) -> None:
        self._is_dead = True
        self._end()

    async def _do(self, kind: CodeKind, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do a call of a gate, or a query, and crash in it if that is due."""
        counted = name if kind == "gate" else ""  # queries are counted together
        self._calls[kind, counted] += 1
        number = self._calls[kind, counted]
        at = partial(Crash, gate=name, call=number) if kind == "gate" else partial(Crash, query=number)
        self._pass(at(at="start"))
        try:
            result = await _Steps(
                call(),
                lambda number: self._note(at(at="inside", wait=number)),
                lambda: self.has_crashed and kind == "gate",
            )
        except Exception:
            self._pass(at(at="end"))
            raise
        self._pass(at(at="end"))
        return result

    def _pass(self, point: Crash) -> None:
        """Pass a point where the process may crash."""
        self._note(point)
        if self.has_crashed:  # a dead process executes nothing
            raise Crashed(_CRASHED)

    def _note(self, point: Crash) -> None:
        self._points.append(point)
        if point == self._crash:
            self._fall()


class _Steps(Generator[Any, Any, T], Awaitable[T]):
    """A coroutine whose waits are noted. In a gate of a dead process each wait ends in an error."""

    def __init__(self, call: Awaitable[T], note: Callable[[int], None], is_over: Callable[[], bool]) -> None:
        self._steps: Generator[Any, Any, T] = call.__await__()
        self._note, self._is_over = note, is_over
        self._waits = 0

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        """Run until the next wait."""
        if self._waits and self._is_over():
            return self.throw(Crashed(_CRASHED))
        return self._wait(self._steps.send(value))

    def throw(self, *error: Any) -> Any:
        """Raise an error at the present wait."""
        return self._wait(self._steps.throw(*error))

    def _wait(self, trap: Any) -> Any:
        self._waits += 1
        self._note(self._waits)
        return trap


def _find_clock() -> Callable[[], float]:
    """Return the clock of the running event loop. Any thread may read it: a store may write in one."""
    loop = current_token().native_token
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.time
    from trio.lowlevel import current_clock

    return current_clock().current_time


_CRASHED = "the process has crashed, because its test says so"


@dataclass(frozen=True, slots=True)
class Survived(Generic[T]):
    """The result of a program's last life, and the number of lives before it that ended in a crash."""

    value: T
    crashes: int


async def run_with_crashes(program: Callable[[Process], Awaitable[T]], crashes: Sequence[Crash] = ()) -> Survived[T]:
    """Run a program until it has ended, and crash it on the way: the first life at the first crash, and so on.

    A life that crashes is cancelled, and what it raises has no effect; the program is then called again, as a new
    process, to continue from the loom. The life after the last crash runs to its end, and so does a life in which its
    crash does not come: then the later crashes are not needed.

    Args:
        program: the whole program, as `main` would be: it opens its runtimes, each given to `process.attach`, and
            does or resumes its work. It must not keep anything from an earlier life but what a test counts.
        crashes: one for each life that crashes.

    Raises:
        ValueError: `crashes` holds something else, or the program gives no runtime to `process.attach` in a life that
            is to crash.
        Exception: what the program raises in a life that has not crashed.
    """
    memories: list[MemoryStore] = []
    lives = [Process(crash) for crash in crashes]
    for number, process in enumerate([*lives, Process()]):
        value = await process._live(program, memories)  # noqa: SLF001  # of this module
        if number < len(lives):
            process._check_attached()  # noqa: SLF001  # likewise
        if not process.has_crashed:
            return Survived(cast("T", value), number)
    raise AssertionError("the last life has no crash")


async def every_crash_point(program: Callable[[Process], Awaitable[object]]) -> list[Crash]:
    """Run a program once, without a crash, and return each crash that it can have, in the order of its life.

    These are its writes, each of them twice (`recorded` or not), the waits of its gates and queries, and the moments
    before and after them. `run_with_crashes(program, [crash])` for each of them is the sweep of all single crashes.

    This run has all effects of the program, and so has each run of the sweep: clear what a test counts before each
    one, and if the loom is a file, give each run a new one.

    Raises:
        ValueError: the program gives no runtime to `process.attach`.
    """
    process = Process()
    await process._live(program, [])  # noqa: SLF001  # of this module
    process._check_attached()  # noqa: SLF001  # likewise
    return list(process._points)  # noqa: SLF001  # likewise

"""The world outside of a simulation: clocks, chance, threads, sockets and subprocesses.

In a simulation the runtime sees a simulated clock, and everything that draws random numbers draws them from the seed:
`random`, `secrets`, `os.urandom`, `uuid.uuid4`. User code that uses a source that no seed can repeat gets
`NotSimulated`, which names its line: a clock of the machine, a thread, a socket, a subprocess. The simulation fails
with that error, also if the code that has asked catches it.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn
from unittest.mock import patch
from uuid import UUID

import anyio.to_thread
import uuid_utils

import cantrip_actors
import supervisors
from cantrip_actors.loom.stores import lease
from cantrip_actors.redact.logs import Logger

EPOCH: Final = 1_800_000_000.0
"""Seconds since 1970 at which every simulation begins."""
_UPTIME: Final = 100_000.0
"""Seconds since the machine started, likewise."""

_LIBRARIES: Final = tuple(
    f"{Path(path).resolve()}{os.sep}"
    for path in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(str(Path(package.__file__ or "").parent) for package in (cantrip_actors, supervisors)),
    }
)
"""Folders of code that is not the user's."""

_CLOCKS: Final = {
    "time": lambda now: EPOCH + now,
    "monotonic": lambda now: _UPTIME + now,
    "perf_counter": lambda now: now,
    "time_ns": lambda now: int((EPOCH + now) * 1e9),
    "monotonic_ns": lambda now: int((_UPTIME + now) * 1e9),
    "perf_counter_ns": lambda now: int(now * 1e9),
}
_USE_SLEEP: Final = "use anyio.sleep()"
_USE_TIME: Final = "use anyio.current_time(), or SimulatedProcess.time_of_day()"
_NO_THREADS: Final = "threads run in an order that no seed decides; a gate that is a plain function needs none here"
_NO_SOCKETS: Final = "nothing outside of the simulation answers in an order that a seed decides; use a stand-in"


class NotSimulated(RuntimeError):
    """The scenario asked for something that no seed can repeat: the error names it, and the line."""


class OutsideWorld:
    """Everything outside of one simulation, as its code sees it.

    Args:
        now: returns the simulated seconds since the beginning.
        chance: draws random bytes.
        run_sync: does the work of threads, as `anyio.to_thread.run_sync`.
        name_owner: names a holder of leases.
        is_owner_running: returns whether the process of a holder runs; None if no other one can know.
        on_refusal: called with each error that is raised for the scenario.
        log: called with the level and the text of each line that the library logs.
    """

    def __init__(
        self,
        now: Callable[[], float],
        chance: Random,
        *,
        run_sync: Callable[..., Awaitable[Any]],
        name_owner: Callable[[], str],
        is_owner_running: Callable[[str], bool | None],
        on_refusal: Callable[[NotSimulated], object],
        log: Callable[[str, str], object],
    ) -> None:
        self._now = now
        self._chance = chance
        self._run_sync = run_sync
        self._name_owner = name_owner
        self._is_owner_running = is_owner_running
        self._on_refusal = on_refusal
        self._log = log

    @contextmanager
    def enter(self, scenario: Callable[..., Any]) -> Iterator[None]:
        """Replace the world for a `with` block, in all modules, and in the globals of the user's."""
        state = random.getstate()
        ended = set(lease._ended)  # noqa: SLF001  # the names of holders are the same in each run of a seed
        lease._ended.clear()  # noqa: SLF001
        random.seed(self._chance.getrandbits(64))
        try:
            with ExitStack() as patches:
                for where, name, stand_in in self._list_replacements():
                    patches.enter_context(patch.object(where, name, stand_in))
                for variables, name, stand_in in self._list_user_replacements(scenario):
                    patches.enter_context(patch.dict(variables, {name: stand_in}))
                yield
        finally:
            random.setstate(state)
            lease._ended.clear()  # noqa: SLF001
            lease._ended.update(ended)  # noqa: SLF001

    def _list_replacements(self) -> Iterator[tuple[Any, str, Any]]:
        for name, convert in _CLOCKS.items():
            yield time, name, self._make_clock(name, convert)
        yield time, "clock_gettime", self._make_clock("clock_gettime", lambda now: _UPTIME + now)
        yield time, "sleep", partial(self._refuse, "time.sleep()", _USE_SLEEP)
        yield os, "urandom", self._chance.randbytes
        yield random, "_urandom", self._chance.randbytes
        yield uuid_utils, "uuid7", self._make_uuid7
        yield threading.Thread, "start", self._make_refusal("threading.Thread.start()", _NO_THREADS)
        yield subprocess.Popen, "__init__", self._make_refusal("subprocess.Popen()", _NO_SOCKETS)
        for name in ("connect", "connect_ex", "bind", "sendto"):
            yield socket.socket, name, self._make_refusal(f"socket.{name}()", _NO_SOCKETS)
        yield socket, "getaddrinfo", self._make_refusal("socket.getaddrinfo()", _NO_SOCKETS)
        yield anyio.to_thread, "run_sync", self._run_in_thread
        yield Logger, "_write", lambda _, level, event, values: self._log(level, f"{event} {values or ''}".strip())
        yield lease, "_is_running", self._is_owner_running
        this_process = lease.this_process  # before it is replaced itself
        for name, module in list(sys.modules.items()):
            if name.startswith("cantrip_actors.") and vars(module).get("this_process") is this_process:
                yield module, "this_process", self._name_owner

    def _list_user_replacements(self, scenario: Callable[..., Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Yield the global variables of the user's modules that are clocks, and what stands in for them."""
        stand_ins: dict[int, Any] = {
            id(_TIME[name]): self._make_clock(name, convert)  # imported by its name
            for name, convert in _CLOCKS.items()
        }
        stand_ins[id(_TIME["sleep"])] = partial(self._refuse, "time.sleep()", _USE_SLEEP)
        dated = self._guard_class(dt.datetime, ("now", "utcnow", "today"))
        dates = self._guard_class(dt.date, ("today",))
        stand_ins[id(dt.datetime)], stand_ins[id(dt.date)] = dated, dates
        stand_ins[id(dt)] = SimpleNamespace(**{**vars(dt), "datetime": dated, "date": dates})
        for variables in _list_user_globals(scenario):
            for name, value in list(variables.items()):
                if id(value) in stand_ins:
                    yield variables, name, stand_ins[id(value)]

    def _make_clock(self, name: str, convert: Callable[[float], float]) -> Callable[..., float]:
        now = self._now

        def read(*_: object) -> float:
            if _is_user_code(sys._getframe(1)):  # noqa: SLF001  # as documented, for this interpreter
                self._refuse(f"time.{name}()", _USE_TIME)
            return convert(now())

        return read

    def _guard_class(self, kind: type, names: tuple[str, ...]) -> type:
        """Return a class like a class of dates whose methods that read the clock are refused."""

        class Meta(type(kind)):  # type: ignore[misc]
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, kind)

            def __call__(cls, *args: Any, **named: Any) -> Any:
                return kind(*args, **named)

        methods = {name: staticmethod(partial(self._refuse, f"{kind.__name__}.{name}()", _USE_TIME)) for name in names}
        return Meta(kind.__name__, (kind,), methods)

    def _make_uuid7(self) -> UUID:
        """Return an id that sorts by the simulated time."""
        milliseconds, bits = int((EPOCH + self._now()) * 1000), self._chance.getrandbits(74)
        return UUID(int=milliseconds << 80 | 7 << 76 | (bits >> 62) << 64 | 2 << 62 | bits & (1 << 62) - 1)

    def _run_in_thread(self, function: Callable[..., Any], *args: Any, **options: Any) -> Awaitable[Any]:
        if _is_user_code(sys._getframe(1)):  # noqa: SLF001  # as documented, for this interpreter
            self._refuse("anyio.to_thread.run_sync()", _NO_THREADS)
        return self._run_sync(function, *args, **options)

    def _make_refusal(self, what: str, why: str) -> Callable[..., NoReturn]:
        def refuse(*_: object, **__: object) -> NoReturn:
            self._refuse(what, why)

        return refuse

    def _refuse(self, what: str, why: str, *_: object, **__: object) -> NoReturn:
        error = NotSimulated(f"{what} {_find_user_line()} is not simulated: {why}")
        self._on_refusal(error)
        raise error


_TIME: Final = dict(vars(time))
"""The clocks of the machine."""

_seen: dict[str, bool] = {}
"""Whether a file is the user's."""


def _is_user_file(name: str) -> bool:
    is_user = _seen.get(name)
    if is_user is None:
        is_user = _seen[name] = not name.startswith("<") and not str(Path(name).resolve()).startswith(_LIBRARIES)
    return is_user


def _is_user_code(frame: FrameType) -> bool:
    return _is_user_file(frame.f_code.co_filename)


def _find_user_line() -> str:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # as documented, for this interpreter
    while frame is not None:
        if _is_user_code(frame):
            return f"at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "in a library"


def _list_user_globals(scenario: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the variables of the modules that are the user's, and of that of the scenario."""
    found = {}
    variables = getattr(scenario, "__globals__", None)
    if variables is not None:
        found[id(variables)] = variables
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            file = module.__dict__.get("__file__")
            if isinstance(file, str) and _is_user_file(file):
                found[id(module.__dict__)] = module.__dict__
    return list(found.values())

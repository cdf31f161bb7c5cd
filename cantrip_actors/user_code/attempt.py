"""Call a user's function and return its result or its exception: the only boundary around user code (D-011).

Every exception of user code becomes a value here, including `SystemExit` (argparse, `sys.exit` in a library) and
`GeneratorExit`. Three exceptions are not the user code's own and pass through:

- the cancellation of the present task, also where other errors came with it in a group;
- `GeneratorExit` that Python throws into a coroutine that will not be continued;
- Ctrl-C: a `KeyboardInterrupt` in the main thread is handed to the handler of SIGINT, which ends the program in order,
  since an interrupt that leaves an actor would end the program in the middle. The call then waits for its cancellation,
  so that no loom has the interrupt as its result. In any other thread it is the user code's own.

One exit is out of reach: if a task that user code has started raises `SystemExit`, asyncio raises it out of the event
loop before any other task sees it, and so ends the program. Only a task factory for the whole event loop could change
that, and the event loop belongs to the program. On trio it is an error observation like any other.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import RunVar

from cantrip_actors.user_code.threads import get_limiter, run_in_thread

T = TypeVar("T")

CodeKind: TypeAlias = Literal["gate", "query"]

CodeWatch: TypeAlias = Callable[[CodeKind, str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Does a call: its kind, the name of the gate or of the crystal, and the function that does it."""

WATCH: Final[ContextVar[CodeWatch | None]] = ContextVar("cantrip_actors_watch", default=None)
"""The threads that make the calls of the tasks below: `cantrip_actors.testing`, which crashes a process in the middle
of one."""

ENDING: Final = 1.0
"""Seconds in which a program that Ctrl-C ends begins to cancel its calls. Another program continues, as a service
that drains first does: there the interrupt is an exception like any other."""

LONGEST: Final = 10_000
"""Characters of an exception's message that are used."""


class Failure(NamedTuple):
    """The exception that user code raised."""

    exception: BaseException


def watch(kind: CodeKind, name: str, call: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Return the function that does a call: as it is, or watched."""
    watcher = WATCH.get()
    return call if watcher is None else partial(watcher, kind, name, call)


async def attempt(work: Callable[[], Awaitable[T]]) -> T | Failure:
    """Await `work()` and return its result or its exception."""
    try:
        return await await_user_code(work)
    except BaseException as failure:
        if _let_through(failure):
            await anyio.sleep(ENDING)
        return Failure(failure)


def attempt_now(work: Callable[[], T]) -> T | Failure:
    """Call `work()`, which does not wait, and return its result or its exception."""
    try:
        return call_user_code(work)
    except BaseException as failure:
        _let_through(failure)
        return Failure(failure)


async def await_user_code(work: Callable[[], Awaitable[T]]) -> T:
    """Await `work()`. In this frame and those below Ctrl-C may interrupt an actor, because user code may never wait."""
    return await work()


def call_user_code(work: Callable[[], T]) -> T:
    """Call `work()`, likewise."""
    return work()


class Threads:
    """Worker threads for blocking functions, at most `limit` at once in one event loop.

    Each kind of user code has threads of its own: a gate in a thread may wait for a crystal in a thread.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._limit = limit
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(name)

    async def attempt(self, work: Callable[[], T], *, on_refusal: Callable[[], object] = lambda: None) -> T | Failure:
        """Call `work` in a thread and return its result or its exception.

        A cancelled task waits until `work` has ended, `threads.GRACE` seconds at most: then it calls `on_refusal`.
        """
        limiter = get_limiter(self._limiter, self._limit)
        return await run_in_thread(lambda: attempt_now(work), limiter, on_refusal=on_refusal)


def leaves(exception: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, at any depth, or the exception itself."""
    if isinstance(exception, BaseExceptionGroup):
        for inner in exception.exceptions:
            yield from leaves(inner)
    else:
        yield exception


def text_of(exception: BaseException) -> str:
    """Return the message of an exception as encodable text, cut at LONGEST. Its `str` is user code, and may raise."""
    text = attempt_now(lambda: str(exception))
    if isinstance(text, Failure):
        return "(an error whose message cannot be shown)"
    if len(text) > LONGEST:  # cut before it is encoded, which would block the event loop
        text = f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _let_through(failure: BaseException) -> bool:
    """Raise an exception that is not the user code's own; see the head of this file. Return whether it is Ctrl-C."""
    if isinstance(failure, GeneratorExit):
        traceback = failure.__traceback__
        if traceback is not None and traceback.tb_next is None:  # thrown in here: no frame of user code raised it
            raise failure
    for leaf in leaves(failure):
        # a failure that left together with the cancellation would survive the scope that takes the cancellation
        if _is_cancellation(leaf):
            raise leaf from None
    is_interrupt = any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(failure))
    return is_interrupt and _interrupt()


def _is_cancellation(failure: BaseException) -> bool:
    """True if it is the present task that is cancelled, and not something that it waited for."""
    trio = sys.modules.get("trio")  # code under it has imported it
    if trio is not None and isinstance(failure, trio.Cancelled):
        return True
    if not isinstance(failure, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a worker thread, or under trio: a stray
        return False
    return task is None or task.cancelling() > 0


def _interrupt() -> bool:
    """End the program outside this task as after Ctrl-C; return False in a thread, which has no part in that."""
    if threading.current_thread() is not threading.main_thread():
        return False
    raise_signal = signal.raise_signal
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        raise_signal = trio.lowlevel.enable_ki_protection(_raise_signal)  # else it would be raised right here again
    raise_signal(signal.SIGINT)
    return True


def _raise_signal(number: int) -> None:
    signal.raise_signal(number)

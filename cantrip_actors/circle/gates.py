"""Gates at work: the named boundary around a gate call (D-011, CIRCLE-3, CIRCLE-4, CIRCLE-5).

Whatever happens behind a gate comes back as an observation: its result as JSON, what it raised as `TypeName: message`,
its deadline as an error that says so. Three things are no failure of the gate and pass through: the cancellation of the
entity, KeyboardInterrupt and SystemExit.

This file does not decide whether a gate may be called or with what (`model/circle.py`, `model/gate.py`), keeps no
record (that is the loom's) and does not run `done` or `call_agent`, which have no function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import RunVar

from cantrip_actors.circle.plain import NotPlain, Pictured, pictured
from cantrip_actors.model.gate import Gate
from cantrip_actors.model.messages import ToolCall, encodable
from cantrip_actors.model.turn import Observation
from cantrip_actors.model.wrapping import GateCall

__all__ = ["Failed", "GateError", "guarded", "run_gate", "told"]

T = TypeVar("T")

THREADS: Final = 256
"""Blocking gates at once in one event loop. They wait for disks and networks, so it is memory that bounds them."""

LONGEST: Final = 10_000
"""Characters of an error's message that reach the crystal: enough to steer by."""

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.circle threads")


class GateError(Exception):
    """Raise it in a gate to say what went wrong in your own words: the observation is its message."""


class Failed(NamedTuple):
    """What went wrong, as the entity reads it."""

    text: str


async def run_gate(gate: Gate, call: ToolCall, args: Mapping[str, Any], site: GateCall | None = None) -> Observation:
    """Call the gate with `args` and its dependencies, and return what comes of it.

    `args` are those that `gate.check(call)` bound; `site` is for a function that wants to know who calls. An async
    function runs here, a blocking one in a worker thread. The thread is abandoned when the entity is cancelled or
    `gate.timeout` (seconds) is over: nobody can stop it, and it must not keep the entity waiting. What is wrapped
    around the gate is not run here, but in `wrapping.py`.

    Raises only what ends the entity itself: cancellation, KeyboardInterrupt, SystemExit.
    """
    function = gate.function
    assert function is not None, f"{gate.name} is carried out by the runtime"  # a bug of ours, no observation
    if gate.site is not None:
        args = {**args, gate.site: site}
    result = await guarded(partial(_call if gate.timeout is None else _in_time, gate, function, args))
    if isinstance(result, Failed):
        return _error(gate, call, result.text)
    if type(result) is Pictured:
        return Observation(gate.name, call.args, result.value, False, call.id, gate.ephemeral, result.images)
    return Observation(gate.name, call.args, result, False, call.id, gate.ephemeral)


async def guarded(work: Callable[[], Awaitable[T]]) -> T | Failed:
    """What `work` returns, or what to tell the entity of what it raised: the boundary of this file's head."""
    try:
        return await work()
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        return Failed("CancelledError: something that the gate waited for was cancelled")
    except Exception as failure:
        return Failed(told(failure))
    except BaseExceptionGroup as group:
        # The entity was cancelled while something behind the gate failed. The cancellation is what counts: let out of
        # here whole, the failure would survive the scope that takes the cancellation, and crash whoever stands there.
        cancelled, others = group.split(anyio.get_cancelled_exc_class())
        if cancelled is None or (others is not None and not isinstance(others, Exception)):
            raise
        raise next(_leaves(cancelled)) from None


async def _in_time(gate: Gate, function: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    with anyio.move_on_after(gate.timeout):
        return await _call(gate, function, args)
    return Failed(f"{gate.name} timed out after {gate.timeout:g} s")


async def _call(gate: Gate, function: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    try:
        if gate.blocking:
            work = partial(function, **args, **gate.dependencies)
            (result,) = await anyio.to_thread.run_sync(_work, work, abandon_on_cancel=True, limiter=_threads())
            return pictured(await result) if inspect.isawaitable(result) else result
        result = function(**args, **gate.dependencies) if gate.dependencies else function(**args)
        if inspect.isawaitable(result):
            result = await result
        return result if type(result) is str and result.isascii() else pictured(result)
    except NotPlain as problem:
        return Failed(_unplain(gate, problem))


def _work(function: partial[Any]) -> tuple[Any]:
    """A blocking gate, in its thread: making JSON of a large result or a lazy one would block the loop as well.

    In a tuple, because trio takes a bare coroutine that comes back from a thread for a mistake.
    """
    result = function()
    return (result if inspect.isawaitable(result) else pictured(result),)


def _threads() -> anyio.CapacityLimiter:
    """The gates' own limiter, one a loop: the default one of 40 is for what the runtime itself needs."""
    try:
        return _limiter.get()
    except LookupError:
        made = anyio.CapacityLimiter(THREADS)
        _limiter.set(made)
        return made


def _is_cancelled() -> bool:
    """Whether it is the present task that is cancelled, and not something that it waited for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio has an exception of its own: asyncio's is a stray there
        return False
    return task is None or task.cancelling() > 0


def _error(gate: Gate, call: ToolCall, text: str) -> Observation:
    return Observation(gate.name, call.args, text, True, call.id, gate.ephemeral)


def _unplain(gate: Gate, problem: NotPlain) -> str:
    return (
        f"{gate.name} returned {problem}, which is no JSON value: expected text, numbers, lists, dicts, dataclasses, "
        "pydantic models or images; the gate did run"
    )


def told(failure: Exception) -> str:
    """What the entity reads of a failure: a line for each leaf of a group, no traceback and no path of the host."""
    lines = list(dict.fromkeys(_line(leaf) for leaf in _leaves(failure)))
    text = "\n".join(lines)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:
            yield from _leaves(inner)
    else:
        yield failure


def _line(failure: BaseException) -> str:
    name = type(failure).__name__
    if isinstance(failure, OSError) and failure.filename is not None and failure.strerror:
        # its text has the whole path of the host; the entity knows which file it asked for
        return f"{name}: {failure.strerror}: {_last_part(failure.filename)!r}"
    text = _message(failure)
    if isinstance(failure, GateError) and text:
        return text
    return f"{name}: {text}" if text else name


def _message(failure: BaseException) -> str:
    """Its message, as text that an encoder takes: an exception's own `str` may raise, too."""
    try:
        text = str(failure)
    except Exception:
        return "(an error whose message cannot be shown)"
    return encodable(text)


def _last_part(path: object) -> str:
    text = path.decode(errors="backslashreplace") if isinstance(path, bytes) else str(path)
    return text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]

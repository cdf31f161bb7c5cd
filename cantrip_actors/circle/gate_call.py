"""Run one gate and return its observation (D-011, CIRCLE-3, CIRCLE-4, CIRCLE-5).

Every outcome of a gate is an observation: its result as JSON, an exception as `TypeName: message`, a timeout as an
error that says so. `user_code/attempt.py` is the boundary, and documents which exceptions pass through.

This file does not decide whether a gate may be called or with which arguments (`terms/circle.py`, `terms/gate.py`),
writes no record (the loom does) and does not run `done` or `call_agent`, which have no function.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import anyio

from cantrip_actors.circle.plain import NotPlain, Pictured, collect_with_images, convert_with_images
from cantrip_actors.machine.events import Inquired
from cantrip_actors.records.records import Observation
from cantrip_actors.terms.bounds import TooLarge
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import ToolCall, make_encodable
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.wrapper import GateCall
from cantrip_actors.user_code import Failure, Threads, attempt, leaves, text_of, watch
from cantrip_actors.user_code.threads import GRACE

ReportError = Callable[[str, str, BaseException], None]
"""Logs an exception of user code with its traceback. Arguments: what happened, the name of the gate, the exception."""

THREADS: Final = 256
"""Concurrent blocking gates in one event loop. They wait for disks and networks, so memory is what limits them."""

LONGEST: Final = 20_000
"""Characters of the messages of a group of errors that the crystal gets; `text_of` bounds each of them."""

SHORT: Final = 100_000
"""Characters of a result that is too short to exceed any bound on values."""

_WAITS: Final = (Awaitable, AsyncIterator)
"""What a blocking function may return for the event loop to wait for."""

_threads: Final = Threads("cantrip_actors.circle threads", THREADS)


class GateError(Exception):
    """An expected failure that a gate raises: the observation is its message, without the type's name."""


class InputNeeded(Exception):  # it is a request, not an error
    """Raised by a gate to ask a person. `args` are the question, the answer's JSON Schema, and a state to keep.

    That ends the gate. Once the person has answered, it is called again with `GateCall.inquiry`.
    """


async def run_gate(
    gate: Gate, call: ToolCall, args: Mapping[str, Any], site: GateCall | None = None, report: ReportError | None = None
) -> Observation | Inquired:
    """Call the gate with `args` and its dependencies; return the observation, or the question that it asks a person.

    `args` are the arguments bound by `gate.check(call)`; `site` is for a function with a parameter for the call itself.
    An async function runs here, a blocking one in a worker thread. A gate that is cancelled, or whose
    `gate.timeout` (seconds) is over, has ended when this returns or raises; a thread that does not end within
    `threads.GRACE` seconds is reported and left. The steps around the gate run in `wrapped_call.py`, not here.
    `report` is called with an exception of the gate, except for a GateError, which is meant for the entity alone.

    Raises only the cancellation of the entity.
    """
    function = gate.function
    assert function is not None, (
        f"{gate.name} is carried out by the runtime"
    )  # a bug of this library, not an observation
    if site is not None:
        args = {**args, **{name: part(site) for name, part in gate.site}}
    call_gate, attempts = _call if gate.timeout is None else _call_in_time, 1
    call_once = watch("gate", gate.name, partial(call_gate, gate, function, args, report))
    if gate.retry is None:
        result = await attempt(call_once)
    else:
        result, attempts = await _call_repeatedly(gate.name, gate.retry, call_once, report)
    if isinstance(result, Failure):
        problem = result.exception
        if isinstance(problem, InputNeeded):
            return Inquired(*problem.args)
        report_failure(report, "a gate raised an exception", gate.name, problem)
        text = _explain_value(gate, problem) if isinstance(problem, NotPlain) else explain(problem)
        return Observation(gate.name, call.args, text, True, call.id, gate.ephemeral, attempts=attempts)
    images = NO_IMAGES
    if type(result) is Pictured:
        result, images = result
    return Observation(gate.name, call.args, result, False, call.id, gate.ephemeral, images, attempts)


def report_failure(report: ReportError | None, what: str, gate: str, failure: BaseException) -> None:
    """Report an exception of user code, unless it is a GateError or a group of them."""
    if report is not None and not all(isinstance(leaf, GateError) for leaf in leaves(failure)):
        report(what, gate, failure)


async def _call_repeatedly(
    gate: str, retry: Retry, call: Callable[[], Awaitable[Any]], report: ReportError | None
) -> tuple[Any, int]:
    """Return the result or the Failure of the last attempt, and the number of attempts. Each has the gate's timeout."""
    attempts = 0
    while True:
        result: Any = await attempt(call)
        attempts += 1
        if not (isinstance(result, Failure) and isinstance(result.exception, retry.on)):
            return result, attempts
        delay = retry.delay(attempts, None, None, random.random())
        if delay is None:
            return result, attempts
        report_failure(report, "a gate raised an exception, and is called again", gate, result.exception)
        await anyio.sleep(delay)


async def _call_in_time(
    gate: Gate, function: Callable[..., Any], args: Mapping[str, Any], report: ReportError | None
) -> Any:
    with anyio.move_on_after(gate.timeout):
        return await _call(gate, function, args, report)
    raise GateError(f"{gate.name} timed out after {gate.timeout:g} s")


async def _call(gate: Gate, function: Callable[..., Any], args: Mapping[str, Any], report: ReportError | None) -> Any:
    """Return the result as JSON, or a Failure that a thread raised.

    A Failure is not raised again here, where an interrupt raised by the gate would interrupt the whole program.
    """
    if gate.blocking:
        work = partial(_call_and_convert, partial(function, **args, **gate.dependencies))
        result = await _threads.attempt(work, on_refusal=partial(_report_refusal, report, gate.name))
        return await _convert(result) if isinstance(result, _WAITS) else result
    result = function(**args, **gate.dependencies) if gate.dependencies else function(**args)
    return await _convert(result)


async def _convert(result: Any) -> Any:
    """Return the result of a function on the event loop as JSON: what it awaits, or all that it yields."""
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, AsyncIterator):
        return await collect_with_images(result)
    return result if type(result) is str and result.isascii() and len(result) < SHORT else convert_with_images(result)


def _report_refusal(report: ReportError | None, gate: str) -> None:
    """Report a blocking gate that goes on although its call was cancelled: its result reaches nothing."""
    report_failure(report, "a gate does not end", gate, TimeoutError(f"it was cancelled {GRACE:g} s ago, and runs on"))


def _call_and_convert(function: partial[Any]) -> Any:
    """Call a blocking gate; convert large and lazy results to JSON here too, because that would block the loop."""
    result = function()
    return result if isinstance(result, _WAITS) else convert_with_images(result)


def _explain_value(gate: Gate, problem: NotPlain) -> str:
    if isinstance(problem, TooLarge):
        return f"{gate.name} returned {problem}: ask it for less, or for a part; the gate did run"
    return (
        f"{gate.name} returned {problem}, which is not a JSON value: expected text, numbers, lists, dicts, "
        "dataclasses, pydantic models or images; the gate did run"
    )


def explain(failure: BaseException) -> str:
    """Return a failure's text for the entity: a line for each error of a group, no traceback, no host path."""
    lines = list(dict.fromkeys(_render_line(leaf) for leaf in leaves(failure)))
    text = "\n".join(lines)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _render_line(failure: BaseException) -> str:
    name = type(failure).__name__
    if isinstance(failure, OSError) and failure.filename is not None and failure.strerror:
        # its text has the full path on the host; the entity knows which file it asked for
        return make_encodable(f"{name}: {failure.strerror}: {_get_last_part(failure.filename)!r}")
    text = text_of(failure)
    if isinstance(failure, GateError) and text:
        return text
    if isinstance(failure, asyncio.CancelledError):
        return f"{name}: something that the gate waited for was cancelled"
    return f"{name}: {text}" if text else name


def _get_last_part(path: object) -> str:
    text = path.decode(errors="backslashreplace") if isinstance(path, bytes) else str(path)
    return text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]

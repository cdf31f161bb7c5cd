"""The Python medium: programs in the interpreter Monty, which is none of the host's Python (see docs/python-medium.md).

A step borrows a worker, gives it the sandbox's bytes, and gets JSON and bytes back. Between two steps the sandbox is
those bytes and nothing else: a few kilobytes, which can be stored, answered twice, or restored by another process.

A worker computes the step and makes JSON of what comes out of it (`steps.py`). So nothing that a program makes is
converted in this process, and a worker that takes too long over it is ended.

This file knows nothing of actors, looms or wards. How values, signatures and errors cross is in the modules
beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from cantrip_actors.circle.medium import (
    Answer,
    Exceeded,
    Finished,
    LimitExceeded,
    Limits,
    Raised,
    Stepped,
    Suspended,
)
from cantrip_actors.circle.python.frames import Frame
from cantrip_actors.circle.python.gates import callables, capability, for_calls, for_check
from cantrip_actors.circle.python.snapshots import ENGINE, pack, unpack
from cantrip_actors.circle.python.workers import Worker, WorkerEnded, borrow
from cantrip_actors.terms.bounds import BYTES
from cantrip_actors.terms.messages import ToolDefinition, encodable

__all__ = ["PythonMedium", "PythonSandbox"]

_ESCAPED: Final = 6
"""Bytes that a character of the output may take in JSON."""


class PythonMedium:
    """Python, as a language of circles. With `type_check`, calls of gates are checked before a program runs."""

    name = "python"
    engine = ENGINE

    def __init__(self, *, type_check: bool = False) -> None:
        self._type_check = type_check

    def capability(self, gates: Sequence[ToolDefinition], limits: Limits) -> str:
        """What the entity is told of its language, `gates` and `limits`."""
        return capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: Limits) -> PythonSandbox:
        """A new, empty sandbox. Costs nothing until something runs in it."""
        return PythonSandbox(gates, limits, type_check=self._type_check)


class PythonSandbox:
    """One entity's Python. Not thread-safe, but for `interrupt`, which is there for another thread."""

    _lock = threading.Lock()  # of all sandboxes: it is held for moments

    def __init__(self, gates: Sequence[ToolDefinition], limits: Limits, *, type_check: bool = False) -> None:
        self._gates, self._check = _described(gates, check=type_check)
        self.limits = limits
        self._idle = b""
        """The sandbox as the last program left it, in the interpreter's form; empty where none has run."""
        self._worker: Worker | None = None
        self._is_interrupted = False

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code` with `variables` set first."""
        return self._step("begin", self._idle, code=encodable(code), inputs=variables or {}, check=self._check)

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate. The same suspension may be answered again: that is a fork.

        Raises ValueError where the suspended program has been damaged since.
        """
        value = str(answer.value) if answer.is_error else answer.value
        said = {"value": value, "is_error": answer.is_error, "closed": answer.closed}
        return self._step("answer", suspended.state, answer=said)

    def interrupt(self) -> None:
        """End the step that runs in another thread. Without one, nothing happens."""
        with self._lock:
            self._is_interrupted = True
            if self._worker is not None:
                self._worker.kill()

    def dump(self) -> bytes:
        """The sandbox between two turns."""
        return pack("idle", {}, self._idle)

    def load(self, image: bytes) -> None:
        """Become what `dump` was made of. The narrower of its limits and this sandbox's apply from then on."""
        _, idle = unpack(image, "idle")
        if idle:
            self._restore("load", idle)
        self._idle = idle

    def resume(self, image: bytes) -> Suspended:
        """The suspended program, ready for `answer`; `load` the turn before first."""
        unpack(image, "suspended")
        step = self._restore("resume", image)
        assert isinstance(step, Suspended)
        return step

    def close(self) -> None:
        """Forget everything. There is nothing else to give back: no worker is held."""
        self._idle = b""

    def _step(self, do: str, state: bytes, **asked: Any) -> Stepped:
        """One step in a worker. Whatever ends it, the worker goes back, and the sandbox has moved on or has not."""
        self._is_interrupted = False  # whatever came before this step had nothing to end
        try:
            return self._ask(do, state, asked)
        except LimitExceeded as problem:
            return problem.ended(self.limits, "")
        except WorkerEnded as ended:
            return LimitExceeded(ended.limit).ended(self.limits, ended.output)

    def _restore(self, do: str, state: bytes) -> Stepped:
        """Have a worker load bytes where nothing runs. Raises ValueError."""
        self._is_interrupted = False
        try:
            return self._ask(do, state, {})
        except WorkerEnded as ended:
            raise ValueError(f"the interpreter cannot load the image: {ended}") from ended

    def _ask(self, do: str, state: bytes, asked: dict[str, Any]) -> Stepped:
        """Have a worker do something. Raises ValueError for damaged bytes, LimitExceeded and WorkerEnded."""
        limits = self.limits
        bounds = {
            "seconds": limits.seconds,
            "memory": limits.memory,
            "output": limits.output,
            "gate_calls": limits.gate_calls,
            "patience": limits.patience,
        }
        with borrow() as worker:
            with self._lock:
                self._worker = worker
            try:
                if self._is_interrupted:  # while it waited for a worker
                    raise LimitExceeded("interrupted")
                most = 2 * BYTES + _ESCAPED * limits.output
                said = {"do": do, "gates": self._gates, "limits": bounds, **asked}
                frame = worker.compute(said, state, most)
            finally:
                with self._lock:
                    self._worker = None
        return self._stepped(frame, state)

    def _stepped(self, frame: Frame, state: bytes) -> Stepped:
        said, made = frame
        kind = said.get("step")
        if kind == "suspended":
            image = made or state
            return Suspended(said["gate"], said["args"], image, said["output"], image)
        if made:
            self._idle = made
        match kind:
            case "finished":
                return Finished(said["value"], said["output"])
            case "raised":
                return Raised(said["error"], said["output"])
            case "exceeded":
                return Exceeded(said["limit"], said["output"])
        raise ValueError(said["damaged"])


_last: tuple[Sequence[ToolDefinition], bool, tuple[orjson.Fragment, orjson.Fragment | None]] | None = None


def _described(gates: Sequence[ToolDefinition], *, check: bool) -> tuple[orjson.Fragment, orjson.Fragment | None]:
    """What a worker has to know of the gates, once for sandboxes that are opened one after the other for the same."""
    global _last  # noqa: PLW0603  # put there in one step, whatever thread does it
    known = _last
    if known is None or known[0] is not gates or known[1] is not check:
        named = callables(gates)
        calls = orjson.Fragment(orjson.dumps(for_calls(named)))
        known = _last = gates, check, (calls, orjson.Fragment(orjson.dumps(for_check(named))) if check else None)
    return known[2]

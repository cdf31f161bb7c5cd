"""The Python medium: an entity's programs run in the Monty interpreter, never in the host's (docs/python-medium.md).

A step borrows a worker, sends it the sandbox's bytes, and receives JSON and bytes. Between two steps a sandbox is only
those bytes: a few kilobytes that can be stored, answered twice (a fork), or restored by another process.

The worker computes the step and converts its results to JSON (`steps.py`). So this process never converts a value that
a program made, and can kill a worker that takes too long.

This file does not know actors, looms or wards. The modules next to it convert values, signatures and errors.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from msgspec import convert
from msgspec.structs import replace

from cantrip_actors.circle.medium import Answer, LimitExceeded, Medium, ProgramLimits, Stepped, Suspended
from cantrip_actors.circle.python.gates import describe_for_calls, name_callables, write_capability
from cantrip_actors.circle.python.snapshots import ENGINE, pack, unpack
from cantrip_actors.circle.python.workers import Worker, WorkerEnded, borrow
from cantrip_actors.terms.bounds import BYTES
from cantrip_actors.terms.languages import BUILT_IN
from cantrip_actors.terms.messages import ToolDefinition, make_encodable

_ESCAPED: Final = 6
"""The most bytes that one character of the output takes in JSON."""


class PythonMedium(Medium):
    """Python programs, in the interpreter Monty. Opening a sandbox starts no process: its first step does."""

    name = "python"
    engine = ENGINE
    fences = BUILT_IN[name].fences

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        """Return the text for the entity."""
        return write_capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> PythonSandbox:
        """Return a new, empty sandbox."""
        return PythonSandbox(gates, limits)


class PythonSandbox:
    """One entity's sandbox. Not thread-safe, except `interrupt`, which another thread calls."""

    def __init__(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        self._gates = describe_for_calls(name_callables(gates))
        self.limits = limits
        self._idle = b""
        """The interpreter's snapshot after the last program; empty before the first one."""
        self._worker: Worker | None = None
        self._is_interrupted = False
        self._lock = threading.Lock()

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code` with `variables` set first, until it calls a gate or ends."""
        return self._step("begin", self._idle, code=make_encodable(code), inputs=variables or {})

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate. Answering the same suspension again forks the program.

        Raises ValueError if the suspended program is damaged.
        """
        value = str(answer.value) if answer.is_error else answer.value
        result = {"value": value, "is_error": answer.is_error, "closed": answer.closed}
        return self._step("answer", suspended.state, answer=result)

    def interrupt(self) -> None:
        """End the step that runs in another thread; it returns Exceeded. Does nothing between steps."""
        with self._lock:
            self._is_interrupted = True
            if self._worker is not None:
                self._worker.kill()

    def dump(self) -> bytes:
        """Return a snapshot of the sandbox between two turns."""
        return pack("idle", {}, self._idle)

    def load(self, image: bytes) -> None:
        """Restore a `dump`; the smaller of its limits and this sandbox's limits apply from then on.

        Raises ValueError for another engine's snapshot.
        """
        _, idle = unpack(image, "idle")
        if idle:
            self._restore("load", idle)
        self._idle = idle

    def resume(self, image: bytes) -> Suspended:
        """Return the suspended program of a snapshot, ready for `answer`; `load` the turn before first.

        Raises ValueError for another engine's snapshot.
        """
        unpack(image, "suspended")
        step = self._restore("resume", image)
        assert isinstance(step, Suspended)
        return step

    @property
    def memory(self) -> int:
        """The bytes of the program's variables after the last turn."""
        return len(self._idle)

    def close(self) -> None:
        """Drop the sandbox's state. No other resource needs releasing: a sandbox holds no worker between steps."""
        self._idle = b""

    def _step(self, do: str, state: bytes, **request_fields: Any) -> Stepped:
        """Compute one step in a worker. A step that exceeds a limit leaves the sandbox as it was."""
        self._is_interrupted = False  # an interrupt before this step had nothing to end
        try:
            return self._ask(do, state, request_fields)
        except LimitExceeded as problem:
            return problem.end_step(self.limits, "")
        except WorkerEnded as ended:
            return LimitExceeded(ended.limit).end_step(self.limits, ended.output)

    def _restore(self, do: str, state: bytes) -> Stepped:
        """Load a snapshot in a worker, without running any program code. Raises ValueError."""
        self._is_interrupted = False
        try:
            return self._ask(do, state, {})
        except WorkerEnded as ended:
            raise ValueError(f"the interpreter cannot load the snapshot: {ended}") from ended

    def _ask(self, do: str, state: bytes, request_fields: dict[str, Any]) -> Stepped:
        """Send a request to a worker. Raises ValueError for a damaged snapshot, LimitExceeded and WorkerEnded."""
        with borrow() as worker:
            with self._lock:
                self._worker = worker
            try:
                if self._is_interrupted:  # while this thread waited for a worker
                    raise LimitExceeded("interrupted")
                most = 2 * BYTES + _ESCAPED * self.limits.output
                request = {"do": do, "gates": self._gates, "limits": asdict(self.limits), **request_fields}
                reply, new_state = worker.compute(request, state, most)
            finally:
                with self._lock:
                    self._worker = None
        if "damaged" in reply:
            raise ValueError(reply["damaged"])
        step: Stepped = convert(reply, Stepped)
        if isinstance(step, Suspended):
            return replace(step, state=new_state or state, image=new_state or state)
        self._idle = new_state or self._idle
        return step

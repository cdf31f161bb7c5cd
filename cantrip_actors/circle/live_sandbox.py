"""The base of sandboxes whose program waits for a gate in place, on a stack or in a process: JavaScript and the shell.

Such a program cannot be copied while it waits, so there is one suspension at a time and no snapshot of it. After a
crash the runtime loads the snapshot from before the turn and runs the turn again, with the recorded results of its
gates.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cantrip_actors.circle.medium import CLOSED, Answer, LimitExceeded, ProgramLimits, Stepped, Suspended
from cantrip_actors.terms.messages import ToolDefinition


class LiveSandbox(ABC):
    """One entity's program, which lives in this process or below it. A subclass runs it and undoes its changes."""

    def __init__(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        self.limits = limits
        self.memory: int | None = None
        """The bytes of the program's memory after the last turn, where a subclass counts them."""
        self._gates = {gate.name: gate for gate in gates}
        self._pending: Suspended | None = None
        """The gate call that the program waits for."""
        self._left = 0.0
        """Seconds of computing that the program has left."""
        self._calls = 0
        self._printed = 0
        self._output: list[str] = []
        self._gates_closed = False
        self._closed = False
        self._stepping = threading.Lock()
        """Held during a step, because another thread may interrupt or close the sandbox meanwhile."""
        self._is_computing = False

    @abstractmethod
    def _start(self, code: str, variables: Mapping[str, Any]) -> Stepped:
        """Run `code` until it calls a gate or ends. Raises LimitExceeded."""

    @abstractmethod
    def _continue(self, answer: Answer) -> Stepped:
        """Continue after a gate, until the next call or the end. Raises LimitExceeded."""

    @abstractmethod
    def _undo(self) -> None:
        """End the program, and restore the sandbox from before the turn."""

    @abstractmethod
    def _save(self) -> bytes | None:
        """Return a snapshot between two turns; None if none can be made."""

    @abstractmethod
    def _restore(self, image: bytes) -> None:
        """End the program, and restore a `_save`. Raises ValueError for other bytes."""

    @abstractmethod
    def _release(self) -> None:
        """End the program, and release all resources."""

    @abstractmethod
    def interrupt(self) -> None:
        """End the program, from any thread; the step returns Exceeded. Does nothing between turns."""

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code` until it calls a gate or ends. A program that is still suspended is undone first."""
        with self._stepping:
            self._check_open()
            if self._pending is not None:
                self._undo()
            self._left, self._calls, self._printed, self._gates_closed = self.limits.time, 0, 0, False
            self._output.clear()
            return self._step(lambda: self._start(code, variables or {}))

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate. Raises ValueError if `suspended` is not the call that the program waits for."""
        with self._stepping:
            self._check_open()
            if suspended is not self._pending:
                raise ValueError(
                    "expected an answer to the gate call that the program waits for, got one to another call"
                )
            self._pending = None
            self._left = min(self._left, self.limits.time)
            self._gates_closed = answer.closed
            return self._step(lambda: self._continue(answer))

    def dump(self) -> bytes | None:
        """Return a snapshot between two turns; None while a program is suspended, or if none can be made."""
        with self._stepping:  # `close` must not release the state meanwhile
            self._check_open()
            return None if self._pending is not None else self._save()

    def load(self, image: bytes) -> None:
        """Restore a `dump`. Raises ValueError for other bytes."""
        with self._stepping:
            self._check_open()
            self._restore(image)

    def close(self) -> None:
        """Release all resources; a step in progress ends as if interrupted."""
        self.interrupt()
        with self._stepping:
            if not self._closed:
                self._closed = True
                self._release()

    def resume(self, image: bytes) -> Suspended:  # noqa: ARG002  # the contract's signature
        """Raise ValueError: this medium has no snapshots of suspended programs."""
        raise ValueError("this medium has no snapshots of suspended programs")

    def _step(self, work: Callable[[], Stepped]) -> Stepped:
        self._is_computing = True
        try:
            step = work()
            self._pending = step if isinstance(step, Suspended) else None
        except LimitExceeded as problem:
            self._undo()
            return problem.end_step(self.limits, self._take_output())
        except BaseException:
            self._undo()  # the sandbox survives the failure of this turn
            raise
        finally:
            self._is_computing = False
        return step

    def _call(self, name: str, bind: Callable[[ToolDefinition], Mapping[str, Any]]) -> Suspended | str:
        """Return the suspension in a gate call, or the error message that the program gets instead.

        `bind` returns the arguments or raises ValueError. Raises LimitExceeded if there were too many calls.
        """
        if self._gates_closed:
            return CLOSED
        gate = self._gates.get(name)
        if gate is None:
            return f"gate not available: {name[:100]}"
        try:
            args = bind(gate)
        except ValueError as problem:
            return str(problem)
        self._calls += 1
        if self._calls > self.limits.gate_calls:
            raise LimitExceeded("gate_calls")
        return Suspended(name, args, object(), self._take_output())

    def _print(self, text: str) -> bool:
        """Store printed text up to the limit. Return whether all of it was stored."""
        room = self.limits.output - self._printed
        self._printed += len(text)
        if room >= 0:
            self._output.append(text[:room])
            if len(text) > room:
                self._output.append(f"\n… (cut: at most {self.limits.output} characters a turn are kept)\n")
        return len(text) <= room

    def _take_output(self) -> str:
        text = "".join(self._output)
        self._output.clear()
        return text

    @property
    def _has_program(self) -> bool:
        """Whether a program computes or waits for a gate, so that there is something to interrupt."""
        return self._is_computing or self._pending is not None

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the sandbox is closed")

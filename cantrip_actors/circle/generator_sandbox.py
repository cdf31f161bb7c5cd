"""The base of sandboxes that others write: a program is a generator, which yields its gate calls.

The generator waits for a gate where it has yielded, so a program that waits holds no thread. This base counts gate
calls and time, bounds the output, and undoes a turn that exceeds a limit. A subclass runs programs (`run`), and saves
and restores their state (`save`, `restore`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.live_sandbox import LiveSandbox
from cantrip_actors.circle.medium import Answer, Finished, LimitExceeded, ProgramLimits, Raised, Stepped, Suspended
from cantrip_actors.circle.plain import NotPlain, plain
from cantrip_actors.terms.messages import ToolDefinition


class ProgramCall(NamedTuple):
    """A gate call that `run` yields: the gate's name, and its arguments by name or in the order of its parameters."""

    gate: str
    args: Mapping[str, Any] | Sequence[Any] = ()


class ProgramError(Exception):
    """Raised by `run` for an error of the program, which the entity observes. Other exceptions are bugs of `run`."""


ProgramRun = Generator[ProgramCall, Any, Any]
"""A running program: it yields calls, is sent their results, and returns the program's value as JSON."""


class GeneratorSandbox(LiveSandbox):
    """One entity's sandbox, whose program is a generator. Subclass it.

    Between two turns `interrupt` does nothing; during one, the next `check_limits` ends the program.
    """

    def __init__(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        super().__init__(gates, limits)
        self._program: ProgramRun | None = None
        self._before = b""
        self._ends = 0.0
        """The time at which the step that runs has used up the program's seconds."""
        self._interrupted = False

    @abstractmethod
    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        """Run a program, with `variables` (JSON) set first, and return its value. Runs in a thread, and may block.

        `result = yield ProgramCall("search", ["milk"])` calls a gate. If the gate fails, the `yield` raises GateError.
        Call `check_limits` often. Raise ProgramError for an error of the program: its effects until then stay.
        """

    @abstractmethod
    def save(self) -> bytes:
        """Return the state that programs left, between two turns."""

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Replace the state by one that `save` returned. Raises ValueError for other bytes, and changes nothing."""

    def stop(self) -> None:
        """End what `run` waits for in another thread, as far as that is possible. Called by `interrupt`."""

    def release(self) -> None:
        """Release all resources."""

    def begin_turn(self) -> None:
        """Prepare for `undo_turn`. Override both if there is a cheaper way than to save the state before each turn."""
        self._before = self.save()

    def undo_turn(self) -> None:
        """Restore the state from before the turn."""
        self.restore(self._before)

    # ------------------------------------------------------------------------------------------- for `run` to call

    @property
    def seconds_left(self) -> float:
        """The seconds that the program may still take; 0 if it was interrupted."""
        return 0.0 if self._interrupted else max(self._ends - time.monotonic(), 0.0)

    def check_limits(self) -> None:
        """End the program if its time is over or it was interrupted, by raising LimitExceeded."""
        if self._interrupted:
            raise LimitExceeded("interrupted")
        if time.monotonic() >= self._ends:
            raise LimitExceeded("seconds")

    def print(self, text: str) -> bool:
        """Add to the output that the entity sees. Return False once the output has its limit: the rest is cut."""
        return self._print(text)

    # ------------------------------------------------------------------------------------------------ the contract

    def interrupt(self) -> None:
        """End the program, from any thread; the step returns Exceeded. Does nothing between turns."""
        if self._has_program:
            self._interrupted = True
            self.stop()

    def _save(self) -> bytes:
        return self.save()

    def _restore(self, image: bytes) -> None:
        self._end_program()
        self.restore(image)

    def _release(self) -> None:
        self._end_program()
        self.release()

    def _start(self, code: str, variables: Mapping[str, Any]) -> Stepped:
        self._interrupted = False
        self.begin_turn()
        program = self._program = self.run(code, variables)
        return self._advance(program, lambda: next(program))

    def _continue(self, answer: Answer) -> Stepped:
        program = self._program
        assert program is not None, "a program that waits for a gate has not ended"
        if answer.is_error:
            return self._advance(program, lambda: program.throw(GateError(str(answer.value))))
        return self._advance(program, lambda: program.send(answer.value))

    def _advance(self, program: ProgramRun, resume: Callable[[], ProgramCall]) -> Stepped:
        self._ends = time.monotonic() + self._left
        try:
            while True:
                self.check_limits()
                called = resume()
                outcome = self._call(called.gate, partial(_bind, called.args))
                if isinstance(outcome, Suspended):
                    return outcome
                resume = partial(program.throw, GateError(outcome))
        except StopIteration as ended:
            return self._finish(ended.value)
        except (ProgramError, GateError) as problem:
            return Raised(str(problem), self._take_output())
        finally:
            self._left = self._ends - time.monotonic()

    def _finish(self, value: Any) -> Stepped:
        try:
            return Finished(plain(value), self._take_output())
        except NotPlain as problem:
            return Raised(f"the program's value is {problem}", self._take_output())

    def _undo(self) -> None:
        self._end_program()
        self.undo_turn()

    def _end_program(self) -> None:
        program, self._program, self._pending = self._program, None, None
        if program is not None:
            program.close()


def _bind(args: Mapping[str, Any] | Sequence[Any], gate: ToolDefinition) -> Mapping[str, Any]:
    """Return a call's arguments by name, as JSON. Raises ValueError."""
    if not isinstance(args, Mapping):
        names = list(gate.parameters.get("properties", ()))
        if len(args) > len(names):
            raise ValueError(f"{gate.name} takes at most {len(names)} arguments, got {len(args)}")
        args = dict(zip(names, args, strict=False))
    bound: Mapping[str, Any] = plain(args)
    return bound

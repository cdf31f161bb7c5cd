"""A turn of JavaScript: a thread of its own, from the program's first line to its end.

The engine cannot leave a program in the middle and come back, so while a gate is pending the program waits in its
thread, on a queue. That is the whole cost of a suspended turn, and no number of them can starve another: the threads
come from no pool. The thread that makes a step waits for this one, and is at the same time its clock: when the budget
is used up (seconds of processor, so that a busy machine robs nobody) it halts the guest, which ends in milliseconds.

    caller   begin ── step ─────────────┐            answer ── step ───────────┐
    turn            computing… gate ──► Suspended …waits…  computing… end ──► Finished

A turn ends its thread in any case: by ending, by a halt, or by `abandon`.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from cantrip_actors.circle.javascript_engine import STACK, Crash, Guest
from cantrip_actors.circle.javascript_values import arguments
from cantrip_actors.circle.medium import CLOSED, Exceeded, Limits, Stepped, Suspended

__all__ = ["Turn"]

THREAD_STACK: Final = 2 * STACK
"""Bytes of a turn's thread: what the program may use, and room for what answers it."""

WAITING: Final = 0.7
"""Seconds that a turn may take beyond those that it computes: on a busy machine it waits for a processor."""

WAITS: Final = WAITING if sys.platform == "linux" else 0.0

GRACE: Final = 10.0
"""Seconds after which a halted guest that does not come back is a bug of ours."""

_ABANDONED: Final = object()
_starting = threading.Lock()
_running: weakref.WeakSet[Turn] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Failed:
    """What went wrong in the turn's thread and was no program's fault: raised again where the step was made."""

    failure: BaseException


class Turn:
    """One turn. `work` runs in the thread and gives how it ended; `host` is what it calls meanwhile."""

    def __init__(self, guest: Guest, limits: Limits, gates: frozenset[str], work: Callable[[], Stepped]) -> None:
        self._guest = guest
        self._limits = limits
        self._gates = gates
        self._work = work
        self._until = limits.time
        """Seconds of processor."""
        self._left = limits.time + WAITS
        self._calls = 0
        self._closed = False
        self._printed = 0
        self._output: list[str] = []
        self._steps: SimpleQueue[Stepped | _Failed] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="javascript", daemon=True)
        self._clock: int | None = None
        """Of the thread's processor time. The thread asks for it itself: of one that has ended nobody may ask for it
        (the C library looks into memory that is no more), while a clock of one that has ended is an error."""
        self.pending: Suspended | None = None
        """The gate call that the program waits for."""

    # ------------------------------------------------------------------------------------------- in the caller's thread

    def begin(self) -> Stepped:
        """Start, and come back with the first step."""
        _running.add(self)
        with _starting:  # the size is the process's: whoever starts a thread at the same moment gets a larger one
            before = threading.stack_size(THREAD_STACK)
            try:
                self._thread.start()
            finally:
                threading.stack_size(before)
        return self._step()

    def answer(self, answer: str, *, closed: bool) -> Stepped:
        """Hand over what the prelude takes for the gate's answer, and come back with the next step."""
        self.pending = None
        self._closed = closed
        self._answers.put(answer)
        return self._step()

    def limit(self, limits: Limits) -> None:
        """What the program may use from here on, where that is less than it had before."""
        if limits.time < self._limits.time:
            self._until = min(self._until, self._computed() + limits.time)
            self._left = min(self._left, limits.time + WAITS)
        self._limits = limits

    def interrupt(self) -> None:
        """Halt the program, from any thread; one that waits for a gate ends when it goes on."""
        self._guest.halt("interrupted")

    def abandon(self) -> bool:
        """End it, wherever it is; whether the thread is gone."""
        self._guest.halt("interrupted")
        self._answers.put(_ABANDONED)
        if self._thread.ident is not None:
            self._thread.join(GRACE)
        return not self._thread.is_alive()

    def _step(self) -> Stepped:
        ends = time.monotonic() + self._left
        step: Stepped | _Failed | None = None
        while step is None:
            left = min(self._until - self._computed(), ends - time.monotonic())
            try:
                step = self._steps.get(timeout=max(left, 0.0))
            except Empty:
                if left <= 0.001:
                    self._guest.halt("seconds")
                    step = self._steps.get(timeout=GRACE)
        self._left = ends - time.monotonic()
        if isinstance(step, Suspended):
            self.pending = step
            return step
        self._thread.join(GRACE)
        if isinstance(step, _Failed):
            raise step.failure
        return step

    def _computed(self) -> float:
        """Seconds of processor that the turn has had, where the system tells; else nothing, and its time counts."""
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # it has ended just now
            return 0.0

    # --------------------------------------------------------------------------------------------- in the turn's thread

    def _run(self) -> None:
        if sys.platform == "linux":
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            step: Stepped | _Failed = self._work()
        except Crash as crash:
            step = Exceeded(self._limits.exceeded(crash.limit), self.output())
        except BaseException as failure:
            step = _Failed(failure)
        _running.discard(self)
        self._steps.put(step)

    def output(self) -> str:
        """What was printed since this was asked last."""
        text = "".join(self._output)
        self._output.clear()
        return text

    def host(self, asked: str) -> str:
        """What the prelude's `host(text)` answers: for a line printed, and for a gate called."""
        if asked[:1] == "p":
            return self._print(asked[1:])
        name, _, json = asked[1:].partition("\n")
        if self._closed:
            return f"e{CLOSED}"
        if name not in self._gates:
            return f"egate not available: {name[:100]}"
        try:
            args = arguments(json)
        except ValueError as problem:
            return f"e{name}: {problem}"
        self._calls += 1
        if self._calls > self._limits.gate_calls:
            raise Crash("gate_calls")
        self._steps.put(Suspended(name, args, object(), self.output()))
        answer = self._answers.get()
        if answer is _ABANDONED or self._guest.halted:
            raise Crash(self._guest.halted or "interrupted")
        assert isinstance(answer, str)
        return answer

    def _print(self, line: str) -> str:
        room = self._limits.output - self._printed
        self._printed += len(line)
        if len(line) <= room:
            self._output.append(line)
            return ""
        if room >= 0:
            self._output.append(f"{line[:room]}\n… (cut: at most {self._limits.output} characters a turn are kept)\n")
        return "f"


@atexit.register
def _end_all() -> None:
    """A thread that computes while the interpreter goes down would take it with it: end them first."""
    for turn in list(_running):
        turn.abandon()

"""A turn of JavaScript: what a program may use, what it prints, and the gate calls in which it waits.

The program runs in the thread of whoever makes a step, on a stack of its own (`engine.py`). When it calls a gate, that
stack is left as it is, and the step returns: a waiting program is a value and holds no thread. Any thread may make the
next step.

While a program computes, a clock moves the engine's epoch, so that the program looks at its budget: seconds of
processor of the thread that it runs in, so that a busy machine robs nobody, and a part of a second in which it may wait
for a processor. There is one clock for all programs, and it stands still while no program computes.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cantrip_actors.circle.javascript.engine import Crash, Guest, Waiting
from cantrip_actors.circle.javascript.values import arguments
from cantrip_actors.circle.medium import CLOSED, Exceeded, Limits, Stepped, Suspended

__all__ = ["GRACE", "Turn"]

WAITING: Final = 0.7
"""Seconds that a turn may take beyond those that it computes: on a busy machine it waits for a processor."""

TICK: Final = 0.01
"""Seconds between two looks at the budget."""

GRACE: Final = 10.0
"""Seconds after which a halted program that still runs is a bug of ours."""


class Turn:
    """One turn of a guest. `work` is the program from its first line to its end; it returns how it ended."""

    def __init__(
        self, guest: Guest, limits: Limits, gates: frozenset[str], work: Callable[[], Waiting[Stepped]]
    ) -> None:
        self._guest = guest
        self._limits = limits
        self._gates = gates
        self._work = work()
        self._processor, self._clock = limits.time, limits.time + WAITING
        """Seconds that are left."""
        self._calls = 0
        self._closed = False
        self._printed = 0
        self._output: list[str] = []
        self.pending: Suspended | None = None
        """The gate call that the program waits for."""

    # The steps

    def begin(self) -> Stepped:
        """Start, and return the first step."""
        return self._step(lambda: next(self._work))

    def answer(self, answer: str, *, closed: bool) -> Stepped:
        """Hand over the gate's answer as the prelude takes it, and return the next step."""
        self.pending = None
        self._closed = closed
        return self._step(lambda: self._work.send(answer))

    def limit(self, limits: Limits) -> None:
        """Take what the program may use from here on, where that is less than it had before."""
        if limits.time < self._limits.time:
            self._processor = min(self._processor, limits.time)
            self._clock = min(self._clock, limits.time + WAITING)
        self._limits = limits

    def abandon(self) -> None:
        """End a program that waits. Nothing may run in the guest."""
        self._work.close()

    def _step(self, resume: Callable[[], None]) -> Stepped:
        began, used = time.monotonic(), time.thread_time()
        self._guest.limit(self._processor, self._clock)
        try:
            if self._guest.halted:  # while the program waited
                raise Crash(self._guest.halted)
            with _clock.running(self._guest):
                resume()
        except StopIteration as ended:
            step: Stepped = ended.value
            return step
        except Crash as crash:
            return Exceeded(self._limits.exceeded(crash.limit), self.output())
        finally:
            self._processor -= time.thread_time() - used
            self._clock -= time.monotonic() - began
        assert self.pending is not None, "a program waits for nothing but a gate"
        return self.pending

    # What the program asks

    def output(self) -> str:
        """Return what was printed since the last call."""
        text = "".join(self._output)
        self._output.clear()
        return text

    def host(self, asked: str) -> str | None:
        """The answer to the prelude's `host(text)`: for a line to print, and for a gate call; None where it waits."""
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
        self.pending = Suspended(name, args, object(), self.output())
        return None

    def _print(self, line: str) -> str:
        room = self._limits.output - self._printed
        self._printed += len(line)
        if len(line) <= room:
            self._output.append(line)
            return ""
        if room >= 0:
            self._output.append(f"{line[:room]}\n… (cut: at most {self._limits.output} characters a turn are kept)\n")
        return "f"


class _Clock:
    """Moves the engine's epoch while programs compute: one thread for all of them, parked while none does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: list[Guest] = []
        self._thread: threading.Thread | None = None
        self._parked = False

    @contextmanager
    def running(self, guest: Guest) -> Iterator[None]:
        """The guest computes in this block."""
        with self._changed:
            self._running.append(guest)
            if self._parked:
                self._changed.notify()
            elif self._thread is None or not self._thread.is_alive():  # as after a fork
                self._thread = threading.Thread(target=self._tick, name="javascript clock", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(guest)

    def _tick(self) -> None:
        while True:
            with self._changed:
                if self._running:
                    self._running[0].tick()
                else:
                    self._parked = True
                    self._changed.wait()
                    self._parked = False
            time.sleep(TICK)

    def end_all(self) -> None:
        """End what computes: it would take the interpreter with it when that ends."""
        ends = time.monotonic() + GRACE
        while self._running and time.monotonic() < ends:
            for guest in list(self._running):
                guest.halt("interrupted")
            time.sleep(0.001)


_clock: Final = _Clock()
atexit.register(_clock.end_all)

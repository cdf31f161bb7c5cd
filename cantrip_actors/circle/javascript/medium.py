"""The JavaScript medium: the entity writes scripts, in a sandbox of its own, and gates are plain functions.

This file runs a turn from start to end, undoes a turn that exceeds a limit, and keeps the state between turns. The
program runs in the thread that makes a step, on a stack of its own; when it calls a gate, that stack is suspended and
the step returns. Any thread may make the next step. The other files:

- `engine.py`: QuickJS in WebAssembly, its imports, and how it is stopped
- `private_interface.py`: the parts of the engine that it does not publish, compared with those of the installed version
- `prelude.js`: the code that every sandbox runs before the entity's first line
- `source.py`: the change to a program's text that keeps its variables for later turns
- `gates.py`: gates as functions, and the text about them for the entity
- `values.py`: the values that pass between the program and the host
- `errors.py`: the text of an exception for the entity
- `clock.py`: makes a running program check its budget
- `memory.py`: a sandbox's snapshot between two turns

Clock and randomness are constants in a sandbox, so that a replayed program takes the same branches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from cantrip_actors.circle.javascript.clock import WAITING, clock
from cantrip_actors.circle.javascript.engine import PAGE, Guest, GuestWork, compute_identity, get_pristine
from cantrip_actors.circle.javascript.gates import describe_functions, write_capability
from cantrip_actors.circle.javascript.memory import Difference, compute_difference, pack, unpack
from cantrip_actors.circle.javascript.source import makes_promises, prepare
from cantrip_actors.circle.javascript.values import encode_answer, encode_outgoing, parse_report, read_arguments
from cantrip_actors.circle.live_sandbox import LiveSandbox
from cantrip_actors.circle.medium import Answer, LimitExceeded, Medium, ProgramLimits, Stepped
from cantrip_actors.terms.languages import BUILT_IN
from cantrip_actors.terms.messages import ToolDefinition

RESERVE: Final = 128 * 1024
"""Bytes that a turn must leave free; without them no later turn could even start, let alone free memory."""


class JavaScriptMedium(Medium):
    """JavaScript programs, in QuickJS. The `engine` names one build of the wasm with one prelude.

    Opening the process's first sandbox compiles the engine, which takes about a second.
    """

    name = "javascript"
    fences = BUILT_IN[name].fences

    def __init__(self) -> None:
        self.engine = compute_identity()

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        """Return the text for the entity."""
        return write_capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> JavaScriptSandbox:
        """Return a new, empty sandbox."""
        return JavaScriptSandbox(gates, limits)


class JavaScriptSandbox(LiveSandbox):
    """One entity's program: an instance of the engine."""

    def __init__(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        super().__init__(gates, limits)
        self._pristine = get_pristine()
        functions = describe_functions(gates)
        self._functions = orjson.dumps(functions).decode()
        self._names = frozenset(name for function in functions for name in function["calls"])
        self._has_promises = False
        """Whether a program of this sandbox may have made promises, or functions that do."""
        self._work: GuestWork[Stepped] | None = None
        """The turn in progress."""
        self._before: Difference | None = None
        """The memory before that turn."""
        self._clock = 0.0
        """Seconds that the program may still take in real time, which includes waiting for a CPU; `_left` is CPU time.
        """
        self._guest = self._make_guest()

    # -------------------------------------------------------------------------------------------------------- the turn

    def _start(self, code: str, variables: Mapping[str, Any]) -> Stepped:
        self._guest.revive()  # an interrupt may have arrived after the previous turn
        self._before = compute_difference(self._pristine.memory, self._guest.memory(), PAGE)
        self._clock = self._left + WAITING
        work = self._work = self._run(code, variables)
        return self._advance(lambda: next(work))

    def _continue(self, answer: Answer) -> Stepped:
        work = self._work
        assert work is not None
        self._clock = min(self._clock, self.limits.time + WAITING)
        return self._advance(lambda: work.send(encode_answer(answer)))

    def interrupt(self) -> None:
        """End the turn, from any thread; it comes back as Exceeded within milliseconds. Does nothing between turns."""
        self._guest.halt("interrupted")

    def _advance(self, resume: Callable[[], None]) -> Stepped:
        guest = self._guest
        began, used = time.monotonic(), time.thread_time()
        guest.limit(self._left, self._clock)
        try:
            if guest.halt_reason:  # halted while the program waited
                raise LimitExceeded(guest.halt_reason)
            with clock.run_guest(guest):
                resume()
        except StopIteration as ended:
            self._before = None
            self.memory = guest.size
            step: Stepped = ended.value
            return step
        finally:
            self._left -= time.thread_time() - used
            self._clock -= time.monotonic() - began
        assert self._pending is not None, "a program waits only for gates"
        return self._pending

    def _run(self, code: str, variables: Mapping[str, Any]) -> GuestWork[Stepped]:
        guest = self._guest
        run, await_, report, _, assign = self._pristine.functions
        if variables:
            yield from guest.apply(assign, encode_outgoing(dict(variables)))
        self._has_promises = self._has_promises or makes_promises(code)
        script = prepare(code, is_watched=self._has_promises)
        if script.awaits and (promise := (yield from guest.evaluate(script.code, "eval_async"))) is not None:
            guest.free((yield from guest.run(await_, promise)), promise)
        else:
            yield from guest.apply(run, script.code, code)
        while (yield from guest.enter("execute_pending_jobs")):
            pass  # one call runs at most a hundred thousand; while jobs are pending, the program has not ended
        handle = yield from guest.run(report)
        report_text = guest.text(handle)
        guest.free(handle)
        most = self.limits.memory - RESERVE
        if guest.size > most and not self._leaves_room(most):  # counting takes long if there is much
            guest.call("run_gc")
            if not self._leaves_room(most):
                raise LimitExceeded("memory")
        scarce = guest.size > self.limits.memory * 3 // 4
        step = parse_report(report_text, script.code, self._names, scarce=scarce)
        return replace(step, output=self._take_output())

    def _leaves_room(self, most: int) -> bool:
        return self._guest.measure_memory() <= most and self._guest.has_room(RESERVE)

    def _handle_request(self, request: bytes) -> str | None:
        """Return the answer to the prelude's `host(text)`: to printed text, or None while a gate call waits."""
        if request[:1] == b"p":
            return "" if self._print(request[1:].decode("utf-8", "replace")) else "f"
        name, _, json = request[1:].partition(b"\n")
        outcome = self._call(name.decode("utf-8", "replace"), lambda gate: read_arguments(gate.name, json))
        if isinstance(outcome, str):
            return f"e{outcome}"
        self._pending = outcome
        return None

    # ------------------------------------------------------------------------------------------------- before and after

    def _save(self) -> bytes:
        return pack(self._pristine.engine, self._pristine.memory, self._guest.memory())

    def _restore(self, image: bytes) -> None:
        pristine = self._pristine
        change = unpack(pristine.engine, pristine.memory, image, pristine.most(self.limits.memory))
        try:
            guest = self._make_guest(change)
        except LimitExceeded as problem:
            raise ValueError("the snapshot needs more memory than this sandbox may have") from problem
        self._release()
        self._guest = guest
        self._has_promises = True  # the snapshot does not say

    def _undo(self) -> None:
        """Replace the instance, whose memory is undefined, by one with the memory from before the turn."""
        self._release()
        self._guest = self._make_guest(self._before)
        self._before = None

    def _release(self) -> None:
        work, self._work, self._pending = self._work, None, None
        if work is not None:
            work.close()
        self._guest.close()

    def _make_guest(self, change: Difference | None = None) -> Guest:
        return self._pristine.guest(self.limits.memory, self._handle_request, self._functions, change)

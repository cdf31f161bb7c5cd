"""The JavaScript medium: the entity writes scripts, in a sandbox of its own, and gates are plain functions.

This file says which turn is in progress, what a limit undoes and what stays between turns. Beside it:

- `engine.py`: QuickJS in WebAssembly, what it may reach, and how it is stopped
- `prelude.js`: what every sandbox has run before the entity's first line
- `source.py`: the change to a program's text that lets its variables live on
- `gates.py`: gates as functions, and the text about them for the entity
- `values.py`: what crosses the border
- `errors.py`: the text of an exception for the entity
- `turn.py`: a turn, from its first line to its end
- `snapshot.py`: a sandbox between two turns, as bytes

A program that waits in a gate call lies on a native stack, which cannot be copied: `Suspended.image` is None, and after
a crash the runtime loads the snapshot from before the turn and runs the turn again, with the recorded results of its
gates. Clock and randomness are constants in there, so that it takes the same ways.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.circle.javascript import gates as javascript_gates
from cantrip_actors.circle.javascript.engine import PAGE, Crash, Guest, Pristine, Waiting, identity, pristine
from cantrip_actors.circle.javascript.memory import Difference, difference
from cantrip_actors.circle.javascript.snapshot import pack, unpack
from cantrip_actors.circle.javascript.source import prepare
from cantrip_actors.circle.javascript.turn import GRACE, Turn
from cantrip_actors.circle.javascript.values import ended, given, outgoing
from cantrip_actors.circle.medium import Answer, Exceeded, Limits, Stepped, Suspended
from cantrip_actors.terms.messages import ToolDefinition

__all__ = ["JavaScript", "JavaScriptSandbox"]

RESERVE: Final = 128 * 1024
"""Bytes that a turn has to leave free: without them no later turn could even begin, not to mention clean up."""


class JavaScript:
    """The medium. An `engine` is one build of the wasm with one prelude."""

    name = "javascript"

    def __init__(self) -> None:
        self.engine = identity()

    def capability(self, gates: Sequence[ToolDefinition], limits: Limits) -> str:
        """Return the text about this medium for the entity."""
        return javascript_gates.capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: Limits) -> JavaScriptSandbox:
        """Return a new, empty sandbox. The first one of a process compiles the engine, which takes about a second."""
        return JavaScriptSandbox(pristine(), gates, limits)


class JavaScriptSandbox:
    """One entity's program: an instance of the engine."""

    def __init__(self, pristine: Pristine, gates: Sequence[ToolDefinition], limits: Limits) -> None:
        self._pristine = pristine
        self.limits = limits
        self._gates = frozenset(gate.name for gate in gates)
        self._calls = javascript_gates.calls(gates)
        self._functions = javascript_gates.functions(gates).decode()
        self._turn: Turn | None = None
        self._before: Difference | None = None
        """The memory as it was before the turn that is in progress."""
        self._closed = False
        self._stepping = threading.Lock()
        """Held while something runs in the instance: a sandbox may be closed meanwhile."""
        self._guest = self._new()

    # -------------------------------------------------------------------------------------------------------- the turn

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code` until it calls a gate or ends. A turn that is suspended is undone."""
        with self._stepping:
            self._open()
            self._drop()
            self._before = difference(self._pristine.image, self._guest.image(), PAGE)
            self._turn = Turn(self._guest, self.limits, self._gates, lambda: self._run(code, variables))
            return self._stepped(self._turn.begin)

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate. Raises ValueError if `suspended` is not the call that the program waits for."""
        with self._stepping:
            self._open()
            turn = self._turn
            if turn is None or turn.pending is not suspended:
                raise ValueError("this program does not wait for an answer to that")
            turn.limit(self.limits)
            return self._stepped(lambda: turn.answer(given(answer), closed=answer.closed))

    def interrupt(self) -> None:
        """End the turn, from any thread; it comes back as Exceeded within milliseconds. Does nothing between turns."""
        if self._turn is not None:
            self._guest.halt("interrupted")

    def _stepped(self, step: Callable[[], Stepped]) -> Stepped:
        try:
            stepped = step()
        except BaseException:
            self._restore()  # the sandbox outlives what went wrong in this turn
            raise
        if isinstance(stepped, Exceeded):
            self._restore()
        elif not isinstance(stepped, Suspended):
            self._turn = None
            self._before = None
            self._guest.revive()
        return stepped

    def _run(self, code: str, variables: Mapping[str, Any] | None) -> Waiting[Stepped]:
        """A whole turn; raises Crash for a limit."""
        guest, turn = self._guest, self._turn
        assert turn is not None
        run, await_, report, arm, assign = self._pristine.functions
        yield from guest.apply(arm, "")  # a program may have used a gate's name for a variable: only until it ends
        if variables:
            yield from guest.apply(assign, outgoing(dict(variables)))
        script = prepare(code)
        if script.awaits and (promise := (yield from guest.evaluate(script.code, "eval_async"))) is not None:
            guest.free((yield from guest.run(await_, promise)), promise)
        else:
            yield from guest.apply(run, script.code, code)
        while (yield from guest.enter("execute_pending_jobs")):
            pass  # it runs a hundred thousand at most; while there are any, the program has not ended
        handle = yield from guest.run(report)
        reported = guest.text(handle)
        guest.free(handle)
        most = self.limits.memory - RESERVE
        if guest.size > most and not self._leaves_room(most):  # counting takes long where there is much
            guest.call("run_gc")
            if not self._leaves_room(most):
                raise Crash("memory")
        scarce = guest.size > self.limits.memory * 3 // 4
        step = ended(reported, script.code, self._calls, scarce=scarce)
        return replace(step, output=turn.output())

    def _leaves_room(self, most: int) -> bool:
        return self._guest.used() <= most and self._guest.has_room(RESERVE)

    def _host(self, asked: str) -> str | None:
        assert self._turn is not None, "nothing asks but a turn's program"
        return self._turn.host(asked)

    # ------------------------------------------------------------------------------------------------- before and after

    def dump(self) -> bytes | None:
        """Return the sandbox as some kilobytes; None while a program is suspended."""
        self._open()
        return None if self._turn is not None else pack(self._pristine, self._guest.image())

    def load(self, image: bytes) -> None:
        """Become what `dump` returned. Raises ValueError for another engine's snapshot, and stays as it is."""
        with self._stepping:
            self._open()
            self._drop()
            change = unpack(self._pristine, image, self._pristine.most(self.limits.memory))
            try:
                made = self._new(change)
            except Crash as crash:
                raise ValueError("the snapshot needs more memory than this sandbox may have") from crash
            self._discard()
            self._guest = made

    def resume(self, image: bytes) -> Suspended:  # noqa: ARG002  # the contract's signature
        """Raise ValueError: this medium has no images of suspended programs."""
        raise ValueError("the JavaScript engine has no images of suspended programs")

    def close(self) -> None:
        """Give everything back, also in the middle of a step, which ends as one that is interrupted."""
        self._guest.halt("interrupted")
        if self._stepping.acquire(timeout=GRACE):
            try:
                if not self._closed:
                    self._closed = True
                    self._discard()
            finally:
                self._stepping.release()

    def _open(self) -> None:
        if self._closed:
            raise ValueError("the sandbox is closed")

    def _drop(self) -> None:
        """Undo a turn that is suspended and will not be continued."""
        if self._turn is not None:
            self._restore()

    def _restore(self) -> None:
        """Replace this instance, whose memory is undefined, by one with the memory from before the turn."""
        self._discard()
        self._guest = self._new(self._before)
        self._before = None

    def _discard(self) -> None:
        """Give the instance back. Nothing runs in it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.abandon()
        self._guest.close()

    def _new(self, change: Difference | None = None) -> Guest:
        return self._pristine.guest(self.limits.memory, self._host, self._functions, change)

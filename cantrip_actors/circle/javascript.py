"""The JavaScript medium: the entity writes scripts, in a sandbox of its own, and gates are plain functions.

This file says which turn is going on, what is undone after a limit and what is kept between turns. Beside it:

- `javascript_engine.py`: QuickJS in WebAssembly, what it may reach, and how it is stopped
- `javascript_prelude.js`: what every sandbox has run before the entity's first line
- `javascript_source.py`: the change to a program's text that lets its variables live on
- `javascript_gates.py`: gates as functions, and what the entity is told
- `javascript_values.py`: what crosses the border
- `javascript_errors.py`: what the entity is told of an exception
- `javascript_turn.py`: a turn, from its first line to its end, in a thread of its own
- `javascript_snapshot.py`: a sandbox between two turns, as bytes

The engine cannot be copied in the middle of a gate call. `Suspended.image` is None: after a crash the runtime loads the
snapshot from before the turn and runs the turn again, with the recorded results of its gates. Clock and chance are
constants in there, so that it takes the same ways.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.circle import javascript_gates
from cantrip_actors.circle.javascript_engine import PAGE, Crash, Guest, Pristine, identity, pristine
from cantrip_actors.circle.javascript_memory import Difference, difference
from cantrip_actors.circle.javascript_snapshot import pack, unpack
from cantrip_actors.circle.javascript_source import prepare
from cantrip_actors.circle.javascript_turn import Turn
from cantrip_actors.circle.javascript_values import ended, given, outgoing
from cantrip_actors.circle.medium import Answer, Exceeded, Limits, Stepped, Suspended
from cantrip_actors.model.messages import ToolDefinition

__all__ = ["JavaScript", "JavaScriptSandbox"]

RESERVE: Final = 128 * 1024
"""Bytes that a turn has to leave free: without them no later turn could even begin, not to mention clean up."""


class JavaScript:
    """The medium. An `engine` is one build of the wasm with one prelude."""

    name = "javascript"

    def __init__(self) -> None:
        self.engine = identity()

    def capability(self, gates: Sequence[ToolDefinition], limits: Limits) -> str:
        """What the entity is told."""
        return javascript_gates.capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: Limits) -> JavaScriptSandbox:
        """A new, empty sandbox. The first one of a process compiles the engine, which takes about a second."""
        return JavaScriptSandbox(pristine(), gates, limits)


class JavaScriptSandbox:
    """One entity's program. Between turns it is an instance of the engine and nothing else, in a turn a thread, too."""

    def __init__(self, pristine: Pristine, gates: Sequence[ToolDefinition], limits: Limits) -> None:
        self._pristine = pristine
        self.limits = limits
        self._gates = frozenset(gate.name for gate in gates)
        self._calls = javascript_gates.calls(gates)
        self._functions = javascript_gates.functions(gates).decode()
        self._turn: Turn | None = None
        self._before: Difference | None = None
        """The memory as it was before the turn that is going on."""
        self._closed = False
        self._replacing = threading.Lock()
        """Held where an instance goes: a sandbox may be closed while it computes."""
        self._guest = self._new()

    # -------------------------------------------------------------------------------------------------------- the turn

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code` in a thread of its own, until it calls a gate or ends. A turn that is suspended is dropped."""
        self._open()
        self._drop()
        self._before = difference(self._pristine.image, self._guest.image(), PAGE)
        self._turn = Turn(self._guest, self.limits, self._gates, lambda: self._run(code, variables))
        return self._stepped(self._turn.begin)

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Go on after a gate. Raises ValueError where `suspended` is not what the program waits for."""
        self._open()
        turn = self._turn
        if turn is None or turn.pending is not suspended:
            raise ValueError("this program does not wait for an answer to that")
        turn.limit(self.limits)
        return self._stepped(lambda: turn.answer(given(answer), closed=answer.closed))

    def interrupt(self) -> None:
        """End the turn, from any thread; it comes back as Exceeded within milliseconds. Does nothing between turns."""
        turn = self._turn
        if turn is not None:
            turn.interrupt()

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

    def _run(self, code: str, variables: Mapping[str, Any] | None) -> Stepped:
        """A whole turn, in its thread; raises Crash for a limit."""
        guest, turn = self._guest, self._turn
        assert turn is not None
        run, await_, report, arm, assign = self._pristine.functions
        guest.apply(arm, "")  # a program may have used a gate's name for a variable: only until it ends
        if variables:
            guest.apply(assign, outgoing(dict(variables)))
        script = prepare(code)
        if script.awaits and (promise := guest.evaluate(script.code, "eval_async")) is not None:
            guest.free(guest.run(await_, promise), promise)
        else:
            guest.apply(run, script.code, code)
        while guest.call("execute_pending_jobs"):
            pass  # it runs a hundred thousand at most; while there are any, the program has not ended
        handle = guest.run(report)
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

    def _host(self, asked: str) -> str:
        assert self._turn is not None, "nothing asks but a turn's program"
        return self._turn.host(asked)

    # ------------------------------------------------------------------------------------------------- before and after

    def dump(self) -> bytes | None:
        """The sandbox as some kilobytes; None while a program is suspended."""
        self._open()
        return None if self._turn is not None else pack(self._pristine, self._guest.image())

    def load(self, image: bytes) -> None:
        """Become what `dump` gave. Raises ValueError for another engine's image, and stays as it is."""
        self._open()
        self._drop()
        change = unpack(self._pristine, image, self._pristine.most(self.limits.memory))
        try:
            made = self._new(change)
        except Crash as crash:
            raise ValueError("the snapshot needs more memory than this sandbox may have") from crash
        with self._replacing:
            self._discard()
            self._guest = made

    def resume(self, image: bytes) -> Suspended:  # noqa: ARG002  # the contract's signature
        """There are no images of suspended programs in this medium: raises ValueError."""
        raise ValueError("the JavaScript engine has no images of suspended programs")

    def close(self) -> None:
        """Give everything back, also out of the middle of a turn."""
        with self._replacing:
            if not self._closed:
                self._closed = True
                self._discard()

    def _open(self) -> None:
        if self._closed:
            raise ValueError("the sandbox is closed")

    def _drop(self) -> None:
        """Undo a turn that is suspended and that nobody goes on with."""
        if self._turn is not None:
            self._restore()

    def _restore(self) -> None:
        """Put an instance with the memory from before the turn in the place of this one, whose memory is undefined."""
        with self._replacing:
            if self._closed:
                return
            self._discard()
            self._guest = self._new(self._before)
            self._before = None

    def _discard(self) -> None:
        """Give the instance back, when nothing runs in it any more."""
        turn, self._turn = self._turn, None
        if turn is None or turn.abandon():
            self._guest.close()

    def _new(self, change: Difference | None = None) -> Guest:
        return self._pristine.guest(self.limits.memory, self._host, self._functions, change)

"""The circle actor: one for each entity, in which its gates run, one after the other (CIRCLE-3), and its programs.

What a gate raises, and how long it may take, is dealt with around the gate call (`circle/gates.py`), what a program
does around the medium (`circle/medium.py`); here is only the place where it happens, so that a crash beyond those
boundaries is this actor's crash and not the entity's.

The sandbox of a code circle lives as long as this incarnation. What it holds can be had again from the programs that
made it: whoever asks for the next one says which those were, and where they do not fit, they are run again and get the
answers that they got before. A step computes in a thread, of which there are as many as cores; between two steps
nothing is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from cantrip_actors.circle.gates import run_gate
from cantrip_actors.circle.medium import Answer as SandboxAnswer
from cantrip_actors.circle.medium import Exceeded, Limits, Raised, Sandbox, Stepped, Suspended, medium
from cantrip_actors.model.circle import Circle
from cantrip_actors.model.loop import Answer, Called, Compute, Computed, Program, Run
from cantrip_actors.model.turn import Observation
from supervisors import Actor, Caller, ExitReason

__all__ = ["CircleActor"]

T = TypeVar("T")

_threads: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.runtime.circle threads")


class CircleActor(Actor):
    """Runs gates and programs for one entity."""

    def __init__(self, circle: Circle) -> None:
        self._circle = circle
        self._sandbox: Sandbox | None = None
        self._suspended: Suspended | None = None
        self._ran = 0

    async def handle_call(
        self,
        message: Run | Compute | Answer,
        caller: Caller,  # noqa: ARG002  # it is the actor's face
    ) -> Observation | Called | Computed:
        """The observation that running a gate comes to; or how far a program comes."""
        if isinstance(message, Run):
            return await run_gate(message.gate, message.call, message.args)
        if isinstance(message, Compute):
            return await self._compute(message)
        return self._told(await self._answer(message))

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002  # whatever it is
        """Give the sandbox back."""
        await self._close()

    async def _compute(self, wanted: Compute) -> Called | Computed:
        if self._sandbox is None or self._ran != len(wanted.before) or wanted.answers:
            await self._rebuild(wanted.before)
        step = await self._begin(wanted.code, wanted.variables)
        output = ""
        for answer in wanted.answers:
            if not isinstance(step, Suspended):
                break
            output += step.output
            step = await self._answer(answer)
        return self._told(step, output)

    async def _rebuild(self, programs: Sequence[Program]) -> None:
        """A new sandbox, made what the old one was."""
        await self._close()
        name = self._circle.medium
        definitions = [gate.definition for gate in self._circle.gates]
        limits = Limits.under(self._circle.resolved)
        self._sandbox = await self._in_thread(lambda: medium(name).open(definitions, limits))
        self._ran = 0
        for program in programs:
            if not program.undone:
                step = await self._begin(program.code, program.variables)
                for answer in program.answers:
                    if isinstance(step, Suspended):
                        step = await self._answer(answer)
            self._ran += 1

    async def _begin(self, code: str, variables: Mapping[str, Any] | None) -> Stepped:
        sandbox = self._sandbox
        assert sandbox is not None
        return await self._step(lambda: sandbox.begin(code, variables))

    async def _answer(self, answer: Answer) -> Stepped:
        sandbox, suspended = self._sandbox, self._suspended
        assert sandbox is not None
        assert suspended is not None, "a program is answered only where it waits"
        return await self._step(
            lambda: sandbox.answer(suspended, SandboxAnswer(answer.value, answer.is_error, answer.closed))
        )

    async def _step(self, compute: Callable[[], Stepped]) -> Stepped:
        try:
            step = await self._in_thread(compute)
        except anyio.get_cancelled_exc_class():
            if self._sandbox is not None:
                self._sandbox.interrupt()  # the thread was left to itself: it must not compute on
            raise
        self._suspended = step if isinstance(step, Suspended) else None
        return step

    def _told(self, step: Stepped, output: str = "") -> Called | Computed:
        output += step.output
        if isinstance(step, Suspended):
            return Called(step.gate, step.args, output)
        self._ran += 1
        if isinstance(step, Raised):
            return Computed(output=output, error=step.error)
        if isinstance(step, Exceeded):
            return Computed(output=output, limit=step.limit)
        return Computed(step.value, output)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter())

    async def _close(self) -> None:
        sandbox, self._sandbox, self._suspended = self._sandbox, None, None
        if sandbox is not None:
            await self._in_thread(sandbox.close)


def _limiter() -> anyio.CapacityLimiter:
    """As many threads as cores, one limiter a loop: no step ever waits for another entity."""
    try:
        return _threads.get()
    except LookupError:
        made = anyio.CapacityLimiter(max(2, os.cpu_count() or 2))
        _threads.set(made)
        return made

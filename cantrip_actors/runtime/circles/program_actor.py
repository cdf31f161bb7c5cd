"""The circle actor of an entity that writes programs: it runs the programs, and the gates that they call.

`circle/medium.py` turns the errors of a program into values. A crash beyond that boundary is a crash of this actor, not
of the entity.

The sandbox of a code circle lives as long as this incarnation, and can be rebuilt. Each request for a program lists the
programs before it. If the sandbox has not run exactly these, the actor restores the newest usable snapshot, and runs
the programs after it again with their recorded answers. A step computes in one of as many threads as there are cores;
between two steps no thread is held.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import anyio
from anyio.lowlevel import RunVar

from cantrip_actors.circle.gate_call import ReportError
from cantrip_actors.circle.medium import Exceeded, ProgramLimits, Raised, Sandbox, Stepped, Suspended, medium
from cantrip_actors.machine.actions import Answer, Compute, Run, SnapshotAfter
from cantrip_actors.machine.events import Called, Computed
from cantrip_actors.records.blob import Snapshot, make_reference
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.circles.snapshots import SMALL_MIDWAY, Account, Snapshots
from cantrip_actors.runtime.events.context_variables import ContextVariables, Working
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.wrapping import NO_FENCE, Fence
from cantrip_actors.user_code.threads import get_limiter, run_in_thread
from supervisors import Alarm, Caller, ExitReason

T = TypeVar("T")

_log = get_logger("cantrip_actors.circle")

RELEASE_PROGRAM: Final = "release program"
"""Cast to the actor when its entity begins to wait for others: a program with a recorded snapshot is dropped from
memory after `PATIENCE` seconds, unless it continues before."""

LONGEST_PROGRAM: Final = 1_000_000
"""Characters: an interpreter needs a multiple of its memory for each."""

PATIENCE: Final = 1.0

TRIES: Final = 3
"""Snapshots to try, newest first, before all programs are run again: after an upgrade no snapshot can be used."""

CLOSING: Final = 16
"""Sandboxes that may be closed at the same time. Closing has separate threads: otherwise each close would wait for
seconds behind programs that still compute."""

_threads: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.runtime.circles.program_actor threads")
_closers: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.runtime.circles.program_actor closers")


class CircleActor(GatesActor):
    """Runs gates and programs for one entity. Without `snapshots` sandboxes are rebuilt from their programs alone."""

    def __init__(
        self,
        circle: Circle,
        snapshots: Snapshots | None = None,
        entity_id: str = "",
        context_variables: Callable[[], ContextVariables] = tuple,
        report: ReportError | None = None,
        working: Working | None = None,
        fence: Callable[[], Fence] = lambda: NO_FENCE,
    ) -> None:
        super().__init__(entity_id, context_variables, report, working, fence, snapshots)
        self._circle = circle
        self._snapshots = snapshots
        self._sandbox: Sandbox | None = None
        self._engine = ""
        self._suspended: Suspended | None = None
        self._snapshot: Snapshot | None = None
        """The snapshot after the last step."""
        self._midway: Snapshot | None = None
        """The recorded snapshot of the program that waits, if there is one."""
        self._programs_run = 0
        self._output = ""
        """The program's output so far."""
        self._seconds = 0.0
        """How long the program has computed so far."""
        self._idle_account: Account
        self._suspended_account: Account
        self._release: Alarm | None = None
        """The timer after which the waiting program is dropped from memory."""

    async def handle_call(self, message: Run | Compute | Answer, caller: Caller) -> Any:
        """Run a gate and return its observation; or run a program up to its next gate call or its end."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        if isinstance(message, Run):
            return await super().handle_call(message, caller)
        if isinstance(message, Compute):
            return await self._compute(message)
        return self._make_event(await self._answer(message))

    async def handle_cast(self, message: str) -> None:
        """Handle `RELEASE_PROGRAM`, which arrives when the call that the program waits for is recorded."""
        assert message == RELEASE_PROGRAM, message
        if self._midway is not None and self._release is None:
            self._release = self.send_after(PATIENCE, RELEASE_PROGRAM)

    async def handle_info(self, message: Any) -> None:
        """Drop the waiting program from memory: its snapshot is in the loom."""
        if message == RELEASE_PROGRAM and self._release is not None:
            self._release = self._suspended = None

    async def terminate(self, reason: ExitReason) -> None:
        """Close the sandbox, and what the gates hold open."""
        await self._close()
        await super().terminate(reason)

    async def _compute(self, wanted: Compute) -> Called | Computed:
        again = bool(wanted.answers) or wanted.midway is not None
        if self._sandbox is None or self._programs_run != len(wanted.before) or again:
            await self._rebuild(wanted)
        if not again:
            return self._make_event(await self._begin(wanted.code, wanted.variables, keep=True))
        answers, output = wanted.answers, ""
        with self._extend_limits():
            step: Stepped | None = None if wanted.midway is None else await self._resume(wanted.midway)
            if step is None:
                step = await self._begin(wanted.code, wanted.variables, keep=False)
            elif wanted.midway is not None:
                answers = answers[wanted.midway.after :]
            for answer in answers[:-1]:
                if isinstance(step, Suspended):
                    output += step.output
                    step = await self._answer(answer, keep=False)
        if answers and isinstance(step, Suspended):
            output += step.output
            step = await self._answer(answers[-1])
        return self._make_event(step, output)

    # ---------------------------------------------------------------------------------------------- rebuild a sandbox

    async def _rebuild(self, wanted: Compute) -> None:
        """Replace the sandbox by one with the same state."""
        await self._close()
        # a cancellation waits until it is open, because nothing would close a sandbox that an abandoned thread opens
        self._engine, sandbox = await anyio.to_thread.run_sync(self._open_sandbox, limiter=_get_limiter())
        self._sandbox = sandbox
        self._idle_account, self._suspended_account = Account(), Account(SMALL_MIDWAY)
        self._programs_run = await self._load(sandbox, wanted)
        with self._extend_limits():
            for program in wanted.before[self._programs_run :]:
                if not program.undone:
                    step = await self._begin(program.code, program.variables, keep=False)
                    for answer in program.answers:
                        if isinstance(step, Suspended):
                            step = await self._answer(answer, keep=False)
                    if isinstance(step, Exceeded | Suspended):  # its output and arguments stay out of the log
                        where = step.limit if isinstance(step, Exceeded) else step.gate
                        _log.warning("a replayed program did not finish", where=where)
                self._programs_run += 1

    @contextmanager
    def _extend_limits(self) -> Iterator[None]:
        """Extend the time limits for programs that run again, so that they end the same way on a slower machine."""
        sandbox = self._sandbox
        assert sandbox is not None
        usual = sandbox.limits
        sandbox.limits = usual.again()
        try:
            yield
        finally:
            sandbox.limits = usual

    def _open_sandbox(self) -> tuple[str, Sandbox]:
        language = self._circle.language
        assert language is not None, "only a circle with programs has sandboxes"
        chosen = medium(language)
        return chosen.engine, chosen.open(self._circle.all_definitions, ProgramLimits.under(self._circle.resolved))

    async def _load(self, sandbox: Sandbox, wanted: Compute) -> int:
        """Restore the newest usable snapshot; return how many programs it contains, or 0 if none can be used."""
        snapshots = self._snapshots
        if snapshots is None:
            return 0
        for left in islice(reversed(wanted.snapshots), TRIES):
            restored = await snapshots.load(left.snapshot, self._engine, "idle")
            if restored is None or left.after > len(wanted.before):
                continue
            try:
                await run_in_thread(partial(sandbox.load, restored.image), _get_limiter())
            except ValueError as error:
                snapshots.warn_unusable(left.snapshot, error)
            else:
                return left.after
        return 0

    async def _resume(self, midway: SnapshotAfter) -> Suspended | None:
        """Restore the program that waited for a gate; return None if its snapshot cannot be used."""
        sandbox, snapshots = self._sandbox, self._snapshots
        assert sandbox is not None
        restored = None if snapshots is None else await snapshots.load(midway.snapshot, self._engine, "suspended")
        if snapshots is None or restored is None:
            return None
        try:
            suspended = await run_in_thread(partial(sandbox.resume, restored.image), _get_limiter())
        except ValueError as error:
            snapshots.warn_unusable(midway.snapshot, error)
            return None
        self._output, self._seconds = restored.output, 0.0
        self._suspended = replace(suspended, output=restored.output)
        return self._suspended

    # ------------------------------------------------------------------------------------------------------------ steps

    async def _begin(self, code: str, variables: Mapping[str, Any] | None, *, keep: bool) -> Stepped:
        sandbox = self._sandbox
        assert sandbox is not None
        self._output, self._seconds = "", 0.0
        self._suspended_account.programs += 1
        if len(code) > LONGEST_PROGRAM:
            return Exceeded(f"{LONGEST_PROGRAM:,} characters in one program; this one has {len(code):,}")
        return await self._run_step(lambda: sandbox.begin(code, variables), sandbox, keep=keep)

    async def _answer(self, answer: Answer, *, keep: bool = True) -> Stepped:
        sandbox, suspended = self._sandbox, self._suspended
        assert sandbox is not None
        if suspended is None and self._midway is not None:
            suspended = await self._resume(SnapshotAfter(0, self._midway))
        assert suspended is not None, "a program is answered only where it waits, and where its snapshot can be read"
        return await self._run_step(lambda: sandbox.answer(suspended, answer), sandbox, keep=keep)

    async def _run_step(self, compute: Callable[[], Stepped], sandbox: Sandbox, *, keep: bool) -> Stepped:
        """Compute a step, and take a snapshot if it is worth storing."""

        def work() -> tuple[Stepped, Snapshot | None]:
            began = time.perf_counter()
            step = compute()
            took = time.perf_counter() - began
            self._idle_account.seconds += took
            self._suspended_account.seconds += took
            self._seconds += took
            self._output += step.output
            if not isinstance(step, Suspended):
                self._idle_account.programs += 1
            return step, self._take_snapshot(step, sandbox) if keep else None

        try:
            step, self._snapshot = await run_in_thread(work, _get_limiter(), interrupt=sandbox.interrupt)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._close()  # it is rebuilt from what is recorded
            raise
        self._suspended = step if isinstance(step, Suspended) else None
        return step

    def _take_snapshot(self, step: Stepped, sandbox: Sandbox) -> Snapshot | None:
        """Return a snapshot of the sandbox after a step, if it is worth storing. Runs in the step's thread."""
        snapshots = self._snapshots
        if snapshots is None or isinstance(step, Exceeded):  # the step was undone
            return None
        if isinstance(step, Suspended):
            gate = self._circle.gate(step.gate)
            if gate is None or ((gate.kind == "done" or gate.idempotent) and gate.ask_first is None):
                return None  # nothing is recorded before this call, so no record would refer to the snapshot
            if step.image is None or not self._suspended_account.can_afford():
                return None
            return snapshots.seal(self._engine, "suspended", step.image, self._output, self._suspended_account)
        image = sandbox.dump() if self._idle_account.can_afford() else None
        return None if image is None else snapshots.seal(self._engine, "idle", image, "", self._idle_account)

    def _make_event(self, step: Stepped, output: str = "") -> Called | Computed:
        output += step.output
        snapshot, self._snapshot = self._snapshot, None
        self._midway = None
        if isinstance(step, Suspended):
            self._midway = None if snapshot is None else make_reference(snapshot)
            return Called(step.gate, step.args, output, snapshot)
        self._programs_run += 1
        assert self._sandbox is not None
        ended = Computed(output=output, snapshot=snapshot, seconds=self._seconds, memory=self._sandbox.memory)
        if isinstance(step, Raised):
            return ended._replace(error=step.error)
        if isinstance(step, Exceeded):
            return ended._replace(limit=step.limit, snapshot=None)
        return ended._replace(value=step.value)

    async def _close(self) -> None:
        sandbox, self._sandbox, self._suspended = self._sandbox, None, None
        if sandbox is not None:
            closers = get_limiter(_closers, CLOSING)
            await run_in_thread(sandbox.close, closers)


def _get_limiter() -> anyio.CapacityLimiter:
    """Return the limiter of the computing threads: as many as cores, so that they do not slow each other down."""
    return get_limiter(_threads, max(2, os.cpu_count() or 2))

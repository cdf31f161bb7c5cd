"""The laws of mediums, as a kit: `check_medium` runs them against a medium, on every backend that is installed.

    check_medium(Calculator(), MediumPrograms(assign="x = 41", read="x", …))

A law that is broken raises BrokenLaw with the law, what was expected and what came. The kit uses a sandbox as the
runtime does: steps in threads, gates in the event loop, an interrupt for a cancelled caller.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.circle.medium import (
    Answer,
    Exceeded,
    Medium,
    ProgramLimits,
    Sandbox,
    Stepped,
    Suspended,
    validate_medium,
)
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.messages import as_text
from cantrip_actors.user_code.threads import run_in_thread
from cantrip_actors.wards import max_turns

T = TypeVar("T")

ANSWER: Final = "the answer"
KEPT: Final = "41"
LOST: Final = "13"
LATE: Final = 1.5
"""Seconds after a limit or an interrupt within which a step must have ended; the law says one, on an idle machine."""

ENOUGH: Final = 10.0
"""Seconds that a program may take where the law is not about time, so that a busy machine breaks no law."""

HANGS: Final = 20.0
"""Seconds after a limit within which the kit stops to wait."""


class BrokenLaw(AssertionError):
    """A medium breaks a law. `law` is the law's id."""

    def __init__(self, medium: str, law: str, text: str, expected: str, came: object) -> None:
        super().__init__(f'medium "{medium}" breaks {law} ({text}): expected {expected}, got {came}')
        self.law = law


@dataclass(frozen=True, kw_only=True)
class MediumPrograms:
    """Programs in a medium's language, for the laws. A program shows a value as its value or in its output."""

    assign: str
    """Stores 41 for later programs."""
    read: str
    """Shows what `assign` stored; fails, or shows something without 41, if it did not run before."""
    fail: str
    """Fails with an error that contains "bad luck"."""
    call: str
    """Calls `search` with the query "notes", and shows the result."""
    call_twice: str
    """Calls `search` with the query "a", and after that with "b"."""
    done: str
    """Calls `done` with "the answer"."""
    done_and_call: str
    """Calls `done` with "the answer", and after that `search`."""
    read_context: str
    """Shows the variable `context`, which is 17."""
    endless: str = ""
    """Stores 13 in place of 41, and then never ends; empty if no program of the language can run for ever."""
    flood: str = ""
    """Prints more than 5,000 characters; empty if programs print nothing."""
    hog: str = ""
    """Takes memory without end; empty if the medium does not bound the memory of its programs."""


@gate
async def search(query: str) -> str:
    """Search the notes."""
    return f"found {query}"


GATES: Final = (DONE.definition, search.definition)


@dataclass
class _Trial:
    """A medium in one trial of the laws."""

    medium: Medium
    programs: MediumPrograms
    seconds: float
    """The limit of the program that the law about time ends."""
    law: str = ""
    text: str = ""
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(4))

    def expect(self, fits: object, expected: str, came: object) -> None:
        if not fits:
            raise BrokenLaw(self.medium.name, self.law, self.text, expected, came)

    @asynccontextmanager
    async def open(self, gates: Sequence[Any] = GATES, **limits: Any) -> AsyncIterator[_Box]:
        """Yield a new sandbox, and close it twice: the second time must do nothing."""
        used = ProgramLimits(**{"seconds": ENOUGH, **limits})
        sandbox = await self.in_thread(lambda: self.medium.open(gates, used))
        try:
            yield _Box(self, sandbox)
        finally:
            with anyio.CancelScope(shield=True):
                await self.in_thread(sandbox.close)
                await self.in_thread(sandbox.close)

    async def in_thread(
        self, work: Callable[[], T], interrupt: Callable[[], object] = lambda: None, patience: float = 0.0
    ) -> T:
        most = self.seconds + HANGS + patience
        with anyio.move_on_after(most):
            return await run_in_thread(work, self.threads, interrupt=interrupt, grace=1.0)
        self.expect(fits=False, expected="a step that ends", came=f"no end after {most:g} s")
        raise AssertionError


@dataclass
class _Box:
    """A sandbox of a trial."""

    trial: _Trial
    sandbox: Sandbox
    patience: float = 0.0
    """Seconds more that a step may take before the kit stops to wait."""

    async def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        return await self._step(lambda: self.sandbox.begin(code, variables))

    async def answer(self, step: Suspended, value: Any, *, is_error: bool = False, closed: bool = False) -> Stepped:
        return await self._step(lambda: self.sandbox.answer(step, Answer(value, is_error=is_error, closed=closed)))

    async def call(self, code: str, gate: str, args: Mapping[str, Any]) -> Suspended:
        """Begin a program, and return its call of a gate with these arguments."""
        return self.check_call(await self.begin(code), gate, args)

    def check_call(self, step: Stepped, gate: str, args: Mapping[str, Any]) -> Suspended:
        fits = isinstance(step, Suspended) and step.gate == gate and args.items() <= step.args.items()
        self.trial.expect(fits, f"Suspended in {gate} with {dict(args)}", step)
        assert isinstance(step, Suspended)
        return step

    async def check_kept(self, why: str) -> None:
        """Check that the sandbox has what `assign` stored."""
        step = await self.begin(self.trial.programs.read)
        self.trial.expect(KEPT in render(step) and LOST not in render(step), f"{KEPT}, {why}", step)

    async def dump(self) -> bytes | None:
        return await self.trial.in_thread(self.sandbox.dump)

    async def load(self, snapshot: bytes) -> None:
        await self.trial.in_thread(lambda: self.sandbox.load(snapshot))

    async def _step(self, work: Callable[[], Stepped]) -> Stepped:
        step = await self.trial.in_thread(work, self.sandbox.interrupt, self.patience)
        self.trial.expect(isinstance(step, Stepped), "Suspended, Finished, Raised or Exceeded", repr(step))
        return step


def render(step: Stepped) -> str:
    """Return all that an entity sees of a step."""
    values = (getattr(step, name, None) for name in ("value", "error", "limit"))
    return "\n".join([step.output, *(as_text(value) for value in values if value is not None)])


# ------------------------------------------------------------------------------------------------------------- the laws


async def _describes_itself(trial: _Trial) -> None:
    text = trial.medium.capability(GATES, ProgramLimits())
    missing = [definition.name for definition in GATES if definition.name not in text]
    trial.expect(not missing, f"a capability text with the gates {', '.join(missing)}", text)


async def _waits_for_a_gate(trial: _Trial) -> None:
    async with trial.open() as box:
        step = await box.call(trial.programs.call, "search", {"query": "notes"})
        ended = await box.answer(step, "found 7341")
        trial.expect(not isinstance(ended, Suspended), "the program's end after the answer", ended)


async def _shows_results(trial: _Trial) -> None:
    async with trial.open() as box:
        step = await box.call(trial.programs.call, "search", {"query": "notes"})
        ended = await box.answer(step, "found 7341")
        trial.expect("found 7341" in render(ended), 'the result "found 7341"', ended)


async def _shows_errors(trial: _Trial) -> None:
    async with trial.open() as box:
        step = await box.call(trial.programs.call, "search", {"query": "notes"})
        ended = await box.answer(step, "no such note 8812", is_error=True)
        trial.expect("no such note 8812" in render(ended), 'the error "no such note 8812"', ended)
        await box.begin(trial.programs.assign)
        failed = await box.begin(trial.programs.fail)
        trial.expect("bad luck" in render(failed), 'the program\'s error "bad luck"', failed)
        await box.check_kept("which an earlier program stored")


async def _enforces_gates(trial: _Trial) -> None:
    async with trial.open(GATES[:1]) as box:
        step = await box.begin(trial.programs.call)
        trial.expect(not isinstance(step, Suspended), "no call of a gate that the sandbox does not have", step)
    async with trial.open(gate_calls=1) as box:
        await box.begin(trial.programs.assign)
        step = await box.call(trial.programs.call_twice, "search", {"query": "a"})
        ended = await box.answer(step, "found a")
        fits = isinstance(ended, Exceeded) and "1 gate calls" in ended.limit
        trial.expect(fits, "Exceeded with '1 gate calls in one program' at the second call", ended)
        await box.check_kept("as before the turn that exceeded a limit")


async def _keeps_order(trial: _Trial) -> None:
    async with trial.open() as box:
        first = await box.call(trial.programs.call_twice, "search", {"query": "a"})
        second = box.check_call(await box.answer(first, "found a"), "search", {"query": "b"})
        ended = await box.answer(second, "found b")
        trial.expect(not isinstance(ended, Suspended | Exceeded), "the program's end after both answers", ended)


async def _ends_with_done(trial: _Trial) -> None:
    async with trial.open() as box:
        step = await box.call(trial.programs.done_and_call, "done", {"answer": ANSWER})
        ended = await box.answer(step, None, closed=True)
        trial.expect(not isinstance(ended, Suspended), "no gate call after done", ended)


async def _keeps_variables(trial: _Trial) -> None:
    async with trial.open() as box, trial.open() as other:
        await box.begin(trial.programs.assign)
        await box.check_kept("which an earlier program stored")
        step = await other.begin(trial.programs.read)
        trial.expect(KEPT not in render(step), f"no {KEPT} in another sandbox", step)


async def _takes_the_context(trial: _Trial) -> None:
    async with trial.open() as box:
        step = await box.begin(trial.programs.read_context, {"context": 17})
        trial.expect("17" in render(step), "17, the variable `context`", step)


async def _keeps_snapshots(trial: _Trial) -> None:
    async with trial.open() as box, trial.open() as other:
        await box.begin(trial.programs.assign)
        snapshot = await box.dump()
        if snapshot is not None:
            await other.load(snapshot)
            await other.check_kept("which is in the loaded snapshot")
        try:
            await other.load(b"\x00 no snapshot")
        except ValueError:
            await box.check_kept("after a snapshot was refused")
        else:
            trial.expect(fits=False, expected="ValueError for bytes that are no snapshot", came="no error")
        step = await box.call(trial.programs.call, "search", {"query": "notes"})
        waiting = await box.dump() if step.image is None else None
        trial.expect(waiting is None, "None from `dump` while a program waits", waiting)


async def _replays(trial: _Trial) -> None:
    async with trial.open() as box, trial.open() as again:
        calls, ends = [], []
        for each in (box, again):
            await each.begin(trial.programs.assign)
            step = await each.call(trial.programs.call, "search", {"query": "notes"})
            calls.append(step.args)
            ends.append(render(await each.answer(step, "found 7341")))
        trial.expect(calls[0] == calls[1] and ends[0] == ends[1], f"{calls[0]} and {ends[0]!r} again", (calls, ends))


async def _bounds_time(trial: _Trial) -> None:
    if not trial.programs.endless:
        return
    async with trial.open(seconds=trial.seconds) as box:
        await box.begin(trial.programs.assign)
        began = time.monotonic()
        step = await box.begin(trial.programs.endless)
        took = time.monotonic() - began
        trial.expect(isinstance(step, Exceeded), f"Exceeded after {trial.seconds:g} s", step)
        trial.expect(took < trial.seconds + LATE, f"an end within {trial.seconds:g} s", f"{took:.1f} s")
        await box.check_kept("as before the turn that exceeded a limit")


async def _bounds_memory(trial: _Trial) -> None:
    if not trial.programs.hog:
        return
    async with trial.open(seconds=30.0) as box:
        box.patience = 30.0
        await box.begin(trial.programs.assign)
        step = await box.begin(trial.programs.hog)
        fits = isinstance(step, Exceeded) and "MiB of memory" in step.limit
        trial.expect(fits, "Exceeded with '64 MiB of memory'", step)
        await box.check_kept("as before the turn that exceeded a limit")


async def _bounds_output(trial: _Trial) -> None:
    if not trial.programs.flood:
        return
    async with trial.open(output=1_000) as box:
        step = await box.begin(trial.programs.flood)
        trial.expect(len(step.output) <= 1_200, "an output of 1000 characters and a note", f"{len(step.output)}")


async def _can_be_interrupted(trial: _Trial) -> None:
    async with trial.open(seconds=60.0) as box:
        await box.begin(trial.programs.assign)
        box.sandbox.interrupt()
        await box.check_kept("after an interrupt between two turns, which does nothing")
        if not trial.programs.endless:
            return
        step: Stepped | None = None
        began = time.monotonic()

        async def run() -> None:
            nonlocal step
            step = await box.begin(trial.programs.endless)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.sleep(0.1)
            box.sandbox.interrupt()
        took = time.monotonic() - began
        trial.expect(isinstance(step, Exceeded) and took < LATE, "Exceeded at once after an interrupt", step)
        await box.check_kept("as before the turn that was interrupted")


async def _acts_in_a_circle(trial: _Trial) -> None:
    programs = trial.programs
    crystal = scripted([{"code": code} for code in (programs.assign, programs.call, programs.read, programs.done)])
    circle = Circle(["done", search], [max_turns(6)], medium=trial.medium)
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle), "Find it.")
        turns = runtime.loom.turns(episode.entity_id)
        shown = [turn.observation for turn in turns]
        trial.expect(episode.result == ANSWER, f'an episode that ends with "{ANSWER}"', shown)
        trial.expect("found notes" in shown[1], 'an observation with "found notes"', shown[1])
        trial.expect(KEPT in shown[2], f"an observation with {KEPT}", shown[2])
        fork = await runtime.fork(turns[1].id, intent="Read it.", cantrip=_reading(circle, programs))
        shown = [turn.observation for turn in runtime.loom.turns(fork.entity_id)]
        trial.expect(any(KEPT in text for text in shown[-2:]), f"a fork that has {KEPT}", shown)


def _reading(circle: Circle, programs: MediumPrograms) -> Cantrip:
    return Cantrip(scripted([{"code": programs.read}, {"code": programs.done}]), circle=circle)


Law = Callable[[_Trial], Awaitable[None]]

LAWS: Final[Sequence[tuple[str, str, Law]]] = (
    ("CALL-3", "the capability text describes the gates", _describes_itself),
    ("CIRCLE-3", "a program waits for the gate that it calls", _waits_for_a_gate),
    ("CIRCLE-4", "a program sees what its gates return", _shows_results),
    ("CIRCLE-7", "gate calls run in order, each after the answer to the one before", _keeps_order),
    ("CIRCLE-9", "variables are kept from turn to turn, and are the entity's own", _keeps_variables),
    ("CIRCLE-5", "the entity sees the failures of gates and programs", _shows_errors),
    ("CIRCLE-6", "a program has only its gates, and so many calls", _enforces_gates),
    ("CIRCLE-8", "done takes the answer, and closes the gates", _ends_with_done),
    ("context", "the context of an intent is a variable", _takes_the_context),
    ("snapshots", "a snapshot restores the sandbox, and others are refused", _keeps_snapshots),
    ("replay", "the same programs and answers lead to the same state", _replays),
    ("seconds", "a program that takes too long is ended, and its turn undone", _bounds_time),
    ("memory", "a program that takes too much memory is ended, and its turn undone", _bounds_memory),
    ("output", "the output is bounded", _bounds_output),
    ("cancellation", "an interrupt ends the program, and its turn is undone", _can_be_interrupted),
    ("episode", "an entity acts in a circle with the medium, and a fork continues", _acts_in_a_circle),
)
"""The laws: the id, the law, and its check."""


def check_medium(
    medium: Medium,
    programs: MediumPrograms,
    *,
    seconds: float = 0.3,
    backends: Sequence[str] = (),
) -> None:
    """Check that a medium keeps all laws, on asyncio and, if it is installed, on trio. Takes some seconds.

    Call it from a synchronous test: it runs event loops.

    Args:
        medium: the medium to check.
        programs: programs in its language.
        seconds: the limit of the program that never ends. A medium whose programs start slowly needs more.
        backends: the backends to run on; asyncio and trio if left out.

    Raises:
        BrokenLaw: the first law that is broken.
    """
    if isinstance(medium, str):
        raise InvalidCantrip(f'medium: expected a Medium, such as MyMedium(), got its name "{medium}"')
    validate_medium(medium)
    for backend in backends or ("asyncio", *(("trio",) if find_spec("trio") else ())):
        anyio.run(_check_all, _Trial(medium, programs, seconds), backend=backend)


async def _check_all(trial: _Trial) -> None:
    for trial.law, trial.text, check in LAWS:
        await check(trial)

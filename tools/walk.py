"""Measure the walk of data through the product: how much code and how many tasks one message passes.

    python -m tools.walk               print the table
    python -m tools.walk --limits      the same, and fail if a figure is above its limit
    python -m tools.walk --show send   print a walk itself, too: tasks, files and statements in order

Each walk runs once to warm up and once to be measured, on asyncio in virtual time, on a new loom in SQLite:

- *cast*: from `runtime.cast` to the append of the entity's first record: up to the `begin` of that transaction.
- *send*: from `entity.send(…, key=…)` to a long-lived entity that is not loaded until it returns the episode.
- *gate*: from the commit of the gate's start until the machine accepts its observation: entity, circle, entity.
- *crash*: from an exception in the actor of a child until its parent's crystal is asked with the observation. Restarts
  that fail are part of the walk. The exception is raised where the machine accepts the answer of the child's crystal.

What is counted between those two moments, in all tasks and threads of the process:

- *calls*: calls of Python functions of the product; a coroutine that continues is no further call.
- *files*: the files that those functions, and the coroutines that continue, are in.
- *changes*: how often code of the product runs in another task or thread than the code of the product before it. The
  callbacks that the event loop runs outside of any task count as one more task.
- *statements*: SQL statements, with `begin`, `commit` and pragmas, and without those that triggers run.
- *writes*: transactions that write (`begin immediate`).

The product is `cantrip_actors` and `supervisors` without `supervisors.testing`, whose clock drives the measurement. A
scripted crystal is part of the product; other libraries are not.
"""

import argparse
import asyncio
import dis
import itertools
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import anyio
from structlog.testing import capture_logs

import cantrip_actors
import supervisors
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.machine.accept import accept
from cantrip_actors.wards import max_depth, max_turns
from supervisors.testing import virtual

PACKAGES = tuple(Path(package.__file__ or "").parent for package in (cantrip_actors, supervisors))
EXCLUDED = PACKAGES[1] / "testing.py"


class Figures(NamedTuple):
    """The figures of a walk, or their limits; None: not limited."""

    calls: int | None = None
    files: int | None = None
    changes: int | None = None
    statements: int | None = None
    writes: int | None = None


LIMITS = {
    "cast": Figures(files=45, changes=4),
    "send": Figures(files=60, changes=8, statements=15, writes=2),
    "gate": Figures(files=25, changes=2),
    "crash": Figures(files=50, changes=12),
}
"""The most that each walk may take."""


Runner = tuple[int, object]
"""A thread, and a task of its event loop; None for a callback, and for a thread without an event loop."""


class Step(NamedTuple):
    """One step of a walk: a function that is called or continues, or an SQL statement.

    `file` is empty for a statement. A function that continues is no call.
    """

    text: str
    runner: Runner
    file: str = ""
    is_call: bool = False


class Trace:
    """The steps of the product from `begin` to `end`, in all threads that start while it is active."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.marks: dict[str, int] = {}
        """The number of steps that came before each mark."""
        self._is_on = False

    def begin(self) -> None:
        """Drop what was traced so far, and trace from now on."""
        self.steps.clear()
        self.marks.clear()
        self._is_on = True

    def end(self) -> list[Step]:
        """Stop, and return the steps."""
        self._is_on = False
        return self.steps

    def mark(self, name: str) -> None:
        """Note this moment, unless a moment of that name is noted already."""
        self.marks.setdefault(name, len(self.steps))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch functions and new connections to SQLite inside the block."""
        connect, profile = sqlite3.connect, sys.getprofile()

        def connect_traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **options)
            connection.set_trace_callback(self._note_statement)
            return connection

        sqlite3.connect = connect_traced  # type: ignore[assignment]  # it has one signature where that has several
        threading.setprofile(self._note_function)
        sys.setprofile(self._note_function)
        try:
            yield
        finally:
            sys.setprofile(profile)
            threading.setprofile(profile)
            sqlite3.connect = connect

    def _note_function(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call" and (file := _find_file(frame.f_code)):
            is_call = frame.f_lasti <= _find_start(frame.f_code)
            self.steps.append(Step(frame.f_code.co_qualname, _find_runner(), file, is_call))

    def _note_statement(self, text: str) -> None:
        if not self._is_on:
            return
        step = Step(" ".join(text.split()), _find_runner())
        if (
            step != self.steps[-1]
        ):  # SQLite repeats the text of a statement for each statement of a trigger that it fires
            self.steps.append(step)


@cache
def _find_file(code: CodeType) -> str:
    """Return the path of a function's file in the product; an empty text if it is not part of the product."""
    path = Path(code.co_filename)
    for package in PACKAGES:
        if path.is_relative_to(package) and not path.is_relative_to(EXCLUDED):
            return path.relative_to(package.parent).as_posix()
    return ""


@cache
def _find_start(code: CodeType) -> int:
    """Return the position at which a call of a function begins; a coroutine continues at a later one."""
    return next(instruction.offset for instruction in dis.get_instructions(code) if instruction.opname == "RESUME")


def _find_runner() -> Runner:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task


def count(steps: Sequence[Step]) -> Figures:
    """Return the figures of a walk."""
    functions = [step for step in steps if step.file]
    statements = [step.text.lower() for step in steps if not step.file]
    return Figures(
        calls=sum(step.is_call for step in functions),
        files=len({step.file for step in functions}),
        changes=sum(step.runner != before.runner for before, step in pairwise(functions)),
        statements=len(statements),
        writes=sum(statement.startswith("begin immediate") for statement in statements),
    )


# The walks


def _call(name: str, **arguments: object) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": arguments}]}


async def walk_cast(trace: Trace, url: str) -> list[Step]:
    """Return the steps from a cast to its first append."""
    cantrip = Cantrip(
        scripted(lambda _: _call("done", answer="ok"), record=False), circle=Circle(["done"], [max_turns(2)])
    )
    async with Runtime.open(url) as runtime:
        await runtime.cast(cantrip, "warm up")
        trace.begin()
        await runtime.cast(cantrip, "go")
        steps = trace.end()
    insert = _find(steps, 0, lambda step: not step.file and step.text.lower().startswith("insert into records"))
    return steps[: _find_last(steps, insert, lambda step: not step.file and step.text.lower().startswith("begin")) + 1]


async def walk_send(trace: Trace, url: str) -> list[Step]:
    """Return the steps from a durable send to an entity that is not loaded to the episode."""
    cantrip = Cantrip(
        scripted(lambda _: _call("done", answer="ok"), record=False),
        circle=Circle(["done"], [max_turns(2)]),
        name="keeper",
    )
    async with Runtime.open(url) as runtime:
        for name in ("warm", "cold"):
            await (await runtime.invoke(cantrip, "begin", name=name)).episode()
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        warm, cold = runtime.entity("warm"), runtime.entity("cold")
        assert warm is not None, "the loom has it"
        assert cold is not None, "the loom has it"
        await warm.send("warm up", key="1")
        await anyio.sleep(1.25)  # between two polls of the loom, which are no part of the walk
        trace.begin()
        await cold.send("go", key="1")
        return trace.end()


async def walk_gate(trace: Trace, url: str) -> list[Step]:
    """Return the steps from the start of a gate, as recorded, to its observation. The circle runs already."""
    calls = itertools.count()

    @gate
    async def look() -> str:
        """Look around."""
        if next(calls) % 2:
            trace.mark("gate")
        return "nothing"

    def answer(context: Invocation) -> dict[str, Any]:
        return _call("look") if len(context) < 5 else _call("done", answer="ok")

    cantrip = Cantrip(scripted(answer, record=False), circle=Circle(["done", look], [max_turns(5)]))
    async with Runtime.open(url) as runtime:
        await runtime.cast(cantrip, "warm up")
        trace.begin()
        await runtime.cast(cantrip, "go")
        steps, ran = trace.end(), trace.marks["gate"]
    began = _find_last(steps, ran, lambda step: not step.file and step.text.lower() == "commit")
    return steps[began : _find(steps, ran, _is_accept) + 1]


async def walk_crash(trace: Trace, url: str) -> list[Step]:
    """Return the steps from a child's crash to the query of its parent that shows the observation."""

    def crash(plan: Any, *arguments: Any) -> Any:
        if plan.parent_entity is not None and type(arguments[-1]).__name__ == "Replied":
            trace.mark("crash")
            raise ZeroDivisionError("a bug that the measurement makes")
        return accept(plan, *arguments)

    def answer(context: Invocation) -> dict[str, Any]:
        if context[-1].role == "user":
            return _call("call_agent", intent="crash")
        trace.mark("asked")
        return _call("done", answer="ok")

    cantrip = Cantrip(
        scripted(answer, record=False),
        circle=Circle(["done", "call_agent"], [max_turns(3), max_depth(1)]),
        child_crystal=scripted(lambda _: _call("done", answer="never"), record=False),
    )
    with capture_logs(), _replaced(accept, crash):
        async with Runtime.open(url) as runtime:
            await runtime.cast(cantrip, "warm up")
            trace.begin()
            await runtime.cast(cantrip, "go")
            steps = trace.end()
    return steps[trace.marks["crash"] : trace.marks["asked"]]


WALKS: dict[str, Callable[[Trace, str], Awaitable[list[Step]]]] = {
    "cast": walk_cast,
    "send": walk_send,
    "gate": walk_gate,
    "crash": walk_crash,
}


def _is_accept(step: Step) -> bool:
    return step.text == "accept" and step.file == _find_file(accept.__code__)


def _find(steps: Sequence[Step], at: int, is_wanted: Callable[[Step], bool]) -> int:
    """Return the index of the first step from `at` on that is wanted."""
    return next(n for n in range(at, len(steps)) if is_wanted(steps[n]))


def _find_last(steps: Sequence[Step], before: int, is_wanted: Callable[[Step], bool]) -> int:
    """Return the index of the last step before `before` that is wanted."""
    return next(n for n in range(before - 1, -1, -1) if is_wanted(steps[n]))


@contextmanager
def _replaced(function: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """Have every module that imported a function call another one instead, inside the block."""
    places = [
        (module, name)
        for module in list(sys.modules.values())
        if module.__name__.startswith(cantrip_actors.__name__)
        for name, value in vars(module).items()
        if value is function
    ]
    for module, name in places:
        setattr(module, name, other)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, function)


def measure(name: str) -> list[Step]:
    """Return the steps of a walk."""
    trace = Trace()
    _, options = virtual("asyncio")
    with tempfile.TemporaryDirectory(prefix="walk-") as folder, trace.active():
        return anyio.run(partial(WALKS[name], trace), f"sqlite:{folder}/loom.db", backend_options=options)


# Output


def render_table(found: dict[str, Figures]) -> Iterator[str]:
    """Yield the lines of the table; a limit follows its figure in parentheses."""
    yield f"{'':<8}" + "".join(f"{column:>18}" for column in Figures._fields)
    for name, figures in found.items():
        cells = [
            f"{figure} ({limit})" if limit is not None else f"{figure}"
            for figure, limit in zip(figures, LIMITS[name], strict=True)
        ]
        yield f"{name:<8}" + "".join(f"{cell:>18}" for cell in cells)


def find_excesses(found: dict[str, Figures]) -> list[str]:
    """Return a line for each figure above its limit."""
    return [
        f"{name}: {figure} {column}, at most {limit}"
        for name, figures in found.items()
        for column, figure, limit in zip(Figures._fields, figures, LIMITS[name], strict=True)
        if figure is not None and limit is not None and figure > limit
    ]


def render_walk(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the lines of a walk: a rule where the task changes, the first function in each file, each statement."""
    runners: dict[Runner, int] = {}
    files: set[str] = set()
    before: Runner | None = None
    for step in steps:
        if step.file and step.runner != before:
            before = step.runner
            yield f"---- task {runners.setdefault(before, len(runners) + 1)}: {step.file}:{step.text}"
        if not step.file:
            yield f"         sql {step.text[:100]}"
        elif step.file not in files:
            files.add(step.file)
            yield f"    {len(files):>4} {step.file}:{step.text}"


def main() -> int:
    """Measure and print; with `--limits` return 1 if a figure is above its limit, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.walk", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="default: all")
    parser.add_argument("--limits", action="store_true", help="fail if a figure is above its limit")
    parser.add_argument("--show", action="store_true", help="print the walks themselves, too")
    options = parser.parse_args()
    walks = {name: measure(name) for name in options.walks or WALKS}
    if options.show:
        for name, steps in walks.items():
            print(name, *render_walk(steps), sep="\n")
    figures = {name: count(steps) for name, steps in walks.items()}
    print(*render_table(figures), sep="\n")
    excesses = find_excesses(figures) if options.limits else []
    print(*excesses, sep="\n", end="\n" if excesses else "")
    return bool(excesses)


if __name__ == "__main__":
    sys.exit(main())

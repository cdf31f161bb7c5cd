"""The functions that may catch every exception, and why: the named boundaries of D-011, as a table.

An expected failure becomes an observation at the boundary where it happens; anything else is a bug and must crash the
actor, so that its supervisor decides. A catch-all anywhere else would hide such a bug, and is refused here:
``except:``, ``except Exception``, ``except BaseException``, either of them in a tuple or in ``except*``, and
``suppress(Exception)``. A handler that ends by raising again catches nothing and needs no row.

To add a boundary, add a row with the reason. A row whose function is gone or no longer catches everything is an error,
and so is a row without a reason. ``python -m tools.boundaries`` checks it all, as part of ``make lint``.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CHECKED = ("supervisors", "cantrip_actors", "conformance", "bench")
EVERYTHING = frozenset({"Exception", "BaseException"})


class Boundary(NamedTuple):
    """One function (``Class.method``, ``outer.inner``) of one file that may catch every exception, and why."""

    file: str
    function: str
    reason: str


BOUNDARIES: tuple[Boundary, ...] = (
    Boundary(
        "supervisors/incarnation.py",
        "_run_worker",
        "any exception that leaves an actor becomes its exit reason: supervision's boundary",
    ),
    Boundary(
        "supervisors/incarnation.py",
        "Incarnation.terminate",
        "an exception of the cleanup becomes the exit reason, as in OTP",
    ),
    Boundary(
        "supervisors/incarnation.py",
        "Incarnation.answer_in_scope",
        "an exception of the function that answers a call is the reply, and is raised in the caller",
    ),
    Boundary("supervisors/system.py", "_write_report", "a failed report must not end the actor that it is about"),
    Boundary("supervisors/reasons.py", "render_exception", "an exception without a readable text is reported, too"),
    Boundary(
        "supervisors/incarnation.py",
        "Incarnation.take_snapshot",
        "a snapshot that fails is lost, and that is reported",
    ),
    Boundary(
        "supervisors/incarnation.py", "create_actor", "a factory is the actor's code: its failure is a failed start"
    ),
    Boundary(
        "cantrip_actors/user_code/attempt.py",
        "attempt",
        "an exception of a gate, a step around one or a crystal is a value (CIRCLE-5); the loop continues",
    ),
    Boundary("cantrip_actors/user_code/attempt.py", "attempt_now", "the same for user code that does not wait"),
    Boundary(
        "cantrip_actors/terms/gate.py",
        "Gate._check_model",
        "a validator of a gate's parameter is user code: its exception is a refusal, as a ValueError is",
    ),
    Boundary(
        "cantrip_actors/terms/argument_model.py",
        "_make_plain_answer",
        "a validator of an answer is user code, and here gets what pydantic wrote, for which it may not be made",
    ),
    Boundary(
        "cantrip_actors/circle/javascript/engine.py",
        "Guest.receive",
        "around the medium: no exception may unwind through the engine; the guest is halted, and its caller gets it",
    ),
    Boundary(
        "cantrip_actors/circle/python/values.py",
        "read_out",
        "around the Python medium: making a program's value in this process may fail for any reason",
    ),
    Boundary(
        "cantrip_actors/http/endpoint.py",
        "Endpoint._answer",
        "around requests: our own bug is one 500 with an id in the log, and the service continues",
    ),
    Boundary(
        "cantrip_actors/http/feeds.py",
        "Feed.run",
        "a feed only observes: if it crashes, its readers reconnect, and neither other feeds nor entities are affected",
    ),
    Boundary(
        "cantrip_actors/agentic/agent_dispatcher.py",
        "AgentDispatcher._call",
        "if a schema's validator raises, the answer does not fit: it is asked for again",
    ),
    Boundary(
        "cantrip_actors/agentic/execution.py",
        "Controller.invoke",
        "an agent's exception ends its run and becomes the cause; the crystal's retries must not see it",
    ),
    Boundary(
        "cantrip_actors/redact/logs.py",
        "Logger._write",
        "logging must not disturb the program: the user's processors and files may raise anything",
    ),
    Boundary("cantrip_actors/own_files/modes.py", "_warn", "the same, in a module that may not import the library"),
    Boundary("cantrip_actors/testing/crashes.py", "Process._live", "what a crashed process raises is lost with it"),
    Boundary(
        "cantrip_actors/testing/simulation/world.py",
        "SimulatedWorld._live",
        "what a scenario raises is the outcome of its simulation",
    ),
    Boundary(
        "cantrip_actors/testing/simulation/world.py",
        "SimulatedWorld._read_loom",
        "what a check of the loom raises is the outcome of its simulation",
    ),
    Boundary(
        "cantrip_actors/testing/restarted_process.py",
        "_ProcessCall.do",
        "what a step of a test raises is for the test, and does not end the process",
    ),
    Boundary("cantrip_actors/testing/stepped_loop.py", "SteppedLoop.run.step", "the same, and the event loop"),
    Boundary(
        "cantrip_actors/runtime/entity/launcher.py",
        "Launcher.quarantine_crashes",
        "around an entity that has no actor yet: its crash quarantines it, and its callers get it",
    ),
    Boundary(
        "cantrip_actors/runtime/entity/beginnings.py",
        "Beginnings._begin_once",
        "the same around an entity that a schedule or a submission begins: it is tried again, the scheduler runs on",
    ),
    Boundary("cantrip_actors/runtime/face/owner.py", "Owner._run", "`open` and `close` raise it in the caller's task"),
    Boundary("cantrip_actors/observe/tracing.py", "attempt", "a span processor's exception has no effect"),
    Boundary(
        "cantrip_actors/observe/tracing.py",
        "guard_episode.run_guarded",
        "the same, and the episode is not traced any further",
    ),
    Boundary("conformance/cancel/campaign.py", "run", "an example reports any exception, and the campaign continues"),
    Boundary("conformance/fuzz/campaign.py", "failure", "fuzzing looks for any exception that an input causes"),
    Boundary("conformance/run.py", "_run_guarded", "a suite continues after a case in which the product crashed"),
)


class CatchAll(NamedTuple):
    """A catch-all that was found."""

    file: str
    function: str
    line: int


def catch_alls(source: str, file: str) -> Iterator[CatchAll]:
    """Yield every catch-all of a module, with its function (empty at the top level)."""
    yield from _walk(ast.parse(source, file), file, ())


def _walk(node: ast.AST, file: str, scope: tuple[str, ...]) -> Iterator[CatchAll]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    elif isinstance(node, ast.ExceptHandler):
        if _is_everything(node.type) and not _raises_again(node):
            yield CatchAll(file, ".".join(scope), node.lineno)
    elif isinstance(node, ast.Call) and _name(node.func) == "suppress" and any(map(_is_everything, node.args)):
        yield CatchAll(file, ".".join(scope), node.lineno)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, file, scope)


def _is_everything(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(map(_is_everything, caught.elts))
    return _name(caught) in EVERYTHING


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Return whether every path through the handler ends in a bare ``raise`` (or raises the bound exception)."""
    last = handler.body[-1]
    again = isinstance(last, ast.Raise) and (
        last.exc is None or (isinstance(last.exc, ast.Name) and last.exc.id == handler.name)
    )
    return again and not any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(handler))


def faults(catches: list[CatchAll], table: tuple[Boundary, ...], files: set[str]) -> Iterator[str]:
    """Yield the problems: catch-alls that the table does not name, rows without a reason, rows without a catch-all."""
    allowed = {(row.file, row.function) for row in table}
    for catch in catches:
        if (catch.file, catch.function) not in allowed:
            where = f"in {catch.function}" if catch.function else "at the top level"
            yield (
                f"{catch.file}:{catch.line}: catches everything {where}. Catch what you expect and let the rest crash; "
                f"a new boundary needs a row, with its reason, in tools/boundaries.py"
            )
    standing = {(catch.file, catch.function) for catch in catches}
    for row in table:
        if not row.reason.strip():
            yield f"tools/boundaries.py: {row.file} {row.function} has no reason"
        if row.file in files and (row.file, row.function) not in standing:
            yield f"tools/boundaries.py: {row.file} {row.function} catches everything no longer; remove its row"
        if row.file not in files:
            yield f"tools/boundaries.py: {row.file} is gone; remove its rows"


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in CHECKED
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    catches = [catch for file, source in sources.items() for catch in catch_alls(source, file)]
    problems = list(faults(catches, BOUNDARIES, set(sources)))
    print(*problems, sep="\n") if problems else print(
        f"boundaries: {len(catches)} catch-alls, each at a named boundary"
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

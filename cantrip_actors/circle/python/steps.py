"""Steps of Python programs, computed in a worker: bytes and JSON in, bytes and JSON out.

A step loads the sandbox's bytes into the interpreter, runs the program until it calls a gate or ends, and returns the
new bytes. The program's results are converted to JSON and bounded here, in a process that can be killed at any moment,
so the host never handles a value that a program made before that.

This file answers every request of a program: a gate call suspends it; anything else (a file, a clock, an environment
variable) raises an exception inside it.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, Final, TypeGuard

from msgspec import to_builtins
from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    NameLookupSnapshot,
    OSPolicy,
    ResourceLimits,
)

from cantrip_actors.circle.python.errors import REQUESTS, describe, find_limit
from cantrip_actors.circle.python.snapshots import DamagedSnapshot, pack, unpack
from cantrip_actors.circle.python.values import ArgumentsConversion, read_out, render
from cantrip_actors.circle.step import (
    CLOSED,
    Finished,
    Limit,
    LimitExceeded,
    ProgramLimits,
    Raised,
    Stepped,
    Suspended,
)
from cantrip_actors.terms.bounds import NotPlain, TooLarge
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.messages import make_encodable

GRACE: Final = 0.6
"""Seconds past its limit after which an interpreter that has not noticed is killed. The contract allows a second; the
rest of it is for the kill, and for a busy machine."""

STALLED: Final = 10.0
"""Seconds past its limit after which a step is ended although no process computes."""

SESSIONS: Final = 2_000
"""Steps after which an interpreter is replaced, so that its leaks stay small."""

KEEPING: Final = ", in which variables have to be written out, too: they may take a third of it, so keep less of them"
"""The end of the error for a program that ended within its memory, but whose variables do not fit into a snapshot."""

_STANDS_FOR: Final = "<function {}>"

_NONSENSE: Final = "monty worker protocol error"
"""The start of the RuntimeError that the interpreter's client raises for an invalid answer of the interpreter."""

MontySnapshot = FunctionSnapshot | NameLookupSnapshot | FutureSnapshot | MontyComplete
MontyResult = dict[str, Any]
"""The result of a call inside the program, in the interpreter's form."""

Gates = Mapping[str, tuple[str, list[str]]]
"""Each gate's own name and ordered parameters, by the names that a program can call it by."""


@dataclass(slots=True)
class _ProgramTurn:
    """The resources that one program has used and the results that it awaits; stored with a suspended program."""

    limits: ProgramLimits
    gates: Gates
    stream: FileIO
    """A copy of the output goes here: the host reads it if this process is killed."""
    calls: int = 0
    printed: int = 0
    """Characters of output that were kept so far."""
    awaited: dict[str, MontyResult] = field(default_factory=dict)
    closed: bool = False
    again: float = 0.0
    """Seconds that a replay took to reach the program's old position; they do not count against its limit."""
    began: float = 0.0
    """When the step began, by this process's clock."""
    printed_parts: list[str] = field(default_factory=list)
    cut: int = 0
    """Characters of this step's output that were cut."""

    @property
    def time(self) -> float:
        """Seconds that the program may take."""
        return self.limits.time + self.again

    def make_head(self, *, again: bool) -> dict[str, Any]:
        """Return the data stored with a suspended program. `again` says whether this step was a replay."""
        spent = self.again + (time.perf_counter() - self.began if again else 0.0)
        head = {"calls": self.calls, "printed": self.printed, "awaited": self.awaited}
        return head | {"again": spent} if spent else head

    def print(self, _stream: str, text: str) -> None:
        """Keep printed text up to the limit, and count the rest."""
        shown = text[: max(0, self.limits.output - self.printed)]
        self.printed_parts.append(shown)
        self.printed += len(shown)
        self.cut += len(text) - len(shown)
        if shown:
            self.stream.write(make_encodable(shown).encode())
        if self.cut:  # the next notice, which is at least as long, overwrites this one
            self.stream.seek(-self.stream.write(self.render_notice().encode()), 1)

    def render_notice(self) -> str:
        """Return the notice about output that was cut; empty if none was."""
        return f"\n[{self.cut} more characters of output were cut]" if self.cut else ""

    def render_output(self) -> str:
        """Return the output of this step."""
        return make_encodable("".join(self.printed_parts)) + self.render_notice()


class KernelTimers:
    """The kernel's timers that end this process: one for its own CPU time, one for the duration of a step."""

    def start(self, seconds: float) -> None:
        """Start a step that may use this many seconds of CPU time, and some more of real time."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, seconds + STALLED)

    def shorten(self, seconds: float) -> None:
        """Reduce the remaining CPU time to at most this many seconds."""
        if sys.platform != "win32":
            left, _ = signal.getitimer(signal.ITIMER_PROF)
            if seconds < left:
                signal.setitimer(signal.ITIMER_PROF, seconds)

    def stop(self) -> None:
        """End a step: the host no longer waits."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)


def make_interpreter(binary: str) -> Monty:
    """Return the interpreter, to be entered. Its process starts with the first step, and serves later ones."""
    return Monty(
        binary_path=binary,
        min_processes=0,
        max_processes=1,
        max_checkouts_per_worker=SESSIONS,
        feed_duration_limit_grace=GRACE,
    )


class Steps:
    """Compute steps one at a time, in an interpreter.

    A program's output is copied to `printed`. `clock` ends this process when a step takes too long here.
    """

    def __init__(self, interpreter: Monty, printed: FileIO, clock: KernelTimers) -> None:
        self._interpreter = interpreter
        self._printed = printed
        self._clock = clock

    def compute(self, request: Mapping[str, Any], state: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the outcome of a step, and the new snapshot; an empty one if the sandbox is unchanged.

        `request` is a begin, answer, load or resume, as `PythonSandbox` writes it.
        """
        limits, gates = ProgramLimits(**request["limits"]), request["gates"]
        self._clock.start(limits.time + GRACE)
        if self._printed.tell():
            self._printed.seek(0)
            self._printed.truncate()
        turn = _ProgramTurn(limits, gates, self._printed)
        try:
            match request["do"]:
                case "begin":
                    step, new_state = self._begin(turn, request, state)
                case "answer":
                    step, new_state = self._answer(turn, request["answer"], state)
                case "resume":
                    step, new_state = self._resume(turn, state), b""
                case _:
                    self._load(state)
                    step, new_state = Finished(None), b""
        except DamagedSnapshot as damaged:
            return {"damaged": str(damaged)}, b""
        except MontyCrashedError as error:  # while it loaded a snapshot, and no program ran
            return {"damaged": f"the interpreter cannot load the snapshot: {error}"}, b""
        except LimitExceeded as problem:
            step, new_state = problem.end_step(limits, turn.render_output()), b""
        except MemoryError:
            step, new_state = LimitExceeded("memory").end_step(limits, turn.render_output()), b""
        return to_builtins(step), new_state

    def _begin(self, turn: _ProgramTurn, request: Mapping[str, Any], idle: bytes) -> tuple[Stepped, bytes]:
        code, inputs = request["code"], request["inputs"]

        def start(session: MontySession) -> MontySnapshot:
            if idle:
                with _reject_damage():
                    session.load_session(idle)
            gates = {name: _make_stand_in(name) for name in turn.gates}  # an earlier program may have replaced one
            return session.feed_start(code, inputs={**gates, **inputs}, print_callback=turn.print)

        return self._step(turn, start, seed=None if idle else _make_seed(code, inputs))

    def _answer(self, turn: _ProgramTurn, answer: Mapping[str, Any], suspended: bytes) -> tuple[Stepped, bytes]:
        program = _read_suspended(turn, suspended)
        turn.closed = answer["closed"]
        result: MontyResult
        if answer["is_error"]:
            result = {"exc_type": "RuntimeError", "message": answer["value"]}
        else:
            result = {"return_value": answer["value"]}

        def start(session: MontySession) -> MontySnapshot:
            with _reject_damage():
                snapshot = session.load_snapshot(program, print_callback=turn.print)
            assert isinstance(snapshot, FunctionSnapshot), "only calls are dumped"
            if not snapshot.allow_eager_await:
                return snapshot.resume(result)  # type: ignore[arg-type]  # one of the two forms
            # in `await gate(…)` the call evaluates to an awaitable, and the awaitable to the result
            turn.awaited[str(snapshot.call_id)] = result
            return snapshot.resume({"future": ...})

        return self._step(turn, start)

    def _load(self, idle: bytes) -> None:
        with _reject_damage(), self._interpreter.checkout() as session:
            session.load_session(idle)

    def _resume(self, turn: _ProgramTurn, suspended: bytes) -> Suspended:
        program = _read_suspended(turn, suspended)
        with _reject_damage(), self._interpreter.checkout() as session:
            snapshot = session.load_snapshot(program)
            assert isinstance(snapshot, FunctionSnapshot), "only calls are dumped"
            name = _read_name(snapshot)
            gate = turn.gates.get(name)
            if gate is None:
                raise DamagedSnapshot(f"the snapshot waits for {name}, which is not a gate of this sandbox")
            return Suspended(gate[0], _read_arguments(gate, snapshot))

    def _step(
        self, turn: _ProgramTurn, start: Callable[[MontySession], MontySnapshot], seed: str | None = None
    ) -> tuple[Stepped, bytes]:
        """Compute one step in an interpreter, and return it with the snapshot after it. Raises LimitExceeded."""
        bounds: ResourceLimits = {
            "max_feed_duration_secs": turn.time,
            "max_memory": turn.limits.memory,
            "max_suspensions": REQUESTS,
        }
        if turn.again:
            self._clock.start(turn.time + GRACE)
        try:
            with self._interpreter.checkout(limits=bounds, os_policy=_make_policy(seed)) as session:
                turn.began = time.perf_counter()
                try:
                    return self._drive(session, start(session), turn)
                except (MontySyntaxError, MontyRuntimeError) as error:
                    self._allow_conversion(turn)
                    if (exceeded := find_limit(error)) is not None:
                        raise exceeded from error
                    # effects from before the failure stay
                    return Raised(describe(error, turn.gates), turn.render_output()), _dump(session, turn.limits)
        except MontyCrashedError as error:
            limit: Limit = "seconds" if error.timed_out else "crash"
            raise LimitExceeded(limit) from error
        except RuntimeError as error:
            if not str(error).startswith(_NONSENSE):
                raise
            raise LimitExceeded("crash") from error

    def _drive(self, session: MontySession, snapshot: MontySnapshot, turn: _ProgramTurn) -> tuple[Stepped, bytes]:
        """Answer the program's requests until it calls an open gate or ends."""
        while not isinstance(snapshot, MontyComplete):
            if isinstance(snapshot, FutureSnapshot):
                ready = {pending: turn.awaited.pop(str(pending)) for pending in snapshot.pending_call_ids}
                snapshot = snapshot.resume(ready)  # type: ignore[arg-type]
            elif isinstance(snapshot, NameLookupSnapshot):
                name = snapshot.variable_name
                is_gate = name in turn.gates and snapshot.object_id is None
                snapshot = snapshot.resume(value=_make_stand_in(name)) if is_gate else snapshot.resume()
            elif (gate := _find_gate(turn.gates, snapshot)) is None:
                snapshot = snapshot.resume(_refuse_request(snapshot))  # type: ignore[arg-type]
            else:
                turn.calls += 1
                if turn.calls > turn.limits.gate_calls:
                    raise LimitExceeded("gate_calls")
                self._allow_conversion(turn)
                try:
                    args = _read_arguments(gate, snapshot)
                except TypeError as wrong:
                    snapshot = snapshot.resume({"exc_type": "TypeError", "message": str(wrong)})
                    continue
                if not turn.closed:
                    step = Suspended(gate[0], args, output=turn.render_output())
                    return step, pack(
                        "suspended", turn.make_head(again=turn.limits.patience > 1), _dump(snapshot, turn.limits)
                    )
                snapshot = snapshot.resume({"exc_type": "RuntimeError", "message": CLOSED})
        ended = snapshot
        self._allow_conversion(turn)
        try:
            finished: Stepped = Finished(render(lambda: ended.output), turn.render_output())
        except TooLarge as problem:
            text = f"ValueError: the value is {problem}: keep it in a variable, end with a part"
            finished = Raised(text, turn.render_output())
        return finished, _dump(session, turn.limits)

    def _allow_conversion(self, turn: _ProgramTurn) -> None:
        """Allow the rest of the program's time for the conversion of its results, and at least GRACE."""
        self._clock.shorten(max(GRACE, turn.time - (time.perf_counter() - turn.began)))


@contextmanager
def _reject_damage() -> Iterator[None]:
    """Report bytes that the interpreter cannot load as DamagedSnapshot, not as a failure of the program.

    An interpreter that dies is not caught here: it may have been killed.
    """
    try:
        yield
    except MontyRuntimeError as error:
        raise DamagedSnapshot(f"the snapshot is damaged: {error}") from error


def _find_gate(gates: Gates, snapshot: FunctionSnapshot) -> tuple[str, list[str]] | None:
    if snapshot.is_os_function or snapshot.object_id is not None:
        return None
    return gates.get(_read_name(snapshot))


def _dump(what: MontySession | FunctionSnapshot, limits: ProgramLimits) -> bytes:
    """Return the snapshot. Raises LimitExceeded if it does not fit into the program's memory."""
    try:
        return what.dump()
    except MontyRuntimeError as error:
        raise LimitExceeded("memory", limits.describe("memory") + KEEPING) from error


def _read_suspended(turn: _ProgramTurn, suspended: bytes) -> bytes:
    """Return the suspended program, and restore its usage into `turn`. Raises DamagedSnapshot."""
    head, body = unpack(suspended, "suspended")
    calls, printed, awaited, again = (head.get(name) for name in ("calls", "printed", "awaited", "again"))
    if type(calls) is not int or type(printed) is not int or not _are_results(awaited):
        raise DamagedSnapshot("the snapshot is damaged: its first line does not say what the program has used")
    turn.calls, turn.printed, turn.awaited = calls, printed, awaited
    turn.again = again if type(again) is float else 0.0
    return body


def _make_stand_in(name: str) -> Callable[..., None]:
    """Return the stand-in for a gate's name that is not called at once, as in `f = search`. It is never called here.

    The interpreter returns a stand-in as its name only. The name says that it is a function, so that `done` without
    parentheses does not become the text "done".
    """

    def gate() -> None:
        raise AssertionError("a stand-in")

    gate.__name__ = _STANDS_FOR.format(name)
    return gate


def _read_name(snapshot: FunctionSnapshot) -> str:
    """Return the name that is called, also if it is called through a stand-in."""
    return str(snapshot.function_name).removeprefix("<function ").removesuffix(">")


def _read_arguments(gate: tuple[str, list[str]], snapshot: FunctionSnapshot) -> dict[str, Any]:
    """Return the arguments of a call by name, as JSON. Raises TypeError, which the program receives."""
    own_name, parameters = gate
    try:
        args, kwargs = read_out(lambda: (snapshot.args, snapshot.kwargs))
    except NotPlain as problem:
        raise TypeError(f"{own_name}() got {problem}") from problem
    arguments = {}
    conversion = ArgumentsConversion()
    for name, value in _bind(own_name, parameters, args, kwargs).items():
        try:
            arguments[conversion.convert_name(name)] = conversion.visit(value)
        except TooLarge as problem:
            raise TypeError(f"{own_name}() got {problem}: pass less at once") from problem
        except NotPlain as problem:
            raise TypeError(f"{own_name}() argument '{name}' is not a JSON value: {problem}") from problem
    return arguments


def _bind(gate: str, parameters: list[str], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name. Raises TypeError, as Python would, for too many or repeated arguments."""
    if len(args) > len(parameters):
        takes = "no positional arguments" if not parameters else f"at most {len(parameters)} positional arguments"
        raise TypeError(f"{gate}() takes {takes}, got {len(args)}")
    arguments = dict(zip(parameters, args, strict=False))
    for name in kwargs:
        if name in arguments:
            raise TypeError(f"{gate}() got multiple values for argument '{name}'")
    return {**arguments, **kwargs}


def _refuse_request(snapshot: FunctionSnapshot) -> MontyResult:
    """Return the error for a request other than a gate call: a file, a clock, a module or an undefined name."""
    name = make_encodable(str(snapshot.function_name))
    if not snapshot.is_os_function:
        return {"exc_type": "NameError", "message": f"name {name!r} is not defined"}
    if name == "import":
        module = next((make_encodable(arg) for arg in snapshot.args if isinstance(arg, str)), "?")
        return {"exc_type": "ModuleNotFoundError", "message": f"there is no module {module!r} in this Python"}
    return {"exc_type": "PermissionError", "message": f"{name}: the sandbox has no files, environment or clock"}


def _make_policy(seed: str | None) -> OSPolicy:
    """Return the system that programs see: no clock, sleeps that take no time, randomness that replays the same."""
    policy: OSPolicy = {"datetime": "call_host", "sleep": "zero", "process_time": "zero"}
    if seed is not None:  # after its first snapshot the sandbox keeps its own generator
        policy["random_start"] = {"seed": seed}
    return policy


def _make_seed(code: str, variables: Mapping[str, Any]) -> str:
    """Return the seed of the first program: a replay gets the same random numbers, another program gets others."""
    digest = hashlib.sha256(code.encode())
    digest.update(dump_exactly(list(variables.items())))
    return digest.hexdigest()


def _are_results(awaited: object) -> TypeGuard[dict[str, MontyResult]]:
    forms = ({"return_value"}, {"exc_type", "message"})
    return isinstance(awaited, dict) and all(
        isinstance(result, dict) and result.keys() in forms for result in awaited.values()
    )

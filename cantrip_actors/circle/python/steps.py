"""Steps of Python programs, computed in a worker: bytes and JSON in, bytes and JSON out.

A step gives the interpreter the sandbox's bytes, computes until the program calls a gate or ends, and takes the bytes
back. What the program hands out is made JSON here and bounded here, in a process that may be killed at any moment:
nothing that a program made is a value in the host before that.

What a program asks of its host is answered here and only here: a gate that it calls suspends it, anything else (a
file, a clock, an environment variable) is an exception inside.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from os import PathLike
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self, TypeGuard

import orjson
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

from cantrip_actors.circle.python.errors import REQUESTS, describe, limit_of
from cantrip_actors.circle.python.snapshots import DamagedSnapshot, pack, unpack
from cantrip_actors.circle.python.types import wrong_calls
from cantrip_actors.circle.python.values import Arguments, shown, taken
from cantrip_actors.circle.step import (
    CLOSED,
    Exceeded,
    Finished,
    Limit,
    LimitExceeded,
    Limits,
    Raised,
    Stepped,
    Suspended,
)
from cantrip_actors.terms.bounds import NotPlain, TooLarge
from cantrip_actors.terms.messages import encodable

__all__ = ["GRACE", "KEEPING", "Clock", "Steps"]

GRACE: Final = 0.6
"""Seconds past its limit after which an interpreter is killed that has not noticed. What is left of the second that the
contract allows is for the kill, and for a machine that is busy."""

CHECK: Final = 2.0
"""Seconds that a type check may take: its own clock, because nothing of the program runs then."""

SESSIONS: Final = 2_000
"""Steps after which an interpreter is replaced, so that what one leaks stays small."""

KEEPING: Final = ", in which variables have to be written out, too: they may take a third of it, so keep less of them"
"""What is said where a program has ended within its memory, and its variables cannot be kept."""

_STANDS_FOR: Final = "<function {}>"

_NONSENSE: Final = "monty worker protocol error"
"""The beginning of what the interpreter's client raises for an interpreter that answers nonsense, as a RuntimeError."""

Snapshot = FunctionSnapshot | NameLookupSnapshot | FutureSnapshot | MontyComplete
Result = dict[str, Any]
"""What a call inside evaluates to, in the interpreter's form."""

Gates = Mapping[str, tuple[str, list[str]]]
"""The gates by the names that a program can call them by: each with its own name, and its parameters in their order."""


@dataclass(slots=True)
class _Turn:
    """What one program has used up, and the results that it awaits. It travels with the suspended program."""

    limits: Limits
    gates: Gates
    stream: BinaryIO | FileIO
    """Where the output is written as well, for the host to read if this process is killed."""
    calls: int = 0
    printed: int = 0
    """Characters that were kept so far."""
    awaited: dict[str, Result] = field(default_factory=dict)
    closed: bool = False
    again: float = 0.0
    """Seconds that it took to bring it again to where it had been: those are not held against it."""
    began: float = 0.0
    """When the step began, by the clock of this process."""
    kept: list[str] = field(default_factory=list)
    cut: int = 0
    """Characters of this step's output that were not kept."""

    @property
    def time(self) -> float:
        """Seconds that the program may take."""
        return self.limits.time + self.again

    def head(self, *, again: bool) -> dict[str, Any]:
        """What travels, after a step that ran `again`."""
        spent = self.again + (time.perf_counter() - self.began if again else 0.0)
        head = {"calls": self.calls, "printed": self.printed, "awaited": self.awaited}
        return head | {"again": spent} if spent else head

    def print(self, _stream: str, text: str) -> None:
        """Keep of what is printed no more than the limit leaves."""
        kept = text[: max(0, self.limits.output - self.printed)]
        self.kept.append(kept)
        self.printed += len(kept)
        self.cut += len(text) - len(kept)
        if kept:
            self.stream.write(encodable(kept).encode())
        if self.cut:  # written over by the next one, which is no shorter
            self.stream.seek(-self.stream.write(self.notice().encode()), 1)

    def notice(self) -> str:
        """Return what is said of the output that was cut."""
        return f"\n[{self.cut} more characters of output were cut]" if self.cut else ""

    def output(self) -> str:
        """Return what the step has printed."""
        return encodable("".join(self.kept)) + self.notice()


class Clock(Protocol):
    """What ends this process when a step takes too long here."""

    def start(self, seconds: float) -> None:
        """Begin a step that may compute here for so many seconds."""
        ...

    def shorten(self, seconds: float) -> None:
        """Allow no more than so many seconds of computing from here on."""
        ...


class Steps:
    """Computes steps, one at a time, in an interpreter process that is kept for the next one.

    `printed` is written to while a program prints. `clock` ends this process when a step takes too long here; without
    one, nothing does.
    """

    def __init__(
        self,
        binary: str | PathLike[str],
        printed: BinaryIO | FileIO,
        clock: Clock | None = None,
        deadline: float | None = None,
    ) -> None:
        self._binary = str(binary)
        self._printed = printed
        self._clock = clock
        self._deadline = deadline
        self._pools = ExitStack()
        self._programs: Monty | None = None
        self._checks: Monty | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pools.close()

    def compute(self, asked: Mapping[str, Any], state: bytes) -> tuple[dict[str, Any], bytes]:
        """Return what a step comes to, and the snapshot that belongs to it; no snapshot if the sandbox is unchanged.

        `asked` is begin, answer, load or resume, as `PythonSandbox` writes it.
        """
        limits, gates = Limits(**asked["limits"]), asked["gates"]
        self._start_clock(limits.time)
        if self._printed.tell():
            self._printed.seek(0)
            self._printed.truncate()
        turn = _Turn(limits, gates, self._printed)
        try:
            match asked["do"]:
                case "begin":
                    step, made = self._begin(turn, asked, state)
                case "answer":
                    step, made = self._answer(turn, asked["answer"], state)
                case "resume":
                    step, made = self._resume(turn, state), b""
                case _:
                    self._load(state)
                    step, made = Finished(None), b""
        except DamagedSnapshot as damaged:
            return {"damaged": str(damaged)}, b""
        except LimitExceeded as problem:
            step, made = problem.ended(limits, turn.output()), b""
        except MemoryError:
            step, made = LimitExceeded("memory").ended(limits, turn.output()), b""
        return _written(step), made

    def _begin(self, turn: _Turn, asked: Mapping[str, Any], idle: bytes) -> tuple[Stepped, bytes]:
        code, inputs, check = asked["code"], asked["inputs"], asked.get("check")
        if check is not None:
            wrong = wrong_calls(code, check, self._pool(checks=True))
            if wrong is not None:
                return Raised(wrong), b""

        def start(session: MontySession) -> Snapshot:
            if idle:
                with _intact():
                    session.load_session(idle)
            return session.feed_start(code, inputs=inputs, print_callback=turn.print)

        return self._step(turn, start, seed=None if idle else _seed(code, inputs))

    def _answer(self, turn: _Turn, answer: Mapping[str, Any], suspended: bytes) -> tuple[Stepped, bytes]:
        program = _read_suspended(turn, suspended)
        turn.closed = answer["closed"]
        result: Result
        if answer["is_error"]:
            result = {"exc_type": "RuntimeError", "message": answer["value"]}
        else:
            result = {"return_value": answer["value"]}

        def start(session: MontySession) -> Snapshot:
            with _intact():
                snapshot = session.load_snapshot(program, print_callback=turn.print)
            assert isinstance(snapshot, FunctionSnapshot), "only calls are dumped"
            if not snapshot.allow_eager_await:
                return snapshot.resume(result)  # type: ignore[arg-type]  # one of the two forms
            # `await gate(…)`: the call evaluates to something that can be awaited, and that to the result
            turn.awaited[str(snapshot.call_id)] = result
            return snapshot.resume({"future": ...})

        return self._step(turn, start)

    def _load(self, idle: bytes) -> None:
        with _readable(), self._pool().checkout() as session:
            session.load_session(idle)

    def _resume(self, turn: _Turn, suspended: bytes) -> Suspended:
        program = _read_suspended(turn, suspended)
        with _readable(), self._pool().checkout() as session:
            snapshot = session.load_snapshot(program)
            assert isinstance(snapshot, FunctionSnapshot), "only calls are dumped"
            name = _name(snapshot)
            gate = turn.gates.get(name)
            if gate is None:
                raise DamagedSnapshot(f"the image waits for {name}, which is no gate of this sandbox")
            return Suspended(gate[0], _arguments(gate, snapshot), None)

    def _step(
        self, turn: _Turn, start: Callable[[MontySession], Snapshot], seed: str | None = None
    ) -> tuple[Stepped, bytes]:
        """One step in an interpreter, and the snapshot after it. Raises LimitExceeded."""
        bounds: ResourceLimits = {
            "max_feed_duration_secs": turn.time,
            "max_memory": turn.limits.memory,
            "max_suspensions": REQUESTS,
        }
        if turn.again:
            self._start_clock(turn.time)
        try:
            with self._pool().checkout(limits=bounds, os_policy=_policy(seed)) as session:
                turn.began = time.perf_counter()
                try:
                    return self._drive(session, start(session), turn)
                except (MontySyntaxError, MontyRuntimeError) as error:
                    return self._failed(session, error, turn)
        except MontyCrashedError as error:
            limit: Limit = "seconds" if error.timed_out else "crash"
            raise LimitExceeded(limit) from error
        except RuntimeError as error:
            if not str(error).startswith(_NONSENSE):
                raise
            raise LimitExceeded("crash") from error

    def _drive(self, session: MontySession, snapshot: Snapshot, turn: _Turn) -> tuple[Stepped, bytes]:
        """Answer what the program asks of its host, until it calls a gate that is open, or ends."""
        while not isinstance(snapshot, MontyComplete):
            if isinstance(snapshot, FutureSnapshot):
                ready = {pending: turn.awaited.pop(str(pending)) for pending in snapshot.pending_call_ids}
                snapshot = snapshot.resume(ready)  # type: ignore[arg-type]
            elif isinstance(snapshot, NameLookupSnapshot):
                name = snapshot.variable_name
                is_gate = name in turn.gates and snapshot.object_id is None
                snapshot = snapshot.resume(value=_function(name)) if is_gate else snapshot.resume()
            elif (gate := _called(turn.gates, snapshot)) is None:
                snapshot = snapshot.resume(_nothing_there(snapshot))  # type: ignore[arg-type]
            else:
                turn.calls += 1
                if turn.calls > turn.limits.gate_calls:
                    raise LimitExceeded("gate_calls")
                self._allow_conversion(turn)
                try:
                    args = _arguments(gate, snapshot)
                except TypeError as wrong:
                    snapshot = snapshot.resume({"exc_type": "TypeError", "message": str(wrong)})
                    continue
                if not turn.closed:
                    step = Suspended(gate[0], args, None, turn.output())
                    return step, pack(
                        "suspended", turn.head(again=turn.limits.patience > 1), _dumped(snapshot, turn.limits)
                    )
                snapshot = snapshot.resume({"exc_type": "RuntimeError", "message": CLOSED})
        ended = snapshot
        self._allow_conversion(turn)
        try:
            finished: Stepped = Finished(shown(lambda: ended.output), turn.output())
        except TooLarge as problem:
            text = f"ValueError: the value is {problem}: keep it in a variable, end with a part"
            finished = Raised(text, turn.output())
        return finished, _dumped(session, turn.limits)

    def _failed(
        self, session: MontySession, error: MontySyntaxError | MontyRuntimeError, turn: _Turn
    ) -> tuple[Raised, bytes]:
        self._allow_conversion(turn)
        exceeded = limit_of(error)
        if exceeded is not None:
            raise exceeded
        # what the program did before it failed stays done
        return Raised(describe(error, turn.gates), turn.output()), _dumped(session, turn.limits)

    def _start_clock(self, seconds: float) -> None:
        if self._clock is not None:
            self._clock.start(seconds + GRACE)

    def _allow_conversion(self, turn: _Turn) -> None:
        """Allow what is left of the program's time for what it hands out, and GRACE at least."""
        if self._clock is not None:
            self._clock.shorten(max(GRACE, turn.time - (time.perf_counter() - turn.began)))

    def _pool(self, *, checks: bool = False) -> Monty:
        pool = self._checks if checks else self._programs
        if pool is None:
            pool = self._pools.enter_context(
                Monty(
                    binary_path=self._binary,
                    max_processes=1,
                    request_timeout=CHECK if checks else self._deadline,
                    max_checkouts_per_worker=SESSIONS,
                    feed_duration_limit_grace=GRACE,
                )
            )
            if checks:
                self._checks = pool
            else:
                self._programs = pool
        return pool


def _written(step: Stepped) -> dict[str, Any]:
    """Return a step as JSON: its type and its fields. The snapshot of a suspended one goes beside it."""
    match step:
        case Suspended(gate, args):
            return {"step": "suspended", "gate": gate, "args": args, "output": step.output}
        case Finished(value, output):
            return {"step": "finished", "value": value, "output": output}
        case Raised(error, output):
            return {"step": "raised", "error": error, "output": output}
        case Exceeded(limit, output):
            return {"step": "exceeded", "limit": limit, "output": output}


@contextmanager
def _intact() -> Iterator[None]:
    """Around the loading of bytes: those that the interpreter cannot read are no failure of the program.

    An interpreter that dies is not caught here: it may have been killed.
    """
    try:
        yield
    except MontyRuntimeError as error:
        raise DamagedSnapshot(f"the image is damaged: {error}") from error


@contextmanager
def _readable() -> Iterator[None]:
    """Around the loading of bytes where nothing runs."""
    try:
        with _intact():
            yield
    except MontyCrashedError as error:
        raise DamagedSnapshot(f"the interpreter cannot load the image: {error}") from error


def _called(gates: Gates, snapshot: FunctionSnapshot) -> tuple[str, list[str]] | None:
    if snapshot.is_os_function or snapshot.object_id is not None:
        return None
    return gates.get(_name(snapshot))


def _dumped(what: MontySession | FunctionSnapshot, limits: Limits) -> bytes:
    """The sandbox as bytes. Raises LimitExceeded where they do not fit into the memory of the program."""
    try:
        return what.dump()
    except MontyRuntimeError as error:
        raise LimitExceeded("memory", limits.exceeded("memory") + KEEPING) from error


def _read_suspended(turn: _Turn, suspended: bytes) -> bytes:
    """Return the suspended program, and give the turn what it has used. Raises DamagedSnapshot."""
    head, body = unpack(suspended, "suspended")
    calls, printed, awaited, again = (head.get(name) for name in ("calls", "printed", "awaited", "again"))
    if type(calls) is not int or type(printed) is not int or not _are_results(awaited):
        raise DamagedSnapshot("the image is damaged: its first line does not say what the program has used")
    turn.calls, turn.printed, turn.awaited = calls, printed, awaited
    turn.again = again if type(again) is float else 0.0
    return body


def _function(name: str) -> Callable[..., None]:
    """What a gate's name stands for when it is not called at once: `f = search`. Never called on this side.

    It comes out of the sandbox as its name and nothing else, so that says what it is: `done` without its parentheses
    is no text "done".
    """

    def gate() -> None:
        raise AssertionError("a stand-in")

    gate.__name__ = _STANDS_FOR.format(name)
    return gate


def _name(snapshot: FunctionSnapshot) -> str:
    """The name that is called, where it is called by a stand-in, too."""
    return str(snapshot.function_name).removeprefix("<function ").removesuffix(">")


def _arguments(gate: tuple[str, list[str]], snapshot: FunctionSnapshot) -> dict[str, Any]:
    """The arguments of a call, by name and as JSON. Raises TypeError, which the program gets to see."""
    own_name, parameters = gate
    try:
        args, kwargs = taken(lambda: (snapshot.args, snapshot.kwargs))
    except NotPlain as problem:
        raise TypeError(f"{own_name}() got {problem}") from problem
    made = {}
    taking = Arguments()
    for name, value in _bind(own_name, parameters, args, kwargs).items():
        try:
            made[taking.name(name)] = taking.visit(value)
        except TooLarge as problem:
            raise TypeError(f"{own_name}() got {problem}: pass less at once") from problem
        except NotPlain as problem:
            raise TypeError(f"{own_name}() argument '{name}' is no JSON value: {problem}") from problem
    return made


def _bind(gate: str, parameters: list[str], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name. Raises TypeError, as Python would, where one cannot be told."""
    if len(args) > len(parameters):
        takes = "no positional arguments" if not parameters else f"at most {len(parameters)} positional arguments"
        raise TypeError(f"{gate}() takes {takes}, got {len(args)}")
    made = dict(zip(parameters, args, strict=False))
    for name in kwargs:
        if name in made:
            raise TypeError(f"{gate}() got multiple values for argument '{name}'")
    return {**made, **kwargs}


def _nothing_there(snapshot: FunctionSnapshot) -> Result:
    """The host gives nothing but gates: what a program gets that asks for a file, a clock or a name it has not set."""
    name = encodable(str(snapshot.function_name))
    if not snapshot.is_os_function:
        return {"exc_type": "NameError", "message": f"name {name!r} is not defined"}
    if name == "import":
        module = next((encodable(one) for one in snapshot.args if isinstance(one, str)), "?")
        return {"exc_type": "ModuleNotFoundError", "message": f"there is no module {module!r} in this Python"}
    return {"exc_type": "PermissionError", "message": f"{name}: the sandbox has no files, environment or clock"}


def _policy(seed: str | None) -> OSPolicy:
    """What stands in for the system: no clock, sleeps that take no time, and chance that is the same at each replay."""
    policy: OSPolicy = {"datetime": "call_host", "sleep": "zero", "process_time": "zero"}
    if seed is not None:  # from its first dump on, the sandbox has its own
        policy["random_start"] = {"seed": seed}
    return policy


def _seed(code: str, variables: Mapping[str, Any]) -> str:
    """Of the first program: another program draws other numbers, the same one at its replay the same."""
    said = hashlib.sha256(code.encode())
    said.update(orjson.dumps(list(variables.items()), default=str))
    return said.hexdigest()


def _are_results(awaited: object) -> TypeGuard[dict[str, Result]]:
    """Return whether these are results that a suspended program awaits, as `_Turn` writes them."""
    forms = ({"return_value"}, {"exc_type", "message"})
    return isinstance(awaited, dict) and all(isinstance(one, dict) and one.keys() in forms for one in awaited.values())

"""The Python medium: programs in the interpreter Monty, not in the host's Python (see docs/python-medium.md).

A step checks a worker out of the pool, gives it the sandbox's bytes, computes until the program calls a gate or ends,
takes the bytes back and returns the worker. Between two steps the sandbox is those bytes and nothing else: a few
kilobytes, which can be stored, answered twice, or taken up by another process.

What a program asks of its host is answered here and only here: a gate that it calls suspends it, anything else (a file,
a clock, an environment variable) is an exception inside. The output of a worker is untrusted data, which its receivers
check.

This file knows nothing of actors, looms or wards. How values, signatures and errors cross is in the modules
beside it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

import orjson
from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    MontyComplete,
    MontyCrashedError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    NameLookupSnapshot,
    OSPolicy,
    ResourceLimits,
    __version__,
)

from cantrip_actors.circle.medium import (
    CLOSED,
    Answer,
    Finished,
    Limit,
    LimitExceeded,
    Limits,
    Raised,
    Stepped,
    Suspended,
)
from cantrip_actors.circle.python.errors import REQUESTS, describe, limit_of
from cantrip_actors.circle.python.gates import callables, capability, named
from cantrip_actors.circle.python.types import wrong_calls
from cantrip_actors.circle.python.values import Arguments, shown, taken
from cantrip_actors.circle.python.workers import Worker, bytes_read, workers
from cantrip_actors.terms.bounds import BYTES, OVER, NotPlain, TooLarge
from cantrip_actors.terms.messages import ToolDefinition, encodable

__all__ = ["PythonMedium", "PythonSandbox"]

ENGINE: Final = f"monty {__version__}"

KEEPING: Final = ", in which variables have to be written out, too: they may take a third of it, so keep less of them"
"""The error text for a program that ended within its memory, but whose variables cannot be stored."""

_MESSAGE: Final = 32
"""Bytes of a message around the output that it carries, about."""

_STANDS_FOR: Final = "<function {}>"

_NONSENSE: Final = "monty worker protocol error"
"""The beginning of what the interpreter's client raises for a worker that answers nonsense, as a RuntimeError."""

Snapshot = FunctionSnapshot | NameLookupSnapshot | FutureSnapshot | MontyComplete
Result = dict[str, Any]
"""What a call inside comes to, in the interpreter's form."""


class PythonMedium:
    """Python, as a language of circles. With `type_check`, calls of gates are checked before a program runs."""

    name = "python"
    engine = ENGINE

    def __init__(self, *, type_check: bool = False) -> None:
        self._type_check = type_check

    def capability(self, gates: Sequence[ToolDefinition], limits: Limits) -> str:
        """Return the text for the entity about its language, `gates` and `limits`."""
        return capability(gates, limits)

    def open(self, gates: Sequence[ToolDefinition], limits: Limits) -> PythonSandbox:
        """Return a new, empty sandbox. It costs nothing until a program runs in it."""
        return PythonSandbox(gates, limits, type_check=self._type_check)


@dataclass(slots=True)
class _Turn:
    """What one program has used up, and the results that it awaits. It travels with the suspended program."""

    most: int
    """Characters of output that are kept of the whole turn."""
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
    read: int = 0
    """What this thread had read before the program went on, and the output that came since: in bytes."""

    def resume_reading(self) -> None:
        """Note that the program continues: everything read from here on comes from it."""
        self.read = bytes_read()

    def is_over(self) -> bool:
        """Return whether what has come out since is over the bound, before anything is made of it here.

        Shared parts cross once, and the interpreter counts them against the memory of the program: so this is less
        than what it would be as JSON.
        """
        return bytes_read() - self.read > BYTES

    def head(self, *, again: bool) -> dict[str, Any]:
        """What travels, after a step that ran `again`."""
        spent = self.again + (time.perf_counter() - self.began if again else 0.0)
        head = {"calls": self.calls, "printed": self.printed, "awaited": self.awaited}
        return head | {"again": spent} if spent else head

    def print(self, _stream: str, text: str) -> None:
        """Keep of what is printed no more than the limit leaves."""
        self.read += len(text.encode("utf-8", "replace")) + _MESSAGE
        kept = text[: max(0, self.most - self.printed)]
        self.kept.append(kept)
        self.printed += len(kept)
        self.cut += len(text) - len(kept)

    def output(self) -> str:
        """Return what the step has printed."""
        text = encodable("".join(self.kept))
        return f"{text}\n[{self.cut} more characters of output were cut]" if self.cut else text


class PythonSandbox:
    """One entity's Python. Not thread-safe, but for `interrupt`, which is there for another thread."""

    _lock = threading.Lock()  # of all sandboxes: it is held for moments

    def __init__(self, gates: Sequence[ToolDefinition], limits: Limits, *, type_check: bool = False) -> None:
        self._gates = _callables(gates)
        self.limits = limits
        self._type_check = type_check
        self._idle = b""
        """The sandbox as the last program left it, in the interpreter's form; empty where none has run."""
        self._worker: Worker | None = None
        self._is_interrupted = False

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code` with `variables` set first."""
        code = encodable(code)
        if self._type_check:
            wrong = wrong_calls(code, self._gates)
            if wrong is not None:
                return Raised(wrong)
        inputs = dict(variables or {})

        turn = _Turn(self.limits.output)

        def start(session: MontySession) -> Snapshot:
            if self._idle:
                with _intact():
                    session.load_session(self._idle)
            turn.resume_reading()
            return session.feed_start(code, inputs=inputs, print_callback=turn.print)

        return self._step(turn, start, seed=None if self._idle else _seed(code, inputs))

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate. The same suspension may be answered again: that is a fork.

        Raises ValueError where the suspended program has been damaged since.
        """
        turn, program = self._read_suspended(suspended.state)
        turn.closed = answer.closed
        result: Result
        if answer.is_error:
            result = {"exc_type": "RuntimeError", "message": str(answer.value)}
        else:
            result = {"return_value": answer.value}

        def start(session: MontySession) -> Snapshot:
            with _intact():
                snapshot = session.load_snapshot(program, print_callback=turn.print)
            assert isinstance(snapshot, FunctionSnapshot), "only calls are dumped"
            turn.resume_reading()
            if not snapshot.allow_eager_await:
                return snapshot.resume(result)  # type: ignore[arg-type]  # one of the two forms
            # `await gate(…)`: the call comes to something that can be awaited, and that to the result
            turn.awaited[str(snapshot.call_id)] = result
            return snapshot.resume({"future": ...})

        return self._step(turn, start)

    def interrupt(self) -> None:
        """End the step that runs in another thread, if there is one."""
        with self._lock:
            self._is_interrupted = True
            if self._worker is not None:
                self._worker.kill()

    def dump(self) -> bytes:
        """Return the sandbox between two turns as bytes."""
        return _image("idle", {}, self._idle)

    def load(self, image: bytes) -> None:
        """Restore a `dump`. The narrower of its limits and this sandbox's apply from then on."""
        _, idle = _read(image, "idle")
        if idle:
            with _readable(), workers().checkout() as session:
                session.load_session(idle)
        self._idle = idle

    def resume(self, image: bytes) -> Suspended:
        """Return the suspended program, ready for `answer`; `load` the turn before first."""
        _, program = self._read_suspended(image)
        with _readable(), workers().checkout() as session:
            snapshot = session.load_snapshot(program)
            assert isinstance(snapshot, FunctionSnapshot), "only calls are dumped"
            gate = self._gates.get(_name(snapshot))
            if gate is None:
                raise ValueError(f"the image waits for {_name(snapshot)}, which is no gate of this sandbox")
            return Suspended(gate.name, _arguments(gate, snapshot), image, image=image)

    def close(self) -> None:
        """Forget everything. There is nothing else to release: no worker is held."""
        self._idle = b""

    def _step(self, turn: _Turn, start: Callable[[MontySession], Snapshot], seed: str | None = None) -> Stepped:
        """Run one step in a worker. However it ends, the worker is returned, and the sandbox has advanced or is
        unchanged.
        """
        self._is_interrupted = False  # whatever came before this step had nothing to end
        try:
            with workers().checkout(limits=self._bounds(turn), os_policy=_policy(seed)) as session:
                self._hold(session)
                turn.began = time.perf_counter()
                try:
                    if self._is_interrupted:  # while it waited for a worker
                        raise LimitExceeded("interrupted")
                    return self._drive(session, start(session), turn)
                except (MontySyntaxError, MontyRuntimeError) as error:
                    return self._read_failure(session, error, turn)
                finally:
                    self._release()
        except LimitExceeded as problem:
            return problem.ended(self.limits, turn.output())
        except MontyCrashedError as error:
            limit: Limit = "interrupted" if self._is_interrupted else "seconds" if error.timed_out else "crash"
            return LimitExceeded(limit).ended(self.limits, turn.output())
        except RuntimeError as error:
            if not str(error).startswith(_NONSENSE):
                raise
            return LimitExceeded("crash").ended(self.limits, turn.output())

    def _drive(self, session: MontySession, snapshot: Snapshot, turn: _Turn) -> Stepped:
        """Answer the program's requests to its host, until it calls an open gate or ends."""
        while not isinstance(snapshot, MontyComplete):
            if self._is_interrupted:
                raise LimitExceeded("interrupted")
            is_over = turn.is_over()
            turn.resume_reading()
            if isinstance(snapshot, FutureSnapshot):
                ready = {pending: turn.awaited.pop(str(pending)) for pending in snapshot.pending_call_ids}
                snapshot = snapshot.resume(ready)  # type: ignore[arg-type]
            elif isinstance(snapshot, NameLookupSnapshot):
                name = snapshot.variable_name
                is_gate = name in self._gates and snapshot.object_id is None
                snapshot = snapshot.resume(value=_function(name)) if is_gate else snapshot.resume()
            elif (gate := self._called_gate(snapshot)) is None:
                snapshot = snapshot.resume(_nothing_there(snapshot))  # type: ignore[arg-type]
            else:
                turn.calls += 1
                if turn.calls > self.limits.gate_calls:
                    raise LimitExceeded("gate_calls")
                try:
                    args = _arguments(gate, snapshot, is_over=is_over)
                except TypeError as wrong:
                    snapshot = snapshot.resume({"exc_type": "TypeError", "message": str(wrong)})
                    continue
                if not turn.closed:
                    image = _image("suspended", turn.head(again=self.limits.patience > 1), self._dump(snapshot))
                    return Suspended(gate.name, args, image, turn.output(), image)
                snapshot = snapshot.resume({"exc_type": "RuntimeError", "message": CLOSED})
        ended = snapshot
        try:
            if turn.is_over():
                raise TooLarge(OVER)
            step: Stepped = Finished(shown(lambda: ended.output), turn.output())
        except TooLarge as problem:
            step = Raised(f"ValueError: the value is {problem}: keep it in a variable, end with a part", turn.output())
        self._idle = self._dump(session)
        return step

    def _called_gate(self, snapshot: FunctionSnapshot) -> ToolDefinition | None:
        if snapshot.is_os_function or snapshot.object_id is not None:
            return None
        return self._gates.get(_name(snapshot))

    def _read_failure(self, session: MontySession, error: MontySyntaxError | MontyRuntimeError, turn: _Turn) -> Raised:
        if turn.is_over():  # limits say little
            said = f"an exception with {OVER}"
        elif (exceeded := limit_of(error)) is not None:
            raise exceeded
        else:
            said = describe(error, self._gates)
        self._idle = self._dump(session)  # what the program did before it failed stays done
        return Raised(said, turn.output())

    def _dump(self, what: MontySession | FunctionSnapshot) -> bytes:
        """Return the sandbox as bytes. Raises LimitExceeded if they do not fit into the memory of the program."""
        try:
            return what.dump()
        except MontyRuntimeError as error:
            raise LimitExceeded("memory", self.limits.exceeded("memory") + KEEPING) from error

    def _read_suspended(self, image: bytes) -> tuple[_Turn, bytes]:
        head, body = _read(image, "suspended")
        calls, printed, awaited, again = (head.get(name) for name in ("calls", "printed", "awaited", "again"))
        if type(calls) is not int or type(printed) is not int or not _are_results(awaited):
            raise ValueError("the image is damaged: its first line does not say what the program has used")
        return _Turn(self.limits.output, calls, printed, awaited, again=again if type(again) is float else 0.0), body

    def _bounds(self, turn: _Turn) -> ResourceLimits:
        return {
            "max_feed_duration_secs": self.limits.time + turn.again,
            "max_memory": self.limits.memory,
            "max_suspensions": REQUESTS,
        }

    def _hold(self, session: MontySession) -> None:
        with self._lock:
            self._worker = Worker(session.worker_pid)

    def _release(self) -> None:
        with self._lock:
            if self._worker is not None:
                self._worker.release()
                self._worker = None


@contextmanager
def _intact() -> Iterator[None]:
    """Guard the loading of bytes: bytes that the interpreter cannot read are not a failure of the program.

    A worker that dies is not caught here: it may have been interrupted.
    """
    try:
        yield
    except MontyRuntimeError as error:
        raise ValueError(f"the image is damaged: {error}") from error


@contextmanager
def _readable() -> Iterator[None]:
    """Guard the loading of bytes while no program runs, which cannot be interrupted."""
    try:
        with _intact():
            yield
    except MontyCrashedError as error:
        raise ValueError(f"the interpreter cannot load the image: {error}") from error


_last: tuple[Sequence[ToolDefinition], Mapping[str, ToolDefinition]] = ((), {})


def _callables(gates: Sequence[ToolDefinition]) -> Mapping[str, ToolDefinition]:
    """`callables`, once for sandboxes that are opened one after the other for the same gates."""
    global _last  # noqa: PLW0603  # put there in one step, whatever thread does it
    known, named = _last
    if known is not gates:
        named = callables(gates)
        _last = (gates, named)
    return named


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
    """Return the name that is called, also through a stand-in."""
    return str(snapshot.function_name).removeprefix("<function ").removesuffix(">")


def _arguments(gate: ToolDefinition, snapshot: FunctionSnapshot, *, is_over: bool = False) -> dict[str, Any]:
    """Return the arguments of a call, by name and as JSON. Raises TypeError, which the program receives.

    Of a call that is over the bound nothing is read.
    """
    try:
        if is_over:
            raise TooLarge(f"{OVER}: pass less at once")
        args, kwargs = taken(lambda: (snapshot.args, snapshot.kwargs))
    except NotPlain as problem:
        raise TypeError(f"{gate.name}() got {problem}") from problem
    made = {}
    taking = Arguments()
    for name, value in named(gate, args, kwargs).items():
        try:
            made[taking.name(name)] = taking.visit(value)
        except TooLarge as problem:
            raise TypeError(f"{gate.name}() got {problem}: pass less at once") from problem
        except NotPlain as problem:
            raise TypeError(f"{gate.name}() argument '{name}' is no JSON value: {problem}") from problem
    return made


def _nothing_there(snapshot: FunctionSnapshot) -> Result:
    """Return the answer to a program that asks for a file, a clock or an unset name: the host offers only gates."""
    name = encodable(str(snapshot.function_name))
    if not snapshot.is_os_function:
        return {"exc_type": "NameError", "message": f"name {name!r} is not defined"}
    if name == "import":
        module = next((encodable(one) for one in snapshot.args if isinstance(one, str)), "?")
        return {"exc_type": "ModuleNotFoundError", "message": f"there is no module {module!r} in this Python"}
    return {"exc_type": "PermissionError", "message": f"{name}: the sandbox has no files, environment or clock"}


def _policy(seed: str | None) -> OSPolicy:
    """Return the replacement for the system: no clock, sleeps that take no time, and randomness that replays."""
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


def _image(kind: str, head: Mapping[str, Any], body: bytes) -> bytes:
    return orjson.dumps({"engine": ENGINE, "kind": kind, **head}) + b"\n" + body


def _read(image: bytes, kind: str) -> tuple[dict[str, Any], bytes]:
    line, _, body = image.partition(b"\n")
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError:
        head = None
    if not isinstance(head, dict) or "engine" not in head:
        raise ValueError("no image of a sandbox")
    if head["engine"] != ENGINE:
        raise ValueError(f"the image is of {head['engine']}, and this is {ENGINE}: replay its programs instead")
    if head.get("kind") != kind:
        raise ValueError(f"expected an image of a sandbox that is {kind}, got one that is {head.get('kind')}")
    return head, body

"""Targets inside the mediums: loaded snapshots, and the messages of a program or a worker to its host."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

import orjson
from pydantic_monty import Monty

from cantrip_actors.circle.javascript.values import parse_report, read_arguments
from cantrip_actors.circle.medium import (
    Answer,
    Exceeded,
    Finished,
    LimitExceeded,
    ProgramLimits,
    Raised,
    Suspended,
    medium,
)
from cantrip_actors.circle.python import medium as python_medium
from cantrip_actors.circle.python.frames import WorkerFrame
from cantrip_actors.circle.python.steps import KernelTimers, Steps
from cantrip_actors.gates import echo
from cantrip_actors.terms.errors import InvalidCantrip
from conformance.fuzz.campaign import Check

__all__ = [
    "check_javascript_texts",
    "has_shell",
    "open_python_worker",
    "open_shell_protocol",
    "open_snapshots",
    "python_worker_here",
    "snapshots",
]

GATES: Final = (echo.definition,)
LIMITS: Final = ProgramLimits(seconds=1)
STEPS: Final = 200
"""A limit above the number of gate calls of any turn."""


def has_shell() -> bool:
    """Return whether shells can be confined here by bubblewrap, whose snapshots are bytes."""
    try:
        medium("shell", "bubblewrap")
    except InvalidCantrip:
        return False
    return True


# ------------------------------------------------------------------------------------------------------- snapshots

PROGRAMS: Final = {
    "python": "n = 41\ntexts = ['milk', {'a': None}]\ndef f(x):\n    return x + n",
    "javascript": "var n = 41; var texts = ['milk', {a: null}]; function f(x) { return x + n }",
    "shell": "n=41; texts=(milk eggs); f() { echo $n; }; mkdir d; echo milk > d/a; ln -s d/a link",
}
SUSPENDED: Final = b"SUSPENDED\n"
"""The prefix of a snapshot of a suspended program."""

PAGES: Final = b"PAGES\n"
"""The prefix of a snapshot of JavaScript whose pages are not compressed yet: edits of compressed ones are always
noticed."""


def snapshots(language: str) -> Sequence[bytes]:
    """Return snapshots of the current engine version: one of another version is refused by its first line."""
    sandbox = _medium(language).open(GATES, LIMITS)
    try:
        sandbox.begin(PROGRAMS[language])
        image = sandbox.dump()
        assert image is not None
        if language == "javascript":
            head = image.index(b"\n") + 9  # the engine's line and a number
            return [image, PAGES + image[:head] + zlib.decompress(image[head:])]
        if language == "python":
            step = sandbox.begin("n + len(echo(texts[0]))")
            assert isinstance(step, Suspended)
            return [image, SUSPENDED + bytes(step.image or b"")]
        return [image]
    finally:
        sandbox.close()


def _medium(language: str) -> Any:
    return medium("shell", "bubblewrap") if language == "shell" else medium(language)


@contextmanager
def open_snapshots(language: str) -> Iterator[Check]:
    """Yield a check: a snapshot is loaded or raises ValueError, and either way the sandbox remains usable."""
    engine = _medium(language)
    program = "1" if language != "shell" else "echo 1"

    def check(data: bytes) -> None:
        sandbox = engine.open(GATES, LIMITS)
        try:
            if data.startswith(SUSPENDED):
                _resume(sandbox, data.removeprefix(SUSPENDED))
                return
            if data.startswith(PAGES):
                head = data.find(b"\n", len(PAGES)) + 9
                data = data[len(PAGES) : head] + zlib.compress(data[head:], 1)
            with suppress(ValueError):
                sandbox.load(data)
                _expect_step(sandbox.begin(program))
                return
            step = sandbox.begin(program)
            assert isinstance(step, Finished), f"a sandbox is unusable after it refused a snapshot: {step}"
        finally:
            sandbox.close()

    yield check


def _resume(sandbox: Any, image: bytes) -> None:
    with suppress(ValueError):
        suspended = sandbox.resume(image)
        assert isinstance(suspended, Suspended)
        _expect_step(sandbox.answer(suspended, Answer("milk")))


def _expect_step(step: object) -> None:
    assert isinstance(step, (Finished, Raised, Exceeded, Suspended)), f"expected a step, got {step!r}"


# -------------------------------------------------------------------------------------------------- worker protocols


class _WorkerHere:
    """A worker of Python programs in this process, where a debugger and a planted bug can reach it."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def compute(self, request: object, state: bytes, most: int) -> WorkerFrame:
        """Return the answer to a step."""
        reply, new_state = self._steps.compute(orjson.loads(orjson.dumps(request)), state)
        text = orjson.dumps(reply)
        assert len(text) <= most
        return WorkerFrame(orjson.loads(text), new_state)


@contextmanager
def python_worker_here(interpreter: Path) -> Iterator[None]:
    """Compute the steps of Python programs in this process, with another program as the interpreter."""
    with (
        Monty(binary_path=interpreter, min_processes=0, max_processes=1, request_timeout=5) as pool,
        tempfile.TemporaryFile(buffering=0) as printed,
    ):
        steps = Steps(pool, printed, mock.Mock(KernelTimers))
        with mock.patch.object(python_medium, "borrow", return_value=nullcontext(_WorkerHere(steps))):
            yield


@contextmanager
def open_python_worker() -> Iterator[Check]:
    """Yield a check: whatever an interpreter of Python programs answers, the step ends, and the sandbox works."""
    with tempfile.TemporaryDirectory() as folder:
        answers, script = Path(folder, "said"), Path(folder, "worker")
        script.write_text(f"#!/bin/sh\nexec cat '{answers}'\n", encoding="utf-8")
        script.chmod(0o700)

        def check(data: bytes) -> None:
            answers.write_bytes(data)
            with python_worker_here(script):
                sandbox = medium("python").open(GATES, LIMITS)
                step = sandbox.begin("x = echo('a')\nx")
                for _ in range(STEPS):
                    _expect_step(step)
                    if not isinstance(step, Suspended):
                        break
                    step = sandbox.answer(step, Answer("milk"))

        yield check


def check_javascript_texts(data: bytes) -> None:
    """Check that a guest's texts, a call's arguments and an end's report become data or the documented errors."""
    with suppress(ValueError):
        assert isinstance(read_arguments("echo", data), dict)
    with suppress(LimitExceeded):
        _expect_step(parse_report(data, "echo('a')", ["echo"], scarce=True))


@contextmanager
def open_shell_protocol() -> Iterator[Check]:
    """Yield a check: whatever a program writes into its shell's pipes, its turns end, and later ones work."""
    sandbox = medium("shell").open(
        GATES, ProgramLimits(seconds=0.3)
    )  # half of a forged record is waited for until then

    def check(data: bytes) -> None:
        escaped = "".join(f"\\{byte:03o}" for byte in data[:2000])
        program = (
            "for fd in /proc/self/fd/*; do fd=${fd##*/}; "
            f"if [[ $fd -gt 2 ]]; then printf '{escaped}' >&$fd; fi 2>/dev/null; done"
        )
        _run(sandbox, program)
        step = _run(sandbox, "echo ok")
        if not isinstance(step, Finished) or step.output != "ok\n":
            step = _run(sandbox, "echo ok")  # leftovers of the last program may have cost the shell one turn
        assert isinstance(step, Finished), f"no program ends after the input: {step}"
        assert step.output == "ok\n", f"a program prints {step.output!r} instead of ok"

    try:
        yield check
    finally:
        sandbox.close()


def _run(sandbox: Any, program: str) -> object:
    step = sandbox.begin(program)
    for _ in range(STEPS):
        _expect_step(step)
        if not isinstance(step, Suspended):
            break
        step = sandbox.answer(step, Answer("milk"))
    return step

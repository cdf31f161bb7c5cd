"""No Python program escapes from its sandbox or keeps the host busy: escapes/python.yaml.

Whatever a program does, the secrets of the host are in nothing that comes out of it, the host is as it was, and so are
the entity's variables. Each attempt also has the outcome that it has today: a new version of the interpreter that
answers another way is looked at, and not just trusted.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
import yaml
from anyio import to_thread

from cantrip_actors.circle.medium import (
    Answer,
    Exceeded,
    Finished,
    ProgramLimits,
    Raised,
    Sandbox,
    Stepped,
    Suspended,
    medium,
)
from cantrip_actors.terms.done_gate import DONE
from conformance.cases import FastLoader
from tests.circle.heart import LATE, Hearts
from tests.circle.medium_contract import search
from tests.circle.unhurried import unhurried
from tests.exhaustive import EXHAUSTIVE, part

SECRET = "canary-93ab7"
LIMITS = ProgramLimits(seconds=0.2, output=2_000, gate_calls=10)
AMPLE = replace(LIMITS, seconds=2)
"""Seconds that an event loop may be kept waiting by a step in a thread."""


class Attempt(NamedTuple):
    name: str
    kind: str
    code: str
    expect: str


ATTEMPTS = [
    Attempt(**one)
    for one in yaml.load((Path(__file__).parent / "escapes" / "python.yaml").read_text(encoding="utf-8"), FastLoader)
]
HASHES_ONCE = sys.version_info >= (3, 14)
"""Whether a tuple keeps its hash. What shares its parts is soon hashed then, and its program may end by itself."""
EXHAUSTS = [one for one in ATTEMPTS if one.kind == "exhaust"]


class Host:
    """What a program must not see or touch: an environment variable, a file, a module's attribute."""

    secret = SECRET

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "canary"
        self.file.write_text(SECRET, encoding="utf-8")
        self.before = self.now()

    def now(self) -> Any:
        files = {path.name: path.read_text(encoding="utf-8") for path in self.folder.iterdir()}
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return files, self.file.stat().st_mode, environment, vars(Host).get("secret"), Path.cwd(), list(sys.path)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("CANTRIP_CANARY", SECRET)
    return Host(tmp_path)


def opened(limits: ProgramLimits = LIMITS) -> Sandbox:
    sandbox = medium("python").open([search.definition, DONE.definition], limits)
    assert unhurried(sandbox, "kept = 'as it was'") == Finished(None)
    return sandbox


def run(sandbox: Sandbox, code: str) -> list[Stepped]:
    """Return the steps of a program with answered gates; the last is how it ends."""
    steps = [sandbox.begin(code)]
    while isinstance(step := steps[-1], Suspended):
        steps.append(sandbox.answer(step, Answer("ok", closed=step.gate == "done")))
    return steps


def attempt(sandbox: Sandbox, code: str) -> tuple[Stepped, str]:
    """Return how a program with answered gates ends, and everything that is visible of it."""
    steps = run(sandbox, code)
    return steps[-1], "\n".join(map(repr, steps)) + repr(sandbox.dump())


def outcome(step: Stepped) -> str:
    if isinstance(step, Raised):
        return f"Raised {step.error.split(':')[0].splitlines()[0]}"
    return type(step).__name__


@pytest.mark.unvaried
def test_the_list_of_attempts_is_long_and_has_no_duplicates():
    names = [one.name for one in ATTEMPTS]
    assert len(names) == len(set(names))
    assert len(ATTEMPTS) - len(EXHAUSTS) >= 330
    assert len(EXHAUSTS) >= 180


@pytest.mark.real_time
@pytest.mark.rule("CIRCLE-6")
@pytest.mark.parametrize("one", part(ATTEMPTS, 6), ids=lambda one: one.name)
def test_no_program_escapes_and_every_program_ends(one: Attempt, host: Host):
    limits = LIMITS if one.kind == "exhaust" else AMPLE
    sandbox = opened(limits)
    started = time.monotonic()
    step, seen = attempt(sandbox, one.code.replace("{path}", str(host.file)))
    took = time.monotonic() - started
    assert SECRET not in seen
    assert host.now() == host.before
    is_quick = HASHES_ONCE and ("(t, t)" in one.code or "(u, u)" in one.code)
    assert is_quick or outcome(step) == one.expect or (one.kind == "exhaust" and isinstance(step, Exceeded)), step
    assert took < limits.seconds + 10, "what is not ended takes for ever; a busy machine takes a second or two"
    assert unhurried(sandbox, "kept") == Finished("as it was")


def run_and_dump(sandbox: Sandbox, code: str) -> None:
    run(sandbox, code)
    sandbox.dump()


async def late_by(hearts: Hearts, *codes: str) -> float:
    """How late a heart beat while the programs ran in threads, at the same time.

    Nothing writes what they answer as text: Python does that to three million letters in one go, which delays the loop.
    """

    async def run_all() -> None:
        async with anyio.create_task_group() as programs:
            for code in codes:  # opening one may wait for a new worker, so it is done in a thread, as the runtime does
                sandbox = await to_thread.run_sync(opened, ProgramLimits(seconds=0.03, gate_calls=10))
                programs.start_soon(to_thread.run_sync, run_and_dump, sandbox, code)

    return await hearts.late_by(run_all)


@pytest.mark.real_time
@pytest.mark.rule("CIRCLE-6")
async def test_no_program_delays_the_loop(anyio_backend_name):
    """An attempt is guilty if it does so each of sixteen times."""
    guilty = {}
    with Hearts() as hearts:
        some = part(EXHAUSTS, 8) if anyio_backend_name == "asyncio" else EXHAUSTS[4 :: 5 if EXHAUSTIVE else 8]
        for pair in zip_longest(some[::2], some[1::2], fillvalue=some[0]):
            if await late_by(hearts, *(one.code for one in pair)) > LATE:
                for one in pair:
                    tries = [await late_by(hearts, one.code)]
                    while tries[-1] > LATE and len(tries) < 16:
                        await anyio.sleep(0.2 * len(tries))  # until other processes leave this one a core
                        tries.append(await late_by(hearts, one.code))
                    if tries[-1] > LATE:
                        guilty[one.name] = tries
    assert guilty == {}

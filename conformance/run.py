"""Run one case on one backend: set up, act, compare, and return a verdict.

Every case runs in virtual time, so its delays and retries happen as written and take no real time.
"""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import anyio

from cantrip_actors import Cantrip, CantripError, Circle, CrystalError, Runtime, scripted
from conformance.acts import Acts
from conformance.cases import Case
from conformance.facts import check_expectations, full_contexts
from conformance.stage import Stage
from conformance.story import Story
from supervisors.testing import virtual

__all__ = ["BACKENDS", "Status", "Verdict", "run_case"]

BACKENDS = ("asyncio", "trio")
PATIENCE = 3600.0
"""Virtual seconds that a case may take."""

Status = Literal["ok", "FAIL", "not yet", "text", "skip"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a case. `problems` are the mismatches; `note` says why a case was not run."""

    case: Case
    status: Status
    problems: tuple[str, ...] = ()
    note: str = ""


def run_case(case: Case, backends: tuple[str, ...] = BACKENDS) -> Verdict:
    """Return the verdict of a case: it passes if it passes on every backend."""
    if case.faults:
        return Verdict(case, "FAIL", case.faults)
    if case.skip:
        return Verdict(case, "skip")
    if case.is_text:
        return Verdict(case, "text")
    came = {backend: _run_guarded(case, backend) for backend in backends}
    problems = {backend: some for backend, some in came.items() if some is not None}
    if not problems:
        return Verdict(case, "not yet", note=f"needs medium {case.medium}")
    lines = problems[backends[0]] if len(problems) == len(came) else ["one backend has the medium, another has not"]
    if any(some != lines for some in problems.values()):
        lines = [f"[{backend}] {line}" for backend, some in problems.items() for line in some]
    return Verdict(case, "FAIL" if lines else "ok", tuple(lines))


@cache
def _has_medium(medium: str, backend: str) -> bool:
    """Return whether the product has a medium, by casting a cantrip in a circle with it."""

    async def probe() -> bool:
        try:
            circle = Circle(gates=["done"], wards=[{"max_turns": 1}], medium=medium)
            async with Runtime.open("memory:") as runtime:
                await runtime.cast(Cantrip(crystal=scripted(["hello"]), circle=circle), "does this medium exist?")
        except CantripError as error:
            return not ("medium" in str(error) and "not available" in str(error))
        return True

    name, options = virtual(backend)
    return medium == "tools" or anyio.run(probe, backend=name, backend_options=options)


def _run_guarded(case: Case, backend: str) -> list[str] | None:
    """Return the problems on one backend; None if the product does not have the medium.

    A crash of the product becomes a problem of its case here, so that the suite continues.
    """
    name, options = virtual(backend)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        try:
            if not _has_medium(case.medium, backend):
                return None
            return anyio.run(partial(_run, case, Path(folder)), backend=name, backend_options=options)
        except Exception as crash:
            where = traceback.extract_tb(crash.__traceback__)[-1]
            leaf: BaseException = crash
            while isinstance(leaf, BaseExceptionGroup):
                leaf = leaf.exceptions[0]
            return [f"crashed with {type(leaf).__name__}: {leaf} ({Path(where.filename).name}, line {where.lineno})"]


async def _run(case: Case, folder: Path) -> list[str]:
    stage = Stage(case.setup, folder)
    with anyio.move_on_after(PATIENCE) as patience:
        async with Acts(stage) as acts:
            story = await acts.play(case.action)
            problems = [*_find_unexpected(case, stage, story), *check_expectations(story, case.expect)]
    if patience.cancelled_caught:
        return [f"did not end within {PATIENCE:g} virtual seconds"]
    return [
        *problems,
        *(
            f"setup.{name}.stateless: expected every query to carry the whole context, one did not"
            for name in stage.stateless()
            if not full_contexts(stage.crystals[name].invocations)
        ),
    ]


def _find_unexpected(case: Case, stage: Stage, story: Story) -> list[str]:
    """Return a problem if the action raised an error that the case does not expect.

    If a crystal's script ends before its entity does, that alone is not a problem (reading 9): the checks of the loom
    are made anyway, and checks of an end fail because no end is recorded.
    """
    if story.error is None or "error" in case.expect:
        return []
    if isinstance(story.error, CrystalError) and stage.has_run_out():
        return []
    return [f"expected no error, got {type(story.error).__name__}: {story.error}"]

"""The simulation of whole runtimes finds bugs that were planted, and none in the product as it is.

`make test` runs first the seed that has found a bug when it was planted, and only then others, since each change of the
runtime changes the course of a seed; and some seeds without a bug. `EXHAUSTIVE=1` looks for each bug
from seed 0 on, makes each failure as simple as possible, and runs 300 seeds of each program without a bug.
"""

from collections.abc import Iterable

import pytest

from cantrip_actors.testing import SimulationFailed
from tests.exhaustive import EXHAUSTIVE
from tests.simulation.planted import BUGS, PlantedBug, run
from tests.simulation.scenarios import PROGRAMS

pytestmark = pytest.mark.rule("Y-43")

MOST = 2000
"""Seeds within which a planted bug has to be found."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    backend = "asyncio" if BUGS.index(bug) % 2 else "trio"
    with bug.planted():
        failure = find_failure(bug, [bug.seed, *range(MOST)], backend)
    assert failure is not None, f"{bug.name} was not found in {MOST} seeds"
    run(bug.program, failure.seed, backend=backend)  # without the bug it does not fail


def test_the_faults_that_a_bug_does_not_need_are_left_out() -> None:
    bug = next(bug for bug in BUGS if bug.name == "take_mail_later")
    with bug.planted():
        failure = find_failure(bug, [bug.seed, *range(MOST)], shrink=True)
    assert failure is not None
    assert [fault.kind in ("kill", "lose") for fault in failure.faults] == [True]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_keeps_its_guarantees_whatever_happens(program: str) -> None:
    for seed in range(300) if EXHAUSTIVE else (100, 101):
        run(program, seed)


@pytest.mark.skipif(not EXHAUSTIVE, reason="takes minutes: EXHAUSTIVE=1")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_planted_bug_is_found_and_made_simple(bug: PlantedBug) -> None:
    with bug.planted():
        failure = find_failure(bug, range(MOST), shrink=True)
    assert failure is not None, f"{bug.name} was not found in {MOST} seeds"
    assert len(failure.faults) <= 3  # a seed draws up to four, and most bugs need one or none


def find_failure(
    bug: PlantedBug, seeds: Iterable[int], backend: str = "asyncio", *, shrink: bool = False
) -> SimulationFailed | None:
    for seed in seeds:
        try:
            run(bug.program, seed, backend=backend, shrink=shrink)
        except SimulationFailed as failure:
            return failure
    return None

"""The simulation of whole runtimes finds bugs that were planted, and none in the product as it is.

`make test` runs the seeds that have found the bugs, and some others without a bug. `EXHAUSTIVE=1` looks for each bug
from seed 0 on, makes each failure as simple as possible, and runs 300 seeds of each program without a bug.
"""

import pytest

from cantrip_actors.testing import SimulationFailed
from tests.exhaustive import EXHAUSTIVE
from tests.simulation.planted import BUGS, PlantedBug, run
from tests.simulation.scenarios import PROGRAMS

pytestmark = pytest.mark.rule("Y-43")

MOST = 2000
"""Seeds within which a planted bug has to be found."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_by_its_seed_on_both_event_loops(bug: PlantedBug) -> None:
    backend = "asyncio" if BUGS.index(bug) % 2 else "trio"
    with bug.planted(), pytest.raises(SimulationFailed):
        run(bug.program, bug.seed, backend=backend, shrink=False)
    run(bug.program, bug.seed, backend=backend)  # it is the bug that was found


def test_the_faults_that_a_bug_does_not_need_are_left_out() -> None:
    bug = next(bug for bug in BUGS if bug.name == "take_mail_later")
    with bug.planted(), pytest.raises(SimulationFailed) as caught:
        run(bug.program, bug.seed)
    assert [(fault.kind, fault.write) for fault in caught.value.faults] == [("kill", 4)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_keeps_its_guarantees_whatever_happens(program: str) -> None:
    for seed in range(300) if EXHAUSTIVE else (100, 101):
        run(program, seed)


@pytest.mark.skipif(not EXHAUSTIVE, reason="takes minutes: EXHAUSTIVE=1")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_planted_bug_is_found_and_made_simple(bug: PlantedBug) -> None:
    with bug.planted():
        failure = next(filter(None, (find_failure(bug, seed) for seed in range(MOST))), None)
    assert failure is not None, f"{bug.name} was not found in {MOST} seeds"
    assert len(failure.faults) <= 2


def find_failure(bug: PlantedBug, seed: int) -> SimulationFailed | None:
    try:
        run(bug.program, seed)
    except SimulationFailed as failure:
        return failure
    return None

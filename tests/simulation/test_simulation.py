"""A whole cluster in virtual time: nodes, programs and senders over a model of a Postgres server, under one seed.

`make test` runs 20 seeds, `EXHAUSTIVE=1` 10,000. One that failed does the same again: `Simulation(seed).run()`.
"""

from collections.abc import Sequence

import pytest

from tests.exhaustive import EXHAUSTIVE
from tests.simulation.cluster import Simulation, Violation
from tests.simulation.store import VARIANTS, ClaimInOppositeOrder, SimStore

SEEDS = 10_000 if EXHAUSTIVE else 20
PARTS = 50 if EXHAUSTIVE else 4
MOST = 400
"""Seeds in which something that is broken has to be found."""

LATE = {
    "ReleaseInOneStatement": 89,
    "TokenNotChecked": 17,
    "Unordered": 19,
    "PlaceFreedTwice": 23,
    "PlaceNeverFreed": 130,
    "ClaimInOppositeOrder": 6,
}
"""A seed that showed the fault when this was written: it runs first, because those before it take seconds."""


@pytest.mark.rule("N-09", "N-10", "N-23", "N-24", "N-26", "N-28", "N-43", "N-50", "N-52", "N-61")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_cluster_keeps_its_guarantees_under_any_faults(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        try:
            Simulation(seed).run()
        except Exception as error:
            error.add_note(f"in the simulation with seed {seed}")
            raise


@pytest.mark.parametrize("variant", [*VARIANTS, ClaimInOppositeOrder], ids=lambda variant: variant.__name__)
def test_the_simulation_finds_faults_added_on_purpose(variant: type[SimStore]) -> None:
    first = LATE.get(variant.__name__, 0)
    found = first_violation(variant, [*range(first, MOST), *range(first)])
    assert found is not None, f"{variant.__name__} was not found in {MOST} seeds"


def test_the_simulation_repeats_the_same_run_with_the_same_seed() -> None:
    def course(seed: int) -> list[object]:
        simulation = Simulation(seed)
        simulation.run()
        return [simulation.world.now, sorted(simulation.server.rows["records"].items()), simulation.granted]

    assert course(3) == course(3)


def first_violation(variant: type[SimStore], seeds: Sequence[int]) -> Violation | None:
    for seed in seeds:
        try:
            Simulation(seed, variant).run()
        except Violation as found:
            return found
    return None

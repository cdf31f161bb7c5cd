"""Which records of a loom are settled: none with a lower number can still appear."""

import pytest

from cantrip_actors.loom.stores.settled import SETTLES_AFTER, count_settled
from cantrip_actors.looms import IntentGiven
from cantrip_actors.records.instant import format_instant

pytestmark = pytest.mark.rule("W-12")

NOW = 1_800_000_000.0
OLD = NOW - SETTLES_AFTER - 1


@pytest.mark.parametrize(
    ("numbered", "expected"),
    [
        ([], 0),
        ([(6, NOW), (7, NOW)], 2),
        ([(6, NOW), (8, NOW)], 1),
        ([(7, NOW)], 0),
        ([(7, OLD), (8, NOW)], 2),
        ([(7, OLD), (9, NOW), (10, NOW)], 1),
    ],
    ids=["nothing", "without a gap", "a fresh gap", "a fresh gap at the start", "an old gap", "an old and a fresh gap"],
)
def test_records_after_a_number_that_may_still_appear_are_not_settled(
    numbered: list[tuple[int, float]], expected: int
) -> None:
    records = [(number, IntentGiven("e", "hello", at=format_instant(at))) for number, at in numbered]
    assert count_settled(5, records, NOW) == expected

"""The tests of `make test` are the same everywhere, and may run in any order."""

import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shuffled import shuffle

pytestmark = pytest.mark.rule("L-23")

ITEMS: list[Any] = [SimpleNamespace(path=Path(f"test_{at // 5}.py"), name=f"test_{at}") for at in range(40)]


def test_a_seed_gives_one_order_of_all_tests_and_another_seed_another() -> None:
    orders = [[item.name for item in shuffle(ITEMS, seed)] for seed in ("1", "1", "2")]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(item.name for item in ITEMS) != orders[0]


def test_a_shuffled_order_keeps_the_tests_of_a_module_together() -> None:
    paths = [item.path for item in shuffle(ITEMS, "1")]
    assert sum(first != second for first, second in pairwise(paths)) == 7


@pytest.mark.skipif(bool(os.environ.get("SEARCH")), reason="`make search` makes other examples each time")
def test_hypothesis_makes_the_same_examples_in_each_run() -> None:
    runs: list[list[int]] = []
    for _ in range(2):
        numbers: list[int] = []

        @given(st.integers())
        def note(number: int) -> None:
            numbers.append(number)  # noqa: B023  # it runs in this round

        note()
        runs.append(numbers)
    assert settings().derandomize
    assert runs[0] == runs[1]
    assert len(runs[0]) > 1

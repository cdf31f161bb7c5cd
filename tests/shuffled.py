"""Another order of the tests, from a seed: `SHUFFLE=1 make test`. Whatever the order, the verdict is the same."""

import random
from collections.abc import Sequence
from itertools import groupby

import pytest


def shuffle(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return the modules in another order, and the tests of each in another order: fixtures of a module last."""
    chance = random.Random(seed)
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    chance.shuffle(modules)
    for tests in modules:
        chance.shuffle(tests)
    return [item for tests in modules for item in tests]

"""Fixtures of the supervision tests: a recorder, and systems that report to it alone."""

from collections.abc import Callable
from typing import Any

import pytest

from supervisors import ActorSystem
from supervisors.testing import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def new_system(recorder: Recorder) -> Callable[..., ActorSystem]:
    def make(**options: Any) -> ActorSystem:
        system = ActorSystem(reports=None, **options)
        system.sinks.append(recorder)
        return system

    return make

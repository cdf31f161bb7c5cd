"""Every async test runs on asyncio and on trio, in virtual time, and no test asks a real model."""

from collections.abc import Iterator
from typing import Any

import pytest

from cantrip_actors.testing import refuse_real_queries, virtual
from slow_bank import SlowBank


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Return the backend of a test."""
    return virtual(request.param)


@pytest.fixture(autouse=True)
def _no_real_queries() -> Iterator[None]:
    with refuse_real_queries():
        yield


@pytest.fixture
def bank() -> SlowBank:
    """Return a bank without transfers."""
    return SlowBank()

"""Chromium, and services whose pages it opens."""

from collections.abc import Iterator
from typing import Any

import pytest

from cantrip_actors.observe import Telemetry
from tests.http.browser import Live, browser, live
from tests.http.page.pages import ARCHIVIST, OPERATOR
from tests.http.serving import ECHO, token


@pytest.fixture(
    scope="module"
)  # playwright's event loop runs in this thread as long as the browser: other modules need theirs
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def service() -> Iterator[Live]:
    known = [token(OPERATOR, *["read", "observe", "cast", "send", "steer", "stop", "approve", "reward"])]
    known.append(token("guest", "read", "observe"))
    with live([ARCHIVIST, ECHO], tokens=known) as started:
        yield started


@pytest.fixture
def observed() -> Iterator[Live]:
    """A service with telemetry, which keeps crash reports, as that of `cantrip serve` has."""
    telemetry = Telemetry(otel=False)
    known = [token(OPERATOR, "read", "observe")]
    with live([ECHO], tokens=known, options={"telemetry": telemetry}, telemetry=telemetry) as started:
        yield started

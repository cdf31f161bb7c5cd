"""One Chromium for each module of browser tests, and sites on loopback."""

from collections.abc import Iterator

import pytest

from cantrip_actors.circle.browser.driver import get_driver
from tests.circle.browser.site import Site, serving


@pytest.fixture(scope="module", autouse=True)
def _chromium() -> Iterator[None]:
    yield
    get_driver().stop()


@pytest.fixture(scope="module")
def _served() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def site(_served: Site) -> Site:
    """An empty site."""
    _served.pages.clear()
    _served.got.clear()
    return _served

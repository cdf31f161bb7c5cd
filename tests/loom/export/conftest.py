"""Exported pages in Chromium, opened from a file."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cantrip_actors.loom.export.html import html_page
from tests.http.browser import browser
from tests.loom.told import written_once


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    written_once()  # asyncio.run refuses to while the browser's event loop runs in this thread
    with browser() as started:
        yield started


@pytest.fixture
def shown(chrome: Any, tmp_path: Any) -> Iterator[Callable[..., Any]]:
    """Open the page of a loom; an error, a report of its policy or a request fails the test."""
    contexts, faults = [], []

    def show(loom: Any, link: str = "", size: tuple[int, int] = (1300, 900), **options: Any) -> Any:
        path = tmp_path / "loom.html"
        with path.open("wb") as file:
            file.writelines(html_page(loom, **options))
        context = chrome.new_context(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda told: faults.append(told.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda one: one.url.startswith(("file:", "data:")) or faults.append(one.url))
        page.goto(f"{path.as_uri()}{link}")
        return page

    yield show
    for context in contexts:
        context.close()
    assert faults == []

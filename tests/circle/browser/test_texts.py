"""Texts, states and processes of a browser, without a browser: hidden secrets, bounds, names of files."""

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from cantrip_actors.circle.browser import page_state
from cantrip_actors.circle.browser.downloads import list_names
from cantrip_actors.circle.browser.driver import BrowserProcess, Driver
from cantrip_actors.circle.browser.notices import hide_secrets
from cantrip_actors.circle.browser.page_state import encode_state
from cantrip_actors.circle.browser.page_text import quote_text
from cantrip_actors.circle.browser.settings import Launch
from cantrip_actors.circle.browser.shared_browser import browser
from cantrip_actors.circle.gate_call import GateError


@pytest.mark.parametrize("names", [("pin", "password"), ("password", "pin")])
def test_a_secret_that_begins_with_another_is_hidden_whole(names: tuple[str, str]) -> None:
    values = {"pin": "1234", "password": "1234-blue"}
    secrets = {name: values[name] for name in names}
    assert hide_secrets("1234-blue, 1234", secrets) == "[secret password], [secret pin]"


def test_the_name_of_a_secret_is_not_searched_for_secrets() -> None:
    assert hide_secrets("abc", {"word": "abc", "other": "word"}) == "[secret word]"


def test_a_missing_playwright_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cantrip_actors.circle.browser.session", raising=False)
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    bound = browser(["*"])[0].dependencies["browser"].bind(None)
    with pytest.raises(GateError, match=r"pip install 'cantrip-actors\[browser\]'"):
        asyncio.run(bound._perform(AsyncMock(), {}))


def test_marks_that_turn_the_direction_of_a_text_are_not_quoted() -> None:
    assert quote_text("a\u202eb") == '"a b"'


@pytest.mark.parametrize("part", ["fields", "cookies", "url"])
def test_a_state_of_any_size_is_stored_within_the_bound(part: str) -> None:
    text = "x" * page_state.LARGEST
    page: dict[str, Any] = {"url": "https://a.test/", "fields": [{"value": "1"}], "session": {"a": "b"}}
    page |= {"fields": [{"value": text}]} if part == "fields" else {"url": text} if part == "url" else {}
    cookies = [{"name": "a", "value": text}] if part == "cookies" else [{"name": "a", "value": "b"}]
    data = encode_state(cookies, [page], {}, 0, lambda _: False)
    assert len(data) <= page_state.LARGEST
    state = json.loads(data)
    assert state.keys() == {"cookies", "tabs", "origins", "current"}
    if part == "fields":
        assert state["tabs"] == [{"url": "https://a.test/", "fields": [], "session": {}}]
        assert state["cookies"] == cookies


@pytest.mark.parametrize("sign", ["a", "é", "漢", "\U00020000"])
def test_a_download_has_a_name_that_fits_into_a_file_system(sign: str) -> None:
    names = list(list_names(f"{sign * 300}.{sign * 30}"))
    assert all(len(name.encode()) <= 255 for name in names)
    assert len(set(names)) == 1000


def test_a_browser_that_a_new_session_uses_is_not_stopped_for_the_end_of_the_last_one() -> None:
    async def run() -> bool:
        driver: Any = SimpleNamespace(_loop=asyncio.get_running_loop(), _stopping=set())
        process = BrowserProcess(driver, Launch(None, 512, True))
        process._browser = running = SimpleNamespace(is_connected=lambda: True)  # type: ignore[assignment]
        Driver.stop_unused(driver, process)  # the time after the last session is over
        browser = await process.acquire(AsyncMock())
        await asyncio.gather(*driver._stopping)
        return browser is running and process._browser is running

    assert asyncio.run(run())

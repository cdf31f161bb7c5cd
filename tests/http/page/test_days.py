"""Days and dates on the page, and the search of all texts."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.browser import Live, live
from tests.http.page.pages import ARCHIVIST, IN_CHROMIUM, cast, opened, show, until
from tests.http.serving import ECHO

pytestmark = [*IN_CHROMIUM, pytest.mark.rule("W-51")]

ROWS = "[...document.querySelectorAll('#loom .row')].map(row => row.dataset.id)"


@pytest.fixture(scope="module")
def searched() -> Any:
    with live([ARCHIVIST, ECHO]) as service:
        yield service


def test_rows_begin_with_their_intent_and_are_grouped_by_day(chrome: Any, searched: Live) -> None:
    intent = "Please tell me at great length, over more than one line of this list, what you have found"
    named = searched.call(searched.on.post, "entities", {"cantrip": "echo", "intent": intent, "name": "bob"})[
        "entity_id"
    ]
    with opened(chrome, url=searched.link()) as page:
        row = page.locator(f'#loom [data-id="{named}"]')
        row.wait_for()
        assert row.inner_text().split("\n")[0] == intent
        assert "bob" in row.locator(".under").inner_text()
        assert (
            row.locator(".over").evaluate("one => one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)")
            > 1.5
        )
        assert page.inner_text("#loom .canvas .day") == "Today"
    days = ("Yesterday", re.compile(r"[A-Z][a-z]+day \d+ [A-Z][a-z]+( \d{4})?"))
    for later, heading in enumerate(days, 1):
        now = datetime.now(UTC) + timedelta(days=later)
        with opened(chrome, url=searched.link(), now=now) as page:
            page.wait_for_selector("#loom .canvas .day")
            shown = page.inner_text("#loom .canvas .day")
            assert shown == heading if isinstance(heading, str) else heading.fullmatch(shown)
            show(page, named)
            assert page.locator("#main .step > .day:visible").count() == 1
            assert page.inner_text("#main .step > .day >> nth=0") == shown
            assert re.match(r"\d+ [A-Z][a-z]+( \d{4})?, \d\d:\d\d", page.inner_text("#main .card.said time"))
            turn = page.locator("#main article.turn time").first
            assert datetime.fromisoformat(str(turn.get_attribute("datetime"))) < now


def test_the_search_finds_texts_of_turns_and_opens_the_turn(chrome: Any, searched: Live) -> None:
    entity = cast(searched, "archivist", "Read the diary of Lovelace")
    other = cast(searched, "echo", "hello")
    with opened(chrome, url=searched.link()) as page:
        page.wait_for_selector(f'#loom [data-id="{other}"]')
        page.keyboard.press("/")
        page.keyboard.type("TWO LETTERS agree")  # what it answered in its second turn
        until(lambda: page.evaluate(ROWS) == [entity])
        row = page.locator(f'#loom [data-id="{entity}"]')
        assert "turn 2: Two letters agree" in row.inner_text()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        until(lambda: page.url.endswith(f"{entity}/t/2"))
        page.wait_for_selector('#main article[data-sequence="2"]:focus')
        page.fill("#loom input", "said by nobody")
        until(lambda: page.evaluate(ROWS) == [])
        page.fill("#loom input", "")
        until(lambda: len(page.evaluate(ROWS)) >= 2)

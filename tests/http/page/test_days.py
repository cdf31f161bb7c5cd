"""Days and dates on the page, and the search of all texts."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.wards import max_turns
from tests.http.browser import Live, live
from tests.http.page.pages import ARCHIVIST, IN_CHROMIUM, call, cast, opened, search, show, until
from tests.http.serving import ECHO

pytestmark = [*IN_CHROMIUM, pytest.mark.rule("W-51")]

ROWS = "[...document.querySelectorAll('#loom .row')].map(row => row.dataset.id)"


@pytest.fixture(scope="module")
def searched() -> Any:
    def count(context: Any) -> dict[str, Any]:
        done = sum(one.role == "assistant" for one in context)
        return call("I count.", ("search", {"query": str(done)})) if done < 220 else {"content": "counted"}

    counter = Cantrip(scripted(count), circle=Circle(["done", search], [max_turns(300)]), name="counter")
    with live([ARCHIVIST, ECHO, counter]) as service:
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
        page.keyboard.type("TWO LETTERS agree")  # its answer in its second turn
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


def test_a_link_to_an_old_turn_shows_the_turns_around_it_and_leads_on(chrome: Any, searched: Live) -> None:
    body = {"cantrip": "counter", "intent": "count", "name": "counter"}
    entity = searched.call(searched.on.post, "entities", body)["entity_id"]
    until(lambda: searched.call(searched.on.get, f"entities/{entity}")["state"] == "idle", seconds=120)
    with opened(chrome, url=searched.link()) as page:
        page.evaluate("id => { location.hash = `#/e/${id}/t/5` }", entity)
        page.wait_for_selector('#main article[data-sequence="5"]:focus')
        numbers = "[...document.querySelectorAll('#main article.turn')].map(one => Number(one.dataset.sequence))"
        assert 200 not in page.evaluate(numbers)
        page.click('#main button:has-text("Show later turns")')
        until(lambda: len(page.evaluate(numbers)) > 100)
        shown = page.evaluate(numbers)
        assert shown == list(range(1, len(shown) + 1))
        searched.call(searched.on.post, f"entities/{entity}/send", {"intent": "once more", "wait": 60})
        page.wait_for_selector(
            f'#loom [data-id="{entity}"] .under:has-text("222 turns")'
        )  # the reader stays at the old turns
        assert page.evaluate(numbers) == shown
        later = page.locator('#main button:has-text("Show later turns"):visible')
        for _ in range(5):
            count = len(page.evaluate(numbers))
            if later.count():
                later.click()
                until(lambda count=count: len(page.evaluate(numbers)) > count)  # type: ignore[misc]
        until(lambda: page.evaluate(numbers)[-1] == searched.call(searched.on.get, f"entities/{entity}")["turns"])

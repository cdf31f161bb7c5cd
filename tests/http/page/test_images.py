"""Images of an intent, of a message and of a gate, on the page."""

from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, Image, gate, scripted
from cantrip_actors.wards import max_turns
from tests.http.browser import live
from tests.http.page.pages import IN_CHROMIUM, call, opened, show
from tests.pictures import data_url, png

pytestmark = [*IN_CHROMIUM, pytest.mark.rule("W-50")]


@gate
async def draw(width: int) -> Image:
    """Draw a picture."""
    return Image(png(width, 20, 90))


def test_images_of_intents_and_gates_are_shown_in_their_turns_after_a_click(chrome: Any) -> None:
    steps = [call("I draw.", ("draw", {"width": 60}), ("draw", {"width": 70})), {"content": "It is drawn."}]
    artist = Cantrip(scripted(steps), circle=Circle(["done", draw], [max_turns(3)]), name="artist")
    with live([artist]) as service:
        intent = {
            "cantrip": "artist",
            "intent": "Draw it like this",
            "images": [data_url(png(40, 20, 30), "image/png")],
        }
        entity = service.call(service.on.post, "casts", intent)["entity_id"]
        with opened(chrome, url=service.link()) as page:
            show(page, entity)
            page.wait_for_selector('#main .step:has-text("Ended: done")')
            assert page.locator("#main img").count() == 0
            # The input of the model would show the same images once more.
            page.evaluate(
                "document.querySelectorAll('#main details:not(.input)').forEach(part => { part.open = true })"
            )
            offers = page.locator('#main button:has-text("Show the image")')
            assert offers.count() == 3
            for _ in range(3):
                offers.first.click()
            assert page.evaluate(
                "Promise.all([...document.querySelectorAll('#main img')].map(one => one.decode().then(() =>"
                " [one.closest('.step').className.includes('said') ? 'intent' : 'turn', one.naturalWidth])))"
            ) == [["intent", 40], ["turn", 60], ["turn", 70]]

"""The page shows what a model was given for a turn, when a person with the scope for it opens it."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_actors import Call, Cantrip, Circle, Folding, scripted
from cantrip_actors.wards import max_turns
from tests.http.browser import live
from tests.http.page.pages import IN_CHROMIUM, opened, show
from tests.http.serving import nap, token

pytestmark = [*IN_CHROMIUM, pytest.mark.rule("W-33")]

HOSTILE = "<img src=x onerror=document.title='hacked'>"


def answer(context: Any) -> Any:
    if context[-1].role == "user":
        return {"content": f"I wait. {HOSTILE}", "tool_calls": [{"gate": "nap", "args": {"seconds": 0}}]}
    return "Done."


def test_the_input_of_a_turn_is_read_and_shown_when_it_is_opened(chrome: Any) -> None:
    cantrip = Cantrip(
        scripted(answer),
        Call(system_prompt=f"You are a sleeper. {HOSTILE}"),
        Circle(["done", nap], [max_turns(9)]),
        folding=Folding(trigger_after_turns=3),
        name="sleeper",
    )
    tokens = [token("curious", "read", "inputs"), token("reader", "read")]
    with live([cantrip], tokens=tokens) as service:

        async def work() -> str:
            entity = await service.on.runtime.invoke(cantrip, "sleep", name="bob")
            await entity.episode()
            for _ in range(3):
                await entity.send("sleep again")
            return entity.id

        entity_id = service.call(work)
        with opened(chrome, url=service.link("curious")) as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            show(page, entity_id)
            inputs = page.locator("#main article.turn details.input")
            inputs.last.wait_for()
            assert not [url for url in asked if url.endswith("/input")]
            inputs.last.locator("summary").first.click()
            page.wait_for_selector(
                '#main details.input section.given[aria-label="system"]:has-text("You are a sleeper.")'
            )
            shown = inputs.last.inner_text()
            assert "result of nap" in shown
            assert "slept" in shown
            assert "earlier turns were folded" in shown
            assert HOSTILE in shown
            assert page.title() != "hacked"
            assert len([url for url in asked if url.endswith("/input")]) == 1
        with opened(chrome, url=service.link("reader")) as page:
            show(page, entity_id)
            page.locator("#main article.turn").last.wait_for()
            assert page.locator("#main details.input").count() == 0

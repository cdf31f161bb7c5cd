"""What the page does for a person who decides, chats, sends files and watches what is spent."""

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.gates import person
from cantrip_actors.wards import max_turns
from tests.http.browser import Live, live
from tests.http.page.pages import IN_CHROMIUM, OPERATOR, call, cast, decisions, opened, search, show, story, until
from tests.http.serving import ECHO
from tests.pictures import png
from tests.runtime.spells import done

pytestmark = IN_CHROMIUM


@pytest.mark.rule("W-52")
def test_a_call_is_decided_in_the_timeline_where_its_arguments_stay(chrome: Any, service: Live) -> None:
    approved, denied = cast(service, "echo", "pay 3"), cast(service, "echo", "pay 4")
    with opened(chrome, service) as page:
        for entity, amount in ((approved, "3"), (denied, "4")):
            show(page, entity)
            card = page.locator("#main .step.ask .card.ask")
            card.wait_for()
            assert card.locator(".values dd").inner_text() == amount
            if entity == approved:
                card.locator('button:has-text("Approve")').click()
            else:
                card.locator('input[aria-label="Note"]').fill("too much")
                card.locator('button:has-text("Deny")').click()
            page.wait_for_selector('#main .step:has-text("Ended: done")')
            assert page.locator("#main .card.ask").count() == 0
            assert page.inner_text("#main .step.ask .values dd") == amount
    assert decisions(service, approved) == [("allow", OPERATOR, "")]
    assert decisions(service, denied) == [("deny", OPERATOR, "too much")]


@pytest.mark.rule("W-52")
def test_the_page_works_below_the_prefix_of_an_application_that_mounts_the_service(chrome: Any) -> None:
    with live([ECHO], prefix="/our/agents") as service:
        entity = cast(service, "echo", "pay 3", "ada")
        with opened(chrome, url=service.link()) as page:
            show(page, entity)
            page.locator('#main .card.ask button:has-text("Approve")').click()
            page.wait_for_selector('#main .step:has-text("it said: paid 3")')
            page.reload()  # signed in by the cookie, and the events come again
            page.wait_for_selector('#main .step:has-text("it said: paid 3")')


@pytest.mark.rule("W-52")
def test_a_token_that_may_not_approve_sees_the_arguments_without_a_form(chrome: Any, service: Live) -> None:
    entity = cast(service, "echo", "pay 5")
    with opened(chrome, url=service.link("guest")) as page:
        show(page, entity)
        page.wait_for_selector('#main .step.ask .values dd:text-is("5")')
        assert page.locator("#main .step.ask :is(button, input, textarea)").count() == 0
    service.call(service.on.ask, "DELETE", f"entities/{entity}", 204)


@pytest.mark.rule("W-52")
def test_idle_actors_are_folded_away_and_a_phone_begins_with_open_requests(chrome: Any) -> None:
    with live([ECHO]) as service:
        names = ("ada", "bob", "cyd")
        bodies = [{"cantrip": "echo", "intent": "hello", "name": name} for name in names]
        ids = [service.call(service.on.post, "entities", body)["entity_id"] for body in bodies]
        payer = cast(service, "echo", "pay 3")
        until(lambda: all(service.call(service.on.get, f"entities/{one}")["state"] == "idle" for one in ids))
        with opened(chrome, url=service.link()) as page:
            rows = "[...document.querySelectorAll('#actors .row')].map(row => row.dataset.id.split('/').at(-1))"
            until(lambda: payer in page.evaluate(rows) and not set(ids) & set(page.evaluate(rows)))
            assert page.inner_text('#actors button[aria-pressed]:has-text("idle")') == "3 idle"
            show(page, ids[0])  # the selected one is there
            until(lambda: set(ids) & set(page.evaluate(rows)) == {ids[0]})
            page.click('#actors button:has-text("idle")')
            until(lambda: set(ids) <= set(page.evaluate(rows)))
        with opened(chrome, url=service.link(), viewport={"width": 360, "height": 740}) as page:
            page.wait_for_selector('#needs .card.ask:visible button:has-text("Approve")')
            assert page.locator("#tabs button").first.inner_text().startswith("Needs you")


@pytest.mark.rule("V-24", "W-52")
@pytest.mark.parametrize(
    ("button", "text", "heard"),
    [("Deliver", '{"size": 3}', '{"size": 3}'), ("Deliver", "built", "built"), ("It failed", "no disk", "no disk")],
)
def test_the_result_of_a_deferred_call_is_delivered_in_the_timeline(
    chrome: Any, service: Live, button: str, text: str, heard: str
) -> None:
    entity = cast(service, "echo", "build docs")
    with opened(chrome, service) as page:
        show(page, entity)
        card = page.locator("#main .step.ask .card.ask")
        card.wait_for()
        assert "waits for the result of build" in " ".join(card.inner_text().split())
        assert card.locator(".values dd").inner_text() == '"docs"'
        assert page.locator("#needs .card.ask").filter(has_text="build").count() == 1
        card.locator("textarea").fill(text)
        card.locator(f'button:has-text("{button}")').click()
        page.wait_for_selector('#main .step:has-text("Ended: done")')
        assert page.locator(".card.ask").filter(has_text="build").count() == 0
    turns = [one["data"] for one in story(service, entity) if one["event"] == "turn"]
    seen = next(call for turn in turns for call in turn["gate_calls"])
    assert (seen["is_error"], seen["result"]) == (button == "It failed", json.loads(heard) if "{" in heard else heard)


@pytest.mark.rule("W-21", "W-54")
def test_the_history_of_an_intent_is_shown_before_it(chrome: Any, service: Live) -> None:
    history = [
        {"role": "user", "content": "Where is order 17?"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "gate": "find_order", "args": {"id": 17}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "in Oslo"},
    ]
    body = {"cantrip": "echo", "intent": "And now?", "history": history}
    with opened(chrome, service) as page:
        entity = service.call(service.on.post, "casts", body)["entity_id"]
        show(page, entity)
        page.click('#main .card.said summary:has-text("3 messages before it")')
        shown = " ".join(page.inner_text("#main .card.said").split())
        parts = ("Where is order 17?", "calls find_order id 17", "result of find_order in Oslo", "And now?")
        assert sorted(parts, key=shown.index) == list(parts)


@pytest.mark.rule("W-55")
@pytest.mark.parametrize("context", ['{"room": 12}', "the red room"])
def test_files_and_context_go_into_a_cast_and_files_into_a_message(
    chrome: Any, service: Live, tmp_path: Path, context: str
) -> None:
    image, notes = tmp_path / "seen.png", tmp_path / "notes.txt"
    image.write_bytes(png(30, 20))
    notes.write_text("It was warm.")
    with opened(chrome, service) as page:
        page.keyboard.press("n")
        page.wait_for_selector("#dialog:visible")
        page.select_option("#dialog select", "echo")
        page.fill('#dialog textarea[placeholder="What should it do?"]', "hello")
        page.fill("#dialog input[type=text]", f"with {context[:4]}")
        page.set_input_files("#dialog input[type=file]", [image, notes])
        page.fill('#dialog textarea[placeholder^="Data"]', context)
        page.click('#dialog button:has-text("Cast")')
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        entity = page.evaluate("location.hash").split("/")[2]
        page.set_input_files("#main .composer input[type=file]", [image])
        page.wait_for_selector('#main .attach .count:text-is("1")')
        page.fill("#main .composer textarea", "look")
        page.click('#main .composer button:has-text("Send")')
        page.wait_for_selector('#main .card.said:has-text("look") button:has-text("Show the image")')
        until(lambda: page.inner_text("#main .attach .count") == "")
    told = [one["data"] for one in story(service, entity) if one["event"] in ("entity", "intent")]
    assert [[file["filename"] for file in one["images"] if "filename" in file] for one in told] == [["notes.txt"], []]
    assert [[file["width"] for file in one["images"] if file.get("width")] for one in told] == [[30], [30]]
    record = service.do(lambda: service.on.runtime.loom.records(entity)[1])
    assert record.context == (json.loads(context) if context.startswith("{") else context)


@pytest.mark.rule("W-55")
def test_the_chat_shows_what_is_said_and_hides_calls(chrome: Any) -> None:
    steps = [
        {**call("", ("search", {"query": "1911"})), "thinking": "Where could it be?"},
        call("I publish it.", ("done", {"answer": "It was **1911**."})),
    ]
    teller = Cantrip(scripted(steps), circle=Circle(["done", search], [max_turns(4)]), name="teller")
    with live([teller]) as service, opened(chrome, url=service.link()) as page:
        show(page, cast(service, "teller", "When was it?"))
        page.wait_for_selector('#main .result strong:text-is("1911")')
        assert "search" in page.inner_text("#main .thread")
        page.keyboard.press("c")
        page.wait_for_selector('#main button[aria-pressed=true]:has-text("Chat")')
        shown = page.inner_text("#main .thread")
        assert all(text in shown for text in ("When was it?", "I publish it.", "It was 1911."))
        assert not any(text in shown for text in ("search", "Where could it be?"))
        page.click('#main button:has-text("Chat")')
        assert "search" in page.inner_text("#main .thread")


@pytest.mark.rule("W-55")
def test_the_spending_of_each_period_is_shown(chrome: Any, service: Live) -> None:
    body = {"cantrip": "echo", "intent": "hello", "name": "spender"}
    entity = service.call(service.on.post, "entities", body)["entity_id"]
    for text in ("one", "two"):
        service.call(service.on.post, f"entities/{entity}/send", {"intent": text, "wait": 10})
    with opened(chrome, service) as page:
        show(page, entity)
        page.click('#main button:has-text("Spending")')
        page.wait_for_selector('#dialog tbody td:text-is("30")')
        page.select_option("#dialog select", "intent")
        page.wait_for_selector('#dialog tbody tr:nth-child(3) td:text-is("10")')
        assert page.inner_text("#dialog tfoot").split() == ["all", "30"]


@pytest.mark.rule("B-10", "B-11")
def test_an_utterance_is_replied_to_in_the_timeline_with_a_file(chrome: Any, tmp_path: Path) -> None:
    def answer(context: Any) -> Any:
        if context[-1].content.startswith("admin: "):
            return done(f"{len(context[-1].images)} image of {context[-1].content}")
        return {"content": "@anna: A picture of you, please."}

    picture = tmp_path / "me.png"
    picture.write_bytes(png())
    circle = Circle(["done", person.with_(to=["anna", "ben"])], [max_turns(5)], medium="person")
    with (
        live([Cantrip(scripted(answer), circle=circle, name="talk")]) as service,
        opened(chrome, url=service.link()) as page,
    ):
        entity = cast(service, "talk", "Go.")
        show(page, entity)
        card = page.locator("#main .step.ask .card.ask")
        card.wait_for()
        assert "says to anna" in card.inner_text()
        card.locator("input[type=file]").set_input_files(str(picture))
        card.locator("textarea").fill("Here.")
        card.locator("textarea").press("Enter")
        page.wait_for_selector('#main .step:has-text("1 image of admin: Here.")')
        assert decisions(service, entity) == [("answer", "admin", "")]

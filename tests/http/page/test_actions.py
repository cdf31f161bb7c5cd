"""What people do on the page, and what a token that only reads may not."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.http.browser import Live, live
from tests.http.page.hands import Keys, Mouse
from tests.http.page.pages import IN_CHROMIUM, OPERATOR, cast, decisions, opened, show, story, until
from tests.http.serving import ECHO, token

pytestmark = IN_CHROMIUM


@pytest.mark.rule("PAGE-02")
@pytest.mark.parametrize("hands", [Mouse, Keys])
def test_every_action_works_by_mouse_and_by_keys_and_the_loom_has_its_author_and_time(
    chrome: Any, service: Live, hands: type[Mouse] | type[Keys]
) -> None:
    began = datetime.now(UTC) - timedelta(milliseconds=1)
    with opened(chrome, service) as page:
        person = hands(page)
        payers = []
        for act, word in ((person.approve, "approved"), (lambda: person.deny("too much"), "denied")):
            payers.append(cast(service, "echo", "pay 3"))
            page.wait_for_selector(f'#loom [data-id="{payers[-1]}"]', state="attached")
            person.select(payers[-1])
            page.wait_for_selector("#needs .card.ask")
            act()
            page.wait_for_selector(f'#main .step:has-text("{word}")')
        bob = cast(service, "echo", "turns 40 0.3", f"bob-{hands.__name__}")
        page.wait_for_selector(f'#loom [data-id="{bob}"]', state="attached")
        person.select(bob)
        page.wait_for_selector('[data-sequence="1"]')
        person.steer("look left")
        page.wait_for_selector(f'#main .step.ask:has-text("steered by {OPERATOR}")')
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        service.call(service.on.post, f"entities/{bob}/send", {"intent": "turns 40 0.3"})
        page.wait_for_selector('#main button:has-text("Interrupt")')
        person.interrupt("wrong way")
        page.wait_for_selector('#main .step.ending:has-text("Episode: interrupted")')
        person.fork("hello")
        page.wait_for_selector(f'#main .crumbs:has-text("bob-{hands.__name__}")')
        page.wait_for_selector('#main .step:has-text("done")')
        fork = page.evaluate("location.hash").split("/")[2]
        person.select(bob)
        page.wait_for_selector('#main .step.ending:has-text("Episode: interrupted")')
        person.stop("enough")
        page.wait_for_selector('#main .step.ending:has-text("Ended")')
    told = {one["event"]: one["data"] for id in (payers[1], bob) for one in story(service, id)}
    told |= {"approval": next(one["data"] for one in story(service, payers[0]) if one["event"] == "decision")}
    told |= {"fork": story(service, fork)[0]["data"]}
    assert (told["approval"]["decision"], told["decision"]["decision"]) == ("allow", "deny")
    assert told["decision"]["note"] == "too much"
    assert told["steer"]["text"] == "look left"
    assert told["episode"]["summary"].startswith("interrupted (wrong way)")
    assert told["end"]["summary"].startswith("stopped (enough)")
    for action in ("approval", "decision", "steer", "episode", "end", "fork"):
        by, at = told[action]["by"], told[action].get("at") or told[action]["began"]
        assert by.removeprefix("token:") == OPERATOR, action
        assert began <= datetime.fromisoformat(at) <= datetime.now(UTC), action


@pytest.mark.rule("PAGE-02")
@pytest.mark.parametrize("hands", [Mouse, Keys])
def test_requests_shown_by_the_filter_are_decided_at_once_and_a_turn_is_rewarded(
    chrome: Any, service: Live, hands: type[Mouse] | type[Keys]
) -> None:
    mark = f"all-{hands.__name__}"
    allowed = [cast(service, "echo", "pay 6", f"{mark}-yes-{n}") for n in range(2)]
    denied = [cast(service, "echo", "pay 7", f"{mark}-no-{n}") for n in range(2)]
    other = cast(service, "echo", "pay 8", f"other-{hands.__name__}")
    with opened(chrome, service) as page:
        person = hands(page)
        until(lambda: page.locator(f'#needs .card.ask:has-text("{mark}")').count() == 4)
        for word, name in (("Approve", "yes"), ("Deny", "no")):
            person.filter(f"{mark}-{name}")
            page.wait_for_selector(f'#needs .many button:has-text("{word} all 2")')
            person.all_shown(word)
            until(lambda name=name: page.locator(f'#needs .card.ask:has-text("{mark}-{name}")').count() == 0)
        person.filter("")
        assert page.locator(f'#needs .card.ask:has-text("other-{hands.__name__}")').count() == 1
        page.evaluate("id => { location.hash = `#/e/${id}` }", allowed[0])
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        person.reward("0.5")
        page.wait_for_selector(f'#main .step.good:has-text("rewarded turn 1 with 0.5 by {OPERATOR}")')
        assert page.inner_text('[data-sequence="1"] .reward') == "★ 0.5"
        # an entity that has ended takes rewards, too
        person.stop("enough")
        page.wait_for_selector('#main .step.ending:has-text("Ended")')
        person.reward("-1")
        page.wait_for_selector(f'#main .step.good:has-text("rewarded turn 1 with -1 by {OPERATOR}")')
    assert [decisions(service, one)[0][:2] for one in allowed] == [("allow", OPERATOR)] * 2
    assert [decisions(service, one)[0][:2] for one in denied] == [("deny", OPERATOR)] * 2
    assert decisions(service, other) == []
    rewards = [one["data"] for one in story(service, allowed[0]) if one["event"] == "reward"]
    assert [(one["reward"], one["by"]) for one in rewards] == [(0.5, f"token:{OPERATOR}"), (-1.0, f"token:{OPERATOR}")]
    service.call(service.on.ask, "DELETE", f"entities/{other}", 204)


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[Live]:
    """A service whose loom has seven entities that were at work when their process died."""
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    names = ["one", "two", "go-1", "go-2", "end-1", "end-2", "last"]
    with live([ECHO], f"jsonl:{first}") as before:
        for name in names:
            cast(before, "echo", "nap 60", name)
        until(lambda: first.read_text().count('"gate_started"') == len(names))
        shutil.copy(first, second)
    with live([ECHO], f"jsonl:{second}", tokens=[token(OPERATOR, "read", "stop"), token("guest", "read")]) as service:
        yield service


@pytest.mark.rule("PAGE-02", "PAGE-10")
@pytest.mark.parametrize("hands", [Mouse, Keys])
def test_interrupted_entities_are_resumed_and_abandoned_one_by_one_and_all_that_the_filter_shows(
    chrome: Any, abandoned: Live, hands: type[Mouse] | type[Keys]
) -> None:
    service = abandoned
    known = {one["name"]: one["id"] for one in service.call(service.on.get, "entities")["items"]}
    assert all(service.call(service.on.get, f"entities/{id}")["interrupted"] for id in known.values())
    with opened(chrome, url=service.link("guest")) as page:
        until(lambda: page.locator("#needs .card.broken").count() == 7)
        assert page.locator("#needs button:visible").count() == 0
    with opened(chrome, service) as page:
        person = hands(page)
        until(lambda: page.locator("#needs .card.broken").count() == 7)
        person.resume(known["one"])
        page.wait_for_selector(f'#needs [data-entity="{known["one"]}"]', state="detached")
        person.abandon(known["two"])
        page.wait_for_selector(f'#needs [data-entity="{known["two"]}"]', state="detached")
        for word, name in (("Resume", "go-"), ("Abandon", "end-")):
            person.filter(name)
            page.wait_for_selector(f'#needs .many button:has-text("{word} all 2")')
            person.all_shown(word)
            until(lambda name=name: page.locator(f'#needs .card.broken:has-text("{name}")').count() == 0)
        person.filter("")
        assert page.locator("#needs .card.broken").count() == 1
        show(page, known["last"])
        page.wait_for_selector('#main header .pill:has-text("interrupted")')
        page.click('#main header button:has-text("Resume")')
        page.wait_for_selector(f'#main .step:has-text("resumed by {OPERATOR}")')
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        page.reload()  # the loom has it
        page.wait_for_selector(f'#main .step:has-text("resumed by {OPERATOR}")')
        assert page.locator('#main .step:has-text("resumed by")').count() == 1
    for name in ("two", "end-1", "end-2"):
        end = story(service, known[name])[-1]
        assert (end["event"], end["data"]["state"], end["data"]["by"]) == ("end", "abandoned", f"token:{OPERATOR}")
    for name in ("one", "go-1", "go-2", "last"):
        until(lambda name=name: story(service, known[name])[-1]["event"] == "episode")


@pytest.mark.rule("PAGE-02", "PAGE-04")
def test_a_late_list_of_entities_does_not_undo_a_newer_event(chrome: Any, abandoned: Live) -> None:
    service = abandoned
    known = {one["name"]: one["id"] for one in service.call(service.on.get, "entities")["items"]}
    held: list[tuple[Any, Any]] = []
    with opened(chrome, service) as page:
        until(lambda: page.locator("#needs .card.broken").count() == 7)
        page.route("**/api/v1/entities?limit=*", lambda route: held.append((route, route.fetch())))
        page.reload()
        until(lambda: page.locator("#needs .card.broken").count() == 7 and held)
        page.click(f'#needs [data-entity="{known["one"]}"] button:has-text("Resume")')
        page.wait_for_selector(f'#needs [data-entity="{known["one"]}"]', state="detached")
        with page.expect_response("**/api/v1/entities?limit=*"):
            for route, answer in held:
                route.fulfill(response=answer)
        page.wait_for_function("() => new Promise((done) => setTimeout(done, 200, true))")
        assert page.locator("#needs .card.broken").count() == 6


@pytest.mark.rule("PAGE-02")
@pytest.mark.parametrize("hands", [Mouse, Keys])
def test_a_person_acts_again_only_when_the_last_action_was_answered(
    chrome: Any, abandoned: Live, hands: type[Mouse] | type[Keys]
) -> None:
    service = abandoned
    known = {one["name"]: one["id"] for one in service.call(service.on.get, "entities")["items"]}

    def answer_late(route: Any) -> None:
        answer = route.fetch()
        until(lambda: story(service, known["one"])[-1]["event"] == "end")
        page.wait_for_selector(f'#needs [data-entity="{known["one"]}"]', state="detached")
        route.fulfill(response=answer)

    with opened(chrome, service) as page:
        person = hands(page)
        until(lambda: page.locator("#needs .card.broken").count() == 7)
        page.route("**/abandon", answer_late)
        person.abandon(known["one"])
        page.wait_for_selector(f'#needs [data-entity="{known["one"]}"]', state="detached")
        person.filter("go-")
        page.wait_for_selector('#needs .many button:has-text("Resume all 2")')


@pytest.mark.rule("PAGE-02")
def test_a_turn_is_forked_with_another_crystal(chrome: Any, service: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    origin = cast(service, "echo", "hello")
    with opened(chrome, url=service.link("admin")) as page:
        show(page, origin)
        page.wait_for_selector('[data-sequence="1"]')
        page.click('[data-sequence="1"] button:has-text("Fork")')
        page.fill("#dialog textarea", "and now?")
        page.fill('#dialog input[type="text"]', "openai:gpt-5")
        page.click('#dialog button:has-text("Fork")')
        page.wait_for_selector('#main .facts:has-text("openai:gpt-5")')
        fork = page.evaluate("location.hash").split("/")[2]
    entity = service.call(service.on.get, f"entities/{fork}")
    assert (entity["crystal"], entity["intent"], entity["by"]) == ("openai:gpt-5", "and now?", "token:admin")
    service.call(service.on.ask, "DELETE", f"entities/{fork}")


@pytest.mark.rule("PAGE-02")
def test_a_message_is_sent_to_an_idle_entity_and_arguments_are_edited_before_approval(
    chrome: Any, service: Live
) -> None:
    bob = cast(service, "echo", "hello", "bob-idle")
    payer = cast(service, "echo", "pay 3")
    with opened(chrome, service) as page:
        show(page, bob)
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        page.fill("#main .composer textarea", "hello again")
        page.keyboard.press("Enter")
        page.wait_for_selector('#main article:has-text("you said: hello again")')
        show(page, payer)
        card = page.locator(f'#needs .card.ask:has(a[href$="{payer}"])')
        card.locator('button:has-text("Edit arguments")').click()
        card.locator('textarea[aria-label="Arguments as JSON"]').fill('{"amount": 2}')
        card.locator('button:has-text("Approve")').click()
        page.wait_for_selector('#main .call:has-text("paid 2")')
    assert [one["data"].get("by") for one in story(service, bob) if one["event"] == "intent"] == [f"token:{OPERATOR}"]


@pytest.mark.rule("V-07")
def test_turns_that_were_undone_are_marked_at_once_and_after_a_reload(chrome: Any, service: Live) -> None:
    bob = cast(service, "echo", "hello", "bob-undone")
    with opened(chrome, service) as page:
        show(page, bob)
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        service.call(service.on.post, f"entities/{bob}/send", {"intent": "hello again"})
        page.wait_for_selector('#main article.turn:has-text("hello again")')
        service.call(service.on.post, f"entities/{bob}/undo", {})
        page.wait_for_selector('#main .step:has-text("turn 2 undone by")')
        for _ in range(2):
            page.wait_for_selector('#main article.turn.undone:has-text("hello again")')
            assert page.locator("#main article.turn.undone").count() == 1
            page.reload()


@pytest.mark.rule("PAGE-10")
def test_a_token_that_only_reads_has_no_action_in_the_page_and_may_not_act(chrome: Any, service: Live) -> None:
    payer = cast(service, "echo", "pay 4", "payer-of-four")
    another = cast(service, "echo", "pay 4", "another-payer")
    bob = cast(service, "echo", "hello", "bob-read-only")
    until(lambda: story(service, bob)[-1]["event"] == "episode")
    (turn,) = [one["data"]["id"] for one in story(service, bob) if one["event"] == "turn"]
    request = until(lambda: service.call(service.on.get, f"requests?entity={payer}")["items"])[0]["id"]
    with opened(chrome, url=service.link("guest")) as page:
        for entity in (payer, bob):
            show(page, entity)
            page.wait_for_selector("#needs .card.ask")
            controls = page.evaluate(
                "() => [...document.querySelectorAll(':is(#main, #needs, #tools) :is(button, input, textarea, form)')]"
                ".map(one => one.getAttribute('aria-label') ?? one.textContent.trim())"
            )
            reading = (
                "Dark or light",
                "Keys",
                "Chat",
                "Spending",
                "Show earlier turns",
                "Show later turns",
                "Show all",
            )
            assert [one for one in controls if one and not one.startswith(reading)] == []
            for key in ("a", "d", "s", "i", "x", "f", "w", "n", "r", "Shift+A", "Shift+D", "Shift+R", "Shift+X"):
                page.keyboard.press(key)
                assert page.locator("#dialog:visible").count() == 0, key
        forged = [
            ("POST", f"requests/{request}", {"decision": "allow"}),
            ("POST", "casts", {"cantrip": "echo", "intent": "hello"}),
            ("POST", "entities", {"cantrip": "echo", "intent": "hello", "name": "forged"}),
            ("POST", f"entities/{bob}/send", {"intent": "hello"}),
            *(("POST", f"entities/{payer}/{action}", {"text": "x"}) for action in ("steer", "interrupt")),
            *(("POST", f"entities/{payer}/{action}", {}) for action in ("resume", "abandon")),
            ("DELETE", f"entities/{payer}", None),
            ("POST", f"turns/{turn}/fork", {"intent": "hello"}),
            ("POST", f"turns/{turn}/rewards", {"reward": 1}),
        ]
        for method, path, body in forged:
            status = page.evaluate(
                """([method, path, body]) => fetch(`/api/v1/${path}`, {method, body: body && JSON.stringify(body),
                  headers: body ? {"content-type": "application/json"} : {}}).then(answer => answer.status)""",
                [method, path, body],
            )
            assert status == 403, path
        page.faults.clear()
    assert [story(service, one)[-1]["event"] for one in (payer, bob)] == ["request", "episode"]
    for entity in (payer, another):
        service.call(service.on.ask, "DELETE", f"entities/{entity}", 204)

"""The live page in a real Chromium: what it shows, what people do on it, and what hostile text cannot do to it.

Each test polls for what it expects; none sleeps. `PICTURES=1` writes the pictures of docs/page.md.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Retry, Runtime, ask_first, gate, scripted
from cantrip_actors.crystals import Breaker, limited
from cantrip_actors.http.live_page import PAGE_HEADERS, assets
from cantrip_actors.observe import Telemetry
from cantrip_actors.runtime.gates_actor import GatesActor
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart, ResponseDone, ResponseStart
from cantrip_actors.wards import max_tokens, max_turns, timeout
from tests.drawings import folder_for
from tests.exhaustive import EXHAUSTIVE
from tests.http.browser import Live, browser, chromium, live
from tests.http.serving import ECHO, ROOT, process, token

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(chromium() is None, reason="no chromium on PATH: the live page is tested in a real browser"),
]

WIDE = {"width": 1440, "height": 900}
STAGE = Path(__file__).with_name("stage.js")
ENTITIES = 2000
OPERATOR = "anna"


def until(holds: Callable[[], Any], seconds: float = 15) -> Any:
    """Return what `holds` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found


@gate
async def search(query: str) -> list[str]:
    """Search the archive."""
    return [f"{query}: 3 letters of 1911", f"{query}: a photograph, undated"]


@gate
async def publish(title: str, words: int) -> str:
    """Publish an article."""
    return f'published "{title}", {words} words'


def call(content: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"gate": name, "args": args} for name, args in calls]
    return {"content": content, "tool_calls": made, "usage": {"prompt_tokens": 812, "completion_tokens": 96}}


def archivist(context: Any) -> dict[str, Any]:
    """Read with two children, search, ask before publishing, and answer."""
    asked = max(at for at, one in enumerate(context) if one.role == "user")
    intent, done = str(context[asked].content), sum(one.role == "assistant" for one in context[asked:])
    if "read " in intent.lower():
        steps = [
            call("I look for the name first.", ("search", {"query": intent.rsplit(maxsplit=1)[-1].strip(".")})),
            {"content": "Two letters agree on the **summer of 1911**. The photograph has no date."},
        ]
    else:
        reads = [{"intent": "Read the letters of Ada"}, {"intent": "Read the ledger of Boyle"}]
        title = {"title": "The summer of 1911", "words": 1200}
        steps = [
            call(
                "Two readers are quicker than one:\n- the letters\n- the ledger",
                ("call_agent_batch", {"intents": reads}),
            ),
            call("Both name the same summer. I check the archive itself.", ("search", {"query": "summer 1911"})),
            call("The article is ready. Publishing is final, so a person looks at it first.", ("publish", title)),
            {"content": "It is published. `1911` was **the** summer."},
        ]
    return steps[min(done, len(steps) - 1)]


CIRCLE = Circle(["done", "call_agent", "call_agent_batch", search, ask_first(publish)], [max_turns(40)])
ARCHIVIST = Cantrip(scripted(archivist), circle=CIRCLE, name="archivist")


@pytest.fixture(scope="module")
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


@contextmanager
def opened(
    chrome: Any, service: Live | None = None, url: str | None = None, *, is_staged: bool = False, **options: Any
) -> Iterator[Any]:
    """Open the page; an error, a report of its policy or a request to another host fails the test.

    The test plays the events of a page that `is_staged`, which has 2,000 entities.
    """
    faults: list[str] = []
    context = chrome.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
    page = context.new_page()
    page.set_default_timeout(15_000)
    played = "/api/v1/entities/e"  # the service does not know the entities that a test plays

    def note(told: Any) -> None:
        if told.type in ("error", "warning") and not (is_staged and played in told.location["url"]):
            faults.append(f"{told.text} {told.location['url']}")

    page.on("console", note)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
    link = url or (service.link(OPERATOR) if service else "")
    host = link.split("/#")[0]
    known = (f"{host}/page/", f"{host}/api/v1/", f"{host}/session", "data:")
    page.on(
        "request", lambda one: None if one.url == f"{host}/" or one.url.startswith(known) else faults.append(one.url)
    )
    if is_staged:
        context.add_init_script(path=STAGE)
    page.goto(link)
    if is_staged:
        until(lambda: page.evaluate("!!window.stage"))
        page.evaluate("count => play.begin(count)", ENTITIES)
        until(lambda: page.evaluate("document.querySelectorAll('#loom .row').length > 5"))
    page.wait_for_selector("#line.on")
    page.faults = faults
    try:
        yield page
        assert [one for one in faults if "net::ERR" not in one] == []
    finally:
        context.close()


def cast(service: Live, cantrip: str, intent: str, name: str | None = None) -> str:
    body = {"cantrip": cantrip, "intent": intent, **({"name": name} if name else {})}
    begun = service.call(service.on.post, "entities" if name else "casts", body)
    return str(begun["entity_id"])


def show(page: Any, entity: str) -> None:
    page.evaluate("id => { location.hash = `#/e/${id}` }", entity)
    page.wait_for_selector(f'#loom [data-id="{entity}"][aria-selected="true"]', state="attached")
    page.wait_for_selector("#main .step")


def story(service: Live, entity: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.call(service.on.get, f"entities/{entity}/story?limit=500")["items"]
    return found


def decisions(service: Live, entity: str) -> list[tuple[str, str, str]]:
    return [
        (one["data"]["decision"], one["data"]["by"], one["data"]["note"])
        for one in story(service, entity)
        if one["event"] == "decision"
    ]


# The walk: what a visitor is shown, and the pictures of the documentation


@pytest.mark.rule("PAGE-01", "PAGE-02", "PAGE-03", "PAGE-08")
def test_the_walk_cast_children_crash_approval_fork(
    chrome: Any, service: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = folder_for(tmp_path)
    whole, crashes = GatesActor.handle_call, iter([True])

    async def crash_once(self: Any, message: Any, caller: Any) -> Any:
        if "summer 1911" in str(message) and next(crashes, False):
            raise RuntimeError("the archive hung up")
        return await whole(self, message, caller)

    with opened(chrome, service, color_scheme="dark") as page:
        # cast, by keys
        page.wait_for_selector(".welcome")
        page.keyboard.press("n")
        page.fill("#dialog textarea", "Find out when the summer house was built, and publish it.")
        page.fill('#dialog input[type="text"]', "summer-house")
        monkeypatch.setattr(GatesActor, "handle_call", crash_once)
        page.keyboard.press("Enter")
        # children appear, the crash and its restart show with their report, and it waits for a person
        page.wait_for_selector('#needs .card.ask:has-text("publish")')
        page.wait_for_selector('#main h1:has-text("summer-house")')
        assert page.locator("#main a.kin").count() == 2
        page.wait_for_selector('#needs .crashes:has-text("the archive hung up")', state="attached")
        page.wait_for_selector("#actors .badge.warn")
        page.wait_for_selector("#main .step.ask")
        page.screenshot(path=folder / "page-dark.png")
        entity = page.evaluate("location.hash").split("/")[2]
        page.click("#needs .log > summary")
        page.click("#needs .crashes summary >> nth=0")
        assert "RuntimeError: the archive hung up" in page.inner_text("#needs .crashes")
        page.screenshot(path=folder / "page-crash.png")
        # approve by keys: the first `a` goes to the request, the second approves
        page.keyboard.press("a")
        page.keyboard.press("a")
        page.wait_for_selector('#main .step.good:has-text("approved")')
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        assert decisions(service, entity) == [("allow", OPERATOR, "")]
        # fork from turn 2
        page.locator('[data-sequence="2"] button:has-text("Fork")').click()
        page.fill("#dialog textarea", "Read the ledger of Cavendish.")
        page.keyboard.press("Enter")
        page.wait_for_selector('#main .crumbs:has-text("summer-house")')
        page.wait_for_selector('#main .step:has-text("Ended: done")')
        page.screenshot(path=folder / "page-fork.png")
        fork = page.evaluate("location.hash").split("/")[2]
        assert story(service, fork)[0]["data"]["by"] == f"token:{OPERATOR}"
        page.go_back()
        page.wait_for_selector('#main h1:has-text("summer-house")')
        page.wait_for_selector('[data-sequence="2"] a.kin:has-text("archivist")')
    sizes: dict[str, dict[str, Any]] = {
        "wide": {},
        "tablet": {"viewport": {"width": 1024, "height": 800}},
        "phone": {"viewport": {"width": 390, "height": 844}},
        "zoomed": {"viewport": {"width": 720, "height": 450}, "device_scale_factor": 2},
    }
    shown = {("wide", "light"): "page-light", ("tablet", "light"): "page-tablet", ("phone", "dark"): "page-phone"}
    for scheme, size in itertools.product(("light", "dark"), sizes):
        with opened(chrome, service, color_scheme=scheme, **sizes[size]) as page:
            show(page, entity)
            page.wait_for_selector('#main .step:has-text("Episode: done")')
            if name := shown.get((size, scheme)):
                page.screenshot(path=folder / f"{name}.png")
            assert clipped(page) == []
            for tab in ("loom", "needs", "actors", "main"):
                if page.locator(f'#tabs [data-tab="{tab}"]:visible').count():
                    page.click(f'#tabs [data-tab="{tab}"]')
                    page.wait_for_selector(f"#{tab}:visible")
                    assert page.locator(".pane:visible").count() == (1 if size in ("phone", "zoomed") else 2)
                assert clipped(page) == []
            for key in ("?", "n"):
                page.keyboard.press(key)
                page.wait_for_selector("#dialog:visible")
                assert clipped(page) == []
                page.keyboard.press("Escape")
                page.wait_for_selector("#dialog", state="hidden")


def clipped(page: Any) -> list[str]:
    """Return the controls and headings that reach beyond the sides of the window or of what cuts them off."""
    found: list[str] = page.evaluate(
        """() => { const cut = (one) => {
            const r = one.getBoundingClientRect(); let left = 0, right = innerWidth;
            for (let up = one.parentElement; up; up = up.parentElement) {
              if (getComputedStyle(up).overflowX === "visible") continue;
              const s = up.getBoundingClientRect(); left = Math.max(left, s.left); right = Math.min(right, s.right); }
            return r.width && (r.left < left - 1 || r.right > right + 1); };
          const isCutText = (one) => one.matches("button, h1, h2, dt") && one.scrollWidth > one.clientWidth + 1;
          return [...document.querySelectorAll("button, h1, h2, input, select, textarea, a, dt, #bar *")]
            .filter(one => one.offsetParent && !one.closest(".skip, .unseen"))
            .filter(one => cut(one) || isCutText(one)).map(one => one.outerHTML.slice(0, 90))
            .concat(document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : []); }"""
    )
    return found


# What people do


class Mouse:
    """A person who clicks, and types only what is written."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def select(self, entity: str) -> None:
        self.page.click(f'#loom [data-id="{entity}"]')

    def approve(self) -> None:
        self.page.click('#needs .card.ask button:has-text("Approve")')

    def deny(self, note: str) -> None:
        self.page.click('#needs .card.ask input[aria-label="Note"]')
        self.page.keyboard.type(note)
        self.page.click('#needs .card.ask button:has-text("Deny")')

    def steer(self, text: str) -> None:
        self.page.click("#main .composer textarea")
        self.page.keyboard.type(text)
        self.page.click('#main .composer button:has-text("Steer")')

    def interrupt(self, why: str) -> None:
        self.page.click('#main button:has-text("Interrupt")')
        self.page.click("#dialog input[type=text]")
        self.page.keyboard.type(why)
        self.page.click('#dialog input[type="checkbox"]')
        self.page.click('#dialog button:has-text("Interrupt")')

    def fork(self, intent: str) -> None:
        self.page.click('[data-sequence="1"] button:has-text("Fork")')
        self.page.click("#dialog textarea")
        self.page.keyboard.type(intent)
        self.page.click('#dialog button:has-text("Fork")')

    def reward(self, value: str) -> None:
        self.page.click('[data-sequence="1"] button:has-text("Reward")')
        self.page.click("#dialog input")
        self.page.keyboard.type(value)
        self.page.click('#dialog button:has-text("Reward")')

    def resume(self, entity: str) -> None:
        self.page.click(f'#needs [data-entity="{entity}"] button:has-text("Resume")')

    def abandon(self, entity: str) -> None:
        self.page.click(f'#needs [data-entity="{entity}"] button:has-text("Abandon")')
        self.page.click('#dialog button:has-text("Abandon")')

    def filter(self, text: str) -> None:
        self.page.click("#loom input")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.type(text)

    def all_shown(self, word: str) -> None:
        self.page.click(f'#needs .many button:has-text("{word} all")')
        self.page.click(f'#dialog button:has-text("{word}")')
        self.page.wait_for_selector("#dialog", state="hidden")

    def stop(self, reason: str) -> None:
        self.page.click('#main button:has-text("Stop")')
        self.page.click("#dialog input")
        self.page.keyboard.type(reason)
        self.page.click('#dialog button:has-text("Stop")')


class Keys:
    """A person who has a keyboard only."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def write(self, text: str) -> None:
        self.page.keyboard.type(text)

    def until_focus(self, selector: str) -> None:
        until(lambda: self.page.evaluate(f"document.activeElement?.matches({selector!r})"))

    def select(self, entity: str) -> None:
        self.press("Escape", "/")
        self.until_focus("#loom input")
        self.press("Control+a")
        self.write(entity)
        self.press("Enter", "End", "Enter")
        until(lambda: entity in self.page.url)
        self.press("/", "Control+a", "Delete", "Escape")

    def approve(self) -> None:
        self.press("a")
        self.until_focus("#needs .card.ask")
        self.press("a")

    def deny(self, note: str) -> None:
        self.press("d")
        self.until_focus("#needs .card.ask")
        self.press("d")
        self.until_focus("#needs input")
        self.write(note)
        self.press("Enter")

    def steer(self, text: str) -> None:
        self.press("s")
        self.until_focus("#main .composer textarea")
        self.write(text)
        self.press("Enter", "Escape")

    def interrupt(self, why: str) -> None:
        self.press("i")
        self.until_focus("#dialog input[type=text]")
        self.write(why)
        self.press("Tab", "Space", "Enter")

    def fork(self, intent: str) -> None:
        self.press("j", "f")
        self.until_focus("#dialog textarea")
        self.write(intent)
        self.press("Enter")

    def reward(self, value: str) -> None:
        self.press("j", "k", "k", "w")
        self.until_focus("#dialog input")
        self.write(value)
        self.press("Enter")

    def to_card(self, entity: str) -> None:
        self.press("Escape", "r")
        self.until_focus(".card.broken")
        for _ in range(20):
            if self.page.evaluate("document.activeElement?.dataset.entity") == entity:
                return
            self.press("Tab")
        pytest.fail("Tab never reached the card")

    def resume(self, entity: str) -> None:
        self.to_card(entity)
        self.press("r")

    def abandon(self, entity: str) -> None:
        self.to_card(entity)
        self.press("x")
        self.until_focus("#dialog button")
        self.press("Shift+Tab", "Enter")

    def filter(self, text: str) -> None:
        self.press("/", "Control+a", "Delete")
        self.write(text)
        self.press("Escape")

    def all_shown(self, word: str) -> None:
        self.press({"Resume": "Shift+R", "Abandon": "Shift+X", "Approve": "Shift+A", "Deny": "Shift+D"}[word])
        self.until_focus("#dialog :is(input, button)")
        if word == "Abandon":  # what cannot be undone has the focus on "Cancel"
            self.press("Shift+Tab")
        self.press("Enter")
        self.page.wait_for_selector("#dialog", state="hidden")

    def stop(self, reason: str) -> None:
        self.press("x")
        self.until_focus("#dialog input")
        self.write(reason)
        self.press("Enter")


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


def refused(service: Live) -> str:
    """Cast an entity whose one call is denied, which is an error that it observes."""
    payer = cast(service, "echo", "pay 9")
    (request,) = until(lambda: service.call(service.on.get, f"requests?entity={payer}")["items"])
    service.call(service.on.post, f"requests/{request['id']}", {"decision": "deny"}, 200)
    return payer


class Dictated:
    """A crystal that streams what the test says, word by word, and answers when the test lets it."""

    name = "test:dictated"

    def __init__(self) -> None:
        self.emit: Any = None
        self.done: anyio.Event = anyio.Event()

    async def invoke(self, messages: Any, tools: Any, tool_choice: Any, options: Any = None, emit: Any = None) -> Any:
        self.emit = emit
        emit(ResponseStart("stream", "test"))
        emit(ItemStart("0", "message"))
        await self.done.wait()
        emit(ItemDone("0", FinalMessage("one two three", "agent")))
        emit(ResponseDone("completed"))
        return {"content": "one two three"}


@pytest.mark.rule("PAGE-01")
def test_an_answer_grows_on_the_page_as_it_streams_until_its_turn_is_committed(chrome: Any) -> None:
    crystal = Dictated()
    parent = Cantrip(
        scripted([call("", ("call_agent", {"intent": "read", "crystal": "reader"})), {"content": "It is read."}]),
        circle=Circle(["done", "call_agent"], [max_turns(3)]),
        name="parent",
        crystals={"reader": crystal},
    )
    with live([parent]) as service:
        entity = cast(service, "parent", "have it read")
        with opened(chrome, url=service.link()) as page:
            show(page, entity)
            # the child is in the tree below its parent while both run
            child = page.locator('#loom .row[aria-level="2"]')
            child.wait_for()
            page.wait_for_selector(f'#loom [data-id="{entity}"] .under:has-text("running")')
            page.wait_for_selector('#loom .row[aria-level="2"] .under:has-text("running")')
            child.click()
            until(lambda: crystal.emit)
            said = ""
            for word in ("one ", "two ", "three "):  # the end of a text waits for white space: it may be half a secret
                said += word
                service.do(lambda word=word: crystal.emit(ItemDelta("0", word)))
                page.wait_for_selector(f'#main .live .text:text-is("{said.strip()}")')
                page.wait_for_selector(f'#loom .row[aria-level="2"] .under:has-text("running · {said.strip()}")')
                assert page.locator("#main article.turn").count() == 0
            service.do(crystal.done.set)
            page.wait_for_selector('#main article.turn:has-text("one two three")')
            page.wait_for_selector('#main .step:has-text("Ended: done")')
            assert page.locator("#main .live:visible").count() == 0
            page.wait_for_selector('#loom .row[aria-level="2"] .under:has-text("done")')


@pytest.mark.rule("PAGE-01")
def test_entities_are_filtered_by_gate_errors_state_and_name(chrome: Any, service: Live) -> None:
    well = cast(service, "archivist", "Read the diary of Lovelace")
    badly = refused(service)
    with opened(chrome, service) as page:

        def shown() -> set[str]:
            return {
                str(one) for one in page.evaluate("[...document.querySelectorAll('#loom .row')].map(r => r.dataset.id)")
            }

        page.wait_for_selector(f'#loom [data-id="{well}"]')
        page.select_option('#loom select[aria-label="Entities that called a gate"]', "search")
        until(lambda: well in shown() and badly not in shown())
        page.select_option('#loom select[aria-label="Entities that called a gate"]', "pay")
        until(lambda: badly in shown() and well not in shown())
        page.select_option('#loom select[aria-label="Entities that called a gate"]', "")
        page.click('#loom .chip:has-text("Errors")')
        until(lambda: badly in shown() and well not in shown())
        page.click('#loom .chip:has-text("All")')
        page.fill("#loom input", "lovelace")
        until(lambda: shown() == {well})
        # a call that comes while the page looks counts, too
        page.fill("#loom input", "")
        late = refused(service)
        page.click('#loom .chip:has-text("Errors")')
        until(lambda: late in shown())


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


@pytest.mark.rule("PAGE-03")
def test_a_crash_and_its_restart_show_within_a_second_with_the_report(
    chrome: Any, observed: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = observed
    whole, raised = GatesActor.handle_call, [0.0]

    async def crash(self: Any, message: Any, caller: Any) -> Any:
        if "nap" in str(message) and not raised[0]:
            raised[0] = time.time()
            raise RuntimeError("the bed broke")
        return await whole(self, message, caller)

    monkeypatch.setattr(GatesActor, "handle_call", crash)
    entity, took = cast(service, "echo", "hello", "napper"), []
    with opened(chrome, service) as page:
        show(page, entity)
        page.wait_for_selector(f'#actors [data-id$="{entity}/circle"]', state="attached")
        # the moment at which the page has both, by the page's clock, which is the machine's
        page.evaluate(
            """id => { window.seen = []; new MutationObserver(() => {
              const crashes = [...document.querySelectorAll("#needs .crashes li")];
              const badge = document.querySelector(`#actors [data-id$="${id}/circle"] .badge.warn`);
              const told = crashes.filter(one => one.textContent.includes("the bed broke")).length;
              if (told > seen.length && parseInt(badge?.textContent) > seen.length) seen.push(Date.now());
            }).observe(document.body, { subtree: true, childList: true, characterData: true }); }""",
            entity,
        )
        for _ in range(3):  # on a busy machine one of them, not all, must be quick
            raised[0] = 0.0
            service.call(service.on.post, f"entities/{entity}/send", {"intent": "nap 0.01"})
            until(lambda: page.evaluate("window.seen.length") == len(took) + 1)
            seen = page.evaluate("window.seen.at(-1)")
            took.append(seen / 1000 - raised[0])
            if took[-1] < 1:
                break
        page.click("#needs .log > summary")
        crash_of_circle = page.locator('#needs .crashes li:has(summary b:text-is("circle"))').first
        crash_of_circle.locator("summary").click()
        report = crash_of_circle.inner_text()
        assert "RuntimeError: the bed broke" in report
        assert "in crash" in report
        assert str(ROOT) not in report
        # the actor in the tree opens it, too: the state, the reason, what its supervisor does, and its last events
        page.click(f'#actors [data-id$="{entity}/circle"]')
        page.wait_for_selector('#actors .detail .report:has-text("RuntimeError: the bed broke")')
        told = " ".join(page.inner_text("#actors .detail").split())
        assert f"restarts {len(took)} last exit crash: RuntimeError: the bed broke" in told
        assert "Last crash" in told
        assert "restart: permanent" in told
        assert "Last events of the actor" in told
    assert min(took) < 1, took
    # a page that opens later has it, too
    with opened(chrome, service) as page:
        page.wait_for_selector('#needs .crashes:has-text("the bed broke")', state="attached")


def test_the_crystals_of_the_supervision_tree_have_numbers(chrome: Any) -> None:
    second = Cantrip(scripted([{"content": "hello"}]), circle=Circle(["done"], [max_turns(3)]), name="second")
    with live([ECHO, second]) as service:
        cast(service, "echo", "hello")
        cast(service, "second", "hello")
        with opened(chrome, url=service.link()) as page:
            names = "[...document.querySelectorAll('#actors .row .name')].map(one => one.textContent)"
            until(lambda: {"crystal 1", "crystal 2"} <= set(page.evaluate(names)))


@pytest.mark.rule("PAGE-03", "PAGE-10")
def test_the_page_shows_the_loom_the_readers_and_the_counters_of_the_service(chrome: Any, observed: Live) -> None:
    cast(observed, "echo", "hello")
    with opened(chrome, observed) as page:
        page.click('#actors button:has-text("Service")')
        page.wait_for_selector('#actors .detail b:has-text("Service")')
        told = " ".join(page.inner_text("#actors .detail").split())
        assert "loom memory: durability none backlog 0 size not on this disk open requests 0" in told
        assert "http 1" in told
        assert "cantrip.turns echo 1" in told
        page.click('#actors .detail button[aria-label="Close"]')
        assert page.locator("#actors .detail:visible").count() == 0


class Down:
    """A provider that is down."""

    name = "anthropic:claude-sonnet-4-5"

    async def invoke(self, _: object) -> object:
        raise ProviderError("overloaded", status=503)


@pytest.mark.rule("PAGE-03")
def test_an_open_breaker_and_an_entity_near_its_limits_need_a_person(chrome: Any, tmp_path: Path) -> None:
    """`PICTURES=1` writes the picture of docs/alarms.md."""
    down = limited(Down(), breaker=Breaker(failures=1, open_for=600))
    wards = [max_turns(10), max_tokens(100_000), timeout(3600)]
    circle = Circle(["done", ask_first(publish), search], wards)
    writer = Cantrip(down, circle=Circle(["done"], [max_turns(5)]), name="writer", retry=Retry(max_retries=0))

    async def forever(context: Any) -> dict[str, Any]:
        return {
            **call("I look once more.", ("search", {"query": "1911"})),
            "delay": 60 if sum(one.role == "assistant" for one in context) == 9 else 0,
        }

    busy = Cantrip(scripted(forever), circle=circle, name="searcher")
    telemetry = Telemetry(otel=False)
    with live([writer, busy], options={"telemetry": telemetry}, telemetry=telemetry) as service:
        entity = cast(service, "searcher", "Find every letter of 1911", "searcher-1")
        cast(service, "writer", "Write the report")
        with opened(chrome, url=service.link(), viewport={"width": 1280, "height": 640}) as page:
            show(page, entity)
            page.wait_for_selector('#needs [aria-label="Near a limit"]:has-text("9 of 10 turns")')
            paused = page.locator('#needs [aria-label="Crystal that pauses"]')
            paused.wait_for()
            assert "breaker open" in paused.inner_text()
            assert "anthropic:claude-sonnet-4-5" in paused.inner_text()
            page.screenshot(path=folder_for(tmp_path) / "alarm-page.png")
        service.call(service.on.ask, "DELETE", f"entities/{entity}", 204)


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
            reading = ("Dark or light", "Keys", "Show earlier turns", "Show all")
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


# What hostile text cannot do

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><iframe src=javascript:alert(1)>',
    "[click](javascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    'https://evil.example/"onmouseover=alert(1)//',
    "`<b onclick=alert(1)>`",
    "```\n</pre><script>alert(1)</script>\n```",
    "**<details open ontoggle=alert(1)>**",
    "<base href=//evil.example>",
    "<link rel=stylesheet href=//evil.example/a.css>",
    "<style>@import '//evil.example'</style>",
    "<form action=//evil.example><input type=submit>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "\u202egnp.exe",
    "\u001b[31mred\u001b]8;;http://evil.example\u0007x",
    "a\u200bb\u2066c",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<object data=//evil.example>",
    "<embed src=//evil.example>",
    "<video><source onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<template><script>alert(1)</script></template>",
    "]]><script>alert(1)</script>",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "javascript:alert(1)",
    "x" * 5000 + "<script>alert(1)</script>",
]


@pytest.mark.rule("PAGE-05")
def test_hostile_content_is_shown_as_text(chrome: Any) -> None:
    @gate
    async def look(at: str) -> str:
        """Look."""
        if at.startswith("<i"):
            raise ValueError(at)
        return at

    def policy(context: Any) -> dict[str, Any]:
        if context[-1].role == "user":
            return {
                "content": "\n\n".join(HOSTILE),
                "thinking": HOSTILE[0],
                "tool_calls": [{"gate": "look", "args": {"at": one}} for one in HOSTILE]
                + [{"gate": "<img src=x onerror=alert(1)>", "args": {"<b>": "<i>"}}],
            }
        return {"content": HOSTILE[1]}

    evil = Cantrip(scripted(policy), circle=Circle(["done", look], [max_turns(5)]), name="<img src=x onerror=alert(1)>")
    with live([evil]) as service:
        entity = cast(service, str(evil.name), "\n".join(HOSTILE), name="<script>alert(1)</script>\u202e")
        with opened(chrome, url=service.link()) as page:
            show(page, entity)
            page.wait_for_selector('#main .step:has-text("Episode: done")')
            page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true })")
            while page.locator("#main button.more:visible").count():
                page.locator("#main button.more:visible").first.click()
            text = page.inner_text("#main")
            assert all(one.splitlines()[0].strip("`*") in text for one in HOSTILE[:17] if one[0] in "<$]")
            assert "U+202E" in text
            assert "U+001B" in text
            foreign = page.locator(
                "#main :is(script, iframe, object, embed, base, link, style, form, math, video, img)"
            )
            assert foreign.count() == 0
            # the names of recipes and entities in dialogs
            page.keyboard.press("n")
            page.wait_for_selector("#dialog select")
            assert page.inner_text("#dialog option") == evil.name
            page.keyboard.press("Escape")
            page.wait_for_selector("#dialog", state="hidden")
            page.keyboard.press("x")
            page.wait_for_selector('#dialog h2:has-text("Stop <script>alert(1)</script>")')
            page.keyboard.press("Escape")
            links = page.evaluate("() => [...document.links].map(one => [one.protocol, one.rel, one.target])")
            assert {protocol for protocol, _, _ in links} <= {"http:", "https:"}
            assert page.evaluate(
                "() => [...document.querySelectorAll('*')]"
                ".every(one => [...one.attributes].every(found => !found.name.startsWith('on')))"
            )


@pytest.mark.rule("PAGE-05")
def test_hostile_events_are_shown_as_text_in_every_pane(chrome: Any, service: Live) -> None:
    with opened(chrome, service, is_staged=True) as page:
        page.evaluate("location.hash = '#/e/e1'")
        page.wait_for_selector("#main header.entity")
        page.evaluate(
            """corpus => corpus.forEach((text, n) => {
              const at = new Date(2e12 + n).toISOString(), id = "e1", send = (...event) => stage.send(...event);
              const images = [{ url: text, filename: text, media_type: text, size: 1 }];
              const used = { tokens_prompt: 1, tokens_completion: 1, duration_ms: 1 };
              send("entity", { id: `h${n}`, name: text, cantrip: text, intent: text, crystal: text, parent: "e1",
                parent_turn: `t${n - 1}`, began: at, lasting: true });
              send("steer", { id, text, by: text, at }, `e1:${n * 10 + 1}`);
              send("turn", { id: `t${n}`, entity_id: id, sequence: n + 1, content: text, parent_id: null, utterance: "",
                gate_calls: [{ gate: text, args: { [text]: text }, result: text, is_error: n % 2 > 0, images }],
                thinking: text, code: n % 3 ? null : text, reward: text,
                images, truncated: false, metadata: used }, `e1:${n * 10 + 2}`);
              send("intent", { id, intent: text, by: text, at }, `e1:${n * 10 + 6}`);
              send("fold", { entity: id, marker: text, first: text, last: text, at }, `e1:${n * 10 + 7}`);
              send("reward", { entity: id, turn_id: `t${n}`, reward: text, by: text, at }, `e1:${n * 10 + 8}`);
              const usage = { total_tokens: 1, cost: 0 };
              send("episode", { id, state: text, error: n % 2 ? text : null, summary: text, ward: text, result: text,
                by: text, usage, at }, `e1:${n * 10 + 9}`);
              const request = { entity: id, gate: text, args: { [text]: text }, text, schema: null, asked_at: at };
              send("request", { ...request, id: `a${n}`, kind: "approval" }, `e1:${n * 10 + 3}`);
              send("request", { ...request, id: `q${n}`, kind: "question" }, `e1:${n * 10 + 4}`);
              const decision = { id: "other", entity: id, decision: text, by: text, note: text, at };
              send("decision", decision, `e1:${n * 10 + 5}`);
              for (const type of ["message", "thinking", "tool_call"]) send("upsert", { payload: { type, sessionId: id,
                turnId: "now", itemId: `${type}${n}`, status: "update", content: text, toolName: text,
                toolArguments: { [text]: text }, toolOutput: text } });
              const row = { path: `root/h${n}`, kind: text, state: text, since: 1, mailbox: 1, in_hand: 1,
                restarts: 1 };
              const crash = { at: 1, path: `root/${text}`, what: text, reason: text, report: text };
              send("actor", { rows: [{ ...row, exit: text }], gone: [], crashes: [crash],
                crystals: [{ name: text, breaker: text, waiting: 1, until: 1 }] });
            })""",
            HOSTILE,
        )
        page.wait_for_selector(f'[data-sequence="{len(HOSTILE)}"]')
        page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true })")
        page.wait_for_timeout(100)  # whatever was made has had time to load or run
        shown = page.inner_text("#panes")
        assert shown.count("<script>alert(1)</script>") > 10
        foreign = page.locator("#panes :is(script, iframe, object, embed, base, link, style, math, video, img)")
        assert foreign.count() == 0
        links = page.evaluate("() => [...document.links].map(one => one.protocol)")
        assert set(links) <= {"http:", "https:"}
        assert page.evaluate(
            "() => [...document.querySelectorAll('*')]"
            ".every(one => [...one.attributes].every(found => !found.name.startsWith('on')))"
        )


@pytest.mark.rule("PAGE-05", "PAGE-13")
def test_the_policy_allows_own_files_only_and_the_wheel_has_them_all() -> None:
    policy = PAGE_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    texts = assets()
    for path, text in texts.items():
        assert not any(word in text for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval("))
        if path.endswith(".js"):
            for name in [line.split('"./')[1].split('"')[0] for line in text.splitlines() if line.startswith("import")]:
                assert f"{path.rpartition('/')[0]}/{name}" in texts


@pytest.mark.rule("PAGE-13")
def test_the_page_works_from_an_installed_wheel(chrome: Any, tmp_path: Path) -> None:
    built, there = tmp_path / "built", tmp_path / "installed"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    page_files = {f"cantrip_actors/http/page/{path.rpartition('/')[2] or 'page.html'}" for path in assets()}
    shared = {"cantrip_actors/http/page/shared.js": "cantrip_actors/loom/export/page/shared.js"}
    assert {shared.get(one, one) for one in page_files} <= packed
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(there), str(wheel)], check=True, capture_output=True)
    recipe = tmp_path / "hello.yaml"
    recipe.write_text(
        "name: hello\ncrystal:\n  scripted: [Hello.]\ncircle:\n  gates: [done]\n  wards: [max_turns: 5]\n"
    )
    with process(tmp_path, "asyncio", serves=str(recipe), path=there) as one:
        used = Path(f"/proc/{one.child.pid}/environ")
        assert not used.exists() or f"PYTHONPATH={there}".encode() in used.read_bytes()
        with opened(chrome, url=f"{one.url}/#token={one.token}") as page:
            page.keyboard.press("n")
            page.fill("#dialog textarea", "Say hello")
            page.keyboard.press("Enter")
            page.wait_for_selector('#main article:has-text("Hello.")')
            page.wait_for_selector("#actors .row")


# Much, and for long


@pytest.mark.rule("PAGE-06")
def test_two_thousand_entities_and_a_thousand_updates_a_second_stay_smooth(chrome: Any, service: Live) -> None:
    with opened(chrome, service, is_staged=True) as page:
        page.evaluate("location.hash = '#/e/e1'")
        page.wait_for_selector("#main header.entity")
        found, sent = [], 0
        for _ in range(6):  # the machine may be busy with something else for a while
            measured = page.evaluate("([count, from]) => play.run(count, 2, from)", [ENTITIES, sent])
            sent += measured["sent"]
            found.append(measured["p95"])
            if found[-1] < 50:
                break
        rows = page.evaluate("document.querySelectorAll('.row').length")
        turns = page.evaluate(
            "Number(document.querySelector('#totals').innerText.match(/turns.min\\s+([\\d,.k]+)/)[1].replace(',', ''))"
        )
    assert min(found) < 50, found
    assert rows < 120
    assert turns > 150


def heap_after(page: Any, session: Any, updates: int = 0, begin: int = 0) -> int:
    """Return the bytes that the page's heap has after so many updates, as fast as they go."""
    for first in range(begin, begin + updates, 500):
        page.evaluate(
            """([from, count]) => { for (let n = from; n < from + 500; n++) play.update(n, count);
              return new Promise(requestAnimationFrame); }""",
            [first, ENTITIES],
        )
    session.send("HeapProfiler.collectGarbage")
    used: int = session.send("Runtime.getHeapUsage")["usedSize"]
    return used


@pytest.mark.rule("PAGE-06")
def test_the_heap_of_a_page_that_stays_open_does_not_grow(chrome: Any, service: Live) -> None:
    with opened(chrome, service, is_staged=True) as page:
        session = page.context.new_cdp_session(page)
        page.evaluate("location.hash = '#/e/e1'")
        before = heap_after(page, session, 10_000)
        after = heap_after(page, session, 10_000, 10_000)
    assert after < before * 1.15 + 500_000, f"{before:,} bytes, then {after:,}"


MINUTES = 5
FILLED = 210_000
"""Updates after which the page remembers as many turns as it ever does."""


@pytest.mark.rule("PAGE-06")
@pytest.mark.skipif(not EXHAUSTIVE, reason="takes five minutes: EXHAUSTIVE=1")
def test_five_minutes_of_a_thousand_updates_a_second_stay_smooth_and_the_heap_stable(
    chrome: Any, service: Live, record_property: Callable[[str, object], None]
) -> None:
    with opened(chrome, service, is_staged=True) as page:
        session = page.context.new_cdp_session(page)
        page.evaluate("location.hash = '#/e/e1'")
        heaps, frames, sent = [heap_after(page, session, FILLED)], [], FILLED
        for _ in range(MINUTES):
            measured = page.evaluate("([count, from]) => play.run(count, 60, from)", [ENTITIES, sent])
            sent += measured["sent"]
            frames.append(measured["p95"])
            heaps.append(heap_after(page, session))
    record_property("milliseconds of frames, 95th percentile of each minute", frames)
    record_property("bytes of the heap, before and after each minute", heaps)
    assert sent - FILLED == MINUTES * 60_000
    assert sorted(frames)[len(frames) // 2] < 50, frames
    assert max(heaps[1:]) < heaps[0] * 1.15 + 500_000, heaps


@pytest.mark.rule("PAGE-12")
def test_without_a_page_there_is_no_sampling_and_no_subscription(chrome: Any, service: Live) -> None:
    tree = service.on.runtime._tree

    def counted() -> tuple[int, int, Any]:
        return len(service.on.service._feeds), len(tree.system.sinks), service.on.service._supervision

    until(lambda: service.do(counted) == (0, 0, None))
    with opened(chrome, service) as page:
        page.wait_for_selector("#actors .row")
        feeds, sinks, supervision = service.do(counted)
        assert (feeds, sinks, supervision[1]) == (1, 1, 1)
    until(lambda: service.do(counted) == (0, 0, None))


@pytest.mark.rule("PAGE-07")
def test_an_entity_of_ten_thousand_turns_opens_in_a_second_at_its_newest(chrome: Any) -> None:
    look = {"content": "again", "tool_calls": [{"gate": "search", "args": {"query": "x"}}]}
    says = scripted([*[look] * 9_999, {"content": "at last"}], record=False)
    many = Cantrip(says, circle=Circle(["done", search], [max_turns(10_000)]), name="many")

    async def go_on(runtime: Runtime) -> str:
        return (await runtime.cast(many, "go on")).entity_id

    with live([many, ECHO], first=go_on) as service:
        entity = service.on.first
        other = cast(service, "echo", "hello")
        took = []
        with opened(chrome, url=service.link()) as page:
            page.wait_for_selector(f'#loom [data-id="{entity}"]')
            for _ in range(6):  # on a busy machine one of them, not all, must be quick
                show(page, other)
                took.append(
                    page.evaluate(
                        """id => new Promise((done) => {
                          const began = performance.now();
                          new MutationObserver((_, self) => {
                            if (!document.querySelector('[data-sequence="10000"]')) return;
                            self.disconnect();
                            requestAnimationFrame(() => done(performance.now() - began));
                          }).observe(document.getElementById("main"), { subtree: true, childList: true });
                          location.hash = `#/e/${id}`;
                        })""",
                        entity,
                    )
                )
                if took[-1] < 1000:
                    break
            assert min(took) < 1000, took
            assert page.locator("article.turn").count() <= 100
            page.click('#main button:has-text("Show earlier")')
            page.wait_for_selector('[data-sequence="9850"]')


@pytest.mark.rule("PAGE-04")
def test_a_page_resumes_when_its_server_was_killed(chrome: Any, tmp_path: Path) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    from cantrip_actors.http import add_token

    secret = add_token(tmp_path / "tokens.toml", OPERATOR, ["admin"])
    more = ("--tokens", str(tmp_path / "tokens.toml"), "--bind", f"127.0.0.1:{port}")
    with process(tmp_path, "asyncio", *more) as one, opened(chrome, url=f"{one.url}/#token={secret}") as page:
        page.evaluate(
            """() => fetch("/api/v1/entities", {method: "POST", headers: {"content-type": "application/json"},
                  body: '{"cantrip": "echo", "intent": "turns 12 0.1", "name": "long"}'}).then(a => a.json())
                  .then(one => { location.hash = `#/e/${one.entity_id}` })"""
        )
        page.wait_for_selector('[data-sequence="3"]')
        one.kill()
        page.wait_for_selector("#lost:visible")
        assert re.search(r"lost at \d\d:\d\d:\d\d\.", page.inner_text("#lost"))
        assert page.locator("article.turn").count() >= 3
        with process(tmp_path, "asyncio", *more):
            page.wait_for_selector("#lost", state="hidden")
            page.wait_for_selector('#main .step:has-text("Episode: done")')
            shown = page.evaluate("() => [...document.querySelectorAll('article.turn')].map(n => n.dataset.sequence)")
            assert shown == [str(n) for n in range(1, len(shown) + 1)]
            assert len(shown) == 13
        page.faults.clear()


# For everybody


@pytest.mark.rule("PAGE-09")
def test_controls_have_names_trees_have_roles_and_focus_stays(chrome: Any, service: Live) -> None:
    entity = cast(service, "archivist", "Read the letters of Ada")
    payer = cast(service, "echo", "pay 5")
    with opened(chrome, service) as page:
        show(page, entity)
        page.wait_for_selector("#needs .card.ask")
        assert nameless(page) == []
        seen = page.locator("#loom").aria_snapshot()
        assert 'tree "Entities"' in seen
        assert "[selected]" in seen
        assert 'tree "Supervision tree"' in page.locator("#actors").aria_snapshot()
        assert "[expanded]" in page.locator("#actors").aria_snapshot()
        # the focus survives updates, and arrows move it
        page.focus('#loom [role="treeitem"][tabindex="0"]')
        page.keyboard.press("Home")
        first = page.evaluate("document.activeElement.dataset.id")
        page.keyboard.press("ArrowDown")
        second = page.evaluate("document.activeElement.dataset.id")
        assert first != second
        cast(service, "echo", "hello")
        until(lambda: page.locator("#loom .row").count() >= 3)
        assert page.evaluate("document.activeElement.dataset.id") == second
        assert page.locator('#loom [tabindex="0"]').count() == 1
        places = []
        for _ in range(4):
            page.keyboard.press("F6")
            places.append(page.evaluate("document.activeElement.closest('.pane').id"))
        assert places == ["actors", "main", "needs", "loom"]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert faint(page) == []
        show(page, payer)
        for key in ("n", "x", "?"):
            page.keyboard.press(key)
            page.wait_for_selector("#dialog:visible")
            assert nameless(page) == []
            assert faint(page) == []
            assert page.evaluate("document.activeElement.closest('dialog') !== null")
            page.keyboard.press("Escape")
            page.wait_for_selector("#dialog", state="hidden")
    service.call(service.on.ask, "DELETE", f"entities/{payer}", 204)


def nameless(page: Any) -> list[str]:
    """Return the controls in sight that a screen reader has no name for."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll(":is(button, input, textarea, select, summary, a[href], .row)")]
          .filter(one => one.checkVisibility() && !(one.tagName !== "SELECT" && one.textContent.trim()))
          .filter(one => !(one.getAttribute("aria-label") ?? one.closest("label")?.textContent ?? "").trim())
          .map(one => one.outerHTML.slice(0, 80))"""
    )
    return found


@pytest.mark.rule("PAGE-09")
def test_the_rows_of_the_trees_say_their_level_and_whether_they_are_open_and_selected(
    chrome: Any, service: Live
) -> None:
    parent = cast(service, "archivist", "Find the summer")

    def below() -> list[str]:
        items = service.call(service.on.get, "entities?limit=200")["items"]
        return [one["id"] for one in items if one["parent"] == parent]

    children = until(lambda: len(below()) == 2 and below())
    with opened(chrome, service) as page:
        show(page, parent)
        row = page.locator(f'#loom [data-id="{parent}"]')
        places = [
            page.locator(f'#loom [data-id="{one}"]').evaluate(
                "one => ['level', 'posinset', 'setsize', 'expanded'].map(name => one.getAttribute(`aria-${name}`))"
            )
            for one in children
        ]
        assert sorted(places) == [["2", "1", "2", None], ["2", "2", "2", None]]
        row.focus()
        for key, is_open in (("ArrowLeft", "false"), ("ArrowRight", "true")):
            page.keyboard.press(key)
            assert row.get_attribute("aria-expanded") == is_open
            assert page.locator(f'#loom [data-id="{children[0]}"]').count() == (is_open == "true")
        # Enter selects the row with the focus, in both trees, and no other
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        chosen = page.evaluate("document.activeElement.dataset.id")
        assert chosen in children
        selected = "[...document.querySelectorAll('#loom [aria-selected=true]')].map(one => one.dataset.id)"
        until(lambda: page.evaluate(selected) == [chosen])
        page.locator(f'#actors [data-id$="/{parent}"]').click()
        until(lambda: page.evaluate(selected) == [parent])
        assert page.locator('#actors [aria-selected="true"]').count() == 1
    service.call(service.on.ask, "DELETE", f"entities/{parent}", 204)


def test_rows_in_sight_stay_where_they_are_when_others_come_above(chrome: Any, service: Live) -> None:
    with opened(chrome, service, is_staged=True) as page:
        top_row = """() => { const box = document.querySelector("#loom .tree").getBoundingClientRect();
            const row = document.elementFromPoint(box.left + 60, box.top + 100)?.closest(".row");
            return row && [row.dataset.id, Math.round(row.getBoundingClientRect().top)]; }"""
        page.evaluate("document.querySelector('#loom .tree').scrollTop = 2000")
        before = until(lambda: page.evaluate(top_row))
        count = page.inner_text("#loom .count")
        page.evaluate("() => { for (let n = 0; n < 30; n++) play.add(`new${n}`, 2e12 + n); }")
        until(lambda: page.inner_text("#loom .count") != count)
        assert page.evaluate(top_row) == before
        page.fill("#loom input", "new")  # what a filter shows begins at its first row
        until(lambda: page.inner_text("#loom .count").startswith("30 of"))
        assert page.evaluate("document.querySelector('#loom .tree').scrollTop") == 0


def test_the_buttons_of_a_request_stay_where_they_are_when_another_comes(chrome: Any, service: Live) -> None:
    with opened(chrome, service, is_staged=True) as page:
        ask = """n => stage.send("request", { id: `r${n}`, entity: `e${n}`, kind: "approval", gate: "pay", args: { n },
            text: "", schema: null, asked_at: new Date(2e12 + n).toISOString() }, `e${n}:1`)"""
        approve = page.locator('#needs [data-key="r1"] button:has-text("Approve")')
        page.evaluate(ask, 1)
        approve.wait_for()
        before = approve.bounding_box()
        page.evaluate(ask, 2)
        page.wait_for_selector('#needs [data-key="r2"]')
        page.wait_for_selector('#needs .many button:has-text("Approve all")')
        assert approve.bounding_box() == before


def test_numbered_lists_keep_their_numbers(chrome: Any) -> None:
    said = "- a dot\n3. three\n4. four\n\nand then\n\n5. five"
    teller = Cantrip(scripted([{"content": said}]), circle=Circle(["done"], [max_turns(3)]), name="teller")
    with live([teller]) as service:
        entity = cast(service, "teller", "tell")
        with opened(chrome, url=service.link()) as page:
            show(page, entity)
            page.wait_for_selector("article.turn ol")
            assert page.evaluate(
                "[...document.querySelectorAll('article.turn :is(ol, ul)')].map(one => [one.localName, one.start ?? 0,"
                " one.children.length, getComputedStyle(one).listStyleType])"
            ) == [["ul", 0, 1, "disc"], ["ol", 3, 2, "decimal"], ["ol", 5, 1, "decimal"]]


@pytest.mark.rule("PAGE-09")
@pytest.mark.parametrize(
    "place", ["#loom .row[tabindex='0']", "#actors .row[tabindex='0']", "#main .composer textarea"]
)
def test_the_focus_and_typed_text_survive_a_hundred_updates(chrome: Any, service: Live, place: str) -> None:
    with opened(chrome, service, is_staged=True) as page:
        page.evaluate("location.hash = '#/e/e7'")
        page.wait_for_selector("#main .composer textarea")
        page.focus(place)
        if "textarea" in place:
            page.keyboard.type("half a sent")
        same = page.evaluate(
            """async (count) => {
              const focused = document.activeElement;
              let kept = 0;
              for (let n = 0; n < 100; n++) {
                for (const at of [n * 20 + 1, n * 20 + 8, n * 20 + 9]) play.update(at, count);
                play.say("e7", "now", "i", `says ${n}`);
                play.add(`new${n}`, 2e12 + n);
                await new Promise(requestAnimationFrame);
                kept += document.activeElement === focused && focused.isConnected;
              }
              return kept;
            }""",
            ENTITIES,
        )
        assert same == 100
        if "textarea" in place:
            page.keyboard.type("ence")
            assert page.input_value(place) == "half a sentence"


def faint(page: Any) -> list[str]:
    """Return the texts whose contrast with what lies behind them is below 4.5:1."""
    found: list[str] = page.evaluate(
        """() => {
          const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          const over = (layers) => { canvas.fillStyle = "#fff"; canvas.fillRect(0, 0, 1, 1);
            for (const one of layers) { canvas.fillStyle = one; canvas.fillRect(0, 0, 1, 1); }
            return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
          const light = (rgb) => { const [r, g, b] = rgb.map(v => v / 255)
              .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b; };
          const weak = new Set();
          for (const one of document.querySelectorAll("body *")) {
            if (!one.offsetParent || one.closest(".unseen, .skip, svg")) continue;
            if (![...one.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
            const layers = []; let gradient = false;
            for (let up = one; up; up = up.parentElement) { const s = getComputedStyle(up);
              if (s.backgroundImage !== "none") gradient = true; layers.unshift(s.backgroundColor); }
            if (gradient) continue;
            const back = light(over(layers)), fore = light(over([...layers, getComputedStyle(one).color]));
            const ratio = (Math.max(back, fore) + .05) / (Math.min(back, fore) + .05);
            const told = `${one.tagName}.${one.className} ${ratio.toFixed(2)} ${one.textContent.slice(0, 20)}`;
            if (ratio < 4.5) weak.add(told);
          }
          return [...weak];
        }"""
    )
    return found


@pytest.mark.rule("PAGE-11")
@pytest.mark.parametrize("other_site", ["http://evil.localhost/", "http://127.0.0.1:1/"])  # the second gets the cookie
def test_a_form_of_another_origin_changes_nothing(chrome: Any, service: Live, other_site: str) -> None:
    before = service.do(lambda: len(service.on.runtime.loom.entities()))
    with opened(chrome, service) as page:
        assert page.evaluate("document.cookie") == ""
        other = page.context.new_page()
        other.route(f"{other_site}**", lambda route: route.fulfill(body=form(service.on.url), content_type="text/html"))
        with other.expect_response(lambda answer: "/api/v1/casts" in answer.url) as answered:
            other.goto(other_site)
        assert answered.value.status == 403
        assert answered.value.json()["type"].endswith("origin")
        other.close()
        page.faults.clear()
    assert service.do(lambda: len(service.on.runtime.loom.entities())) == before


def form(url: str) -> str:
    body = json.dumps({"cantrip": "echo", "intent": "owned", "x": "="})[:-3]
    return f"""<form method=post enctype=text/plain action="{url}/api/v1/casts"><input name='{body}' value='"}}'></form>
      <script>document.forms[0].submit()</script>"""


@pytest.mark.rule("PAGE-14")
def test_a_stuck_page_does_not_slow_another_and_then_catches_up(chrome: Any, service: Live) -> None:
    bob = cast(service, "echo", "turns 40 0.02", "bob-two-pages")
    with opened(chrome, service) as stuck, opened(chrome, service) as page:
        show(stuck, bob)
        show(page, bob)
        debugger = stuck.context.new_cdp_session(stuck)
        debugger.send("Debugger.enable")
        paused: list[Any] = []
        debugger.on("Debugger.paused", lambda where: paused.append(where))  # noqa: PLW0108  # playwright marks handlers
        debugger.send("Debugger.pause")
        until(lambda: page.wait_for_timeout(5) or paused)
        # while one page runs no code at all, the other shows the episode and the next one to their ends
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        service.call(service.on.post, f"entities/{bob}/send", {"intent": "hello"})
        page.wait_for_selector('#main article:has-text("you said: hello")')
        debugger.send("Debugger.resume")
        debugger.send("Debugger.disable")
        stuck.wait_for_selector('#main article:has-text("you said: hello")')
        shown = "() => [...document.querySelectorAll('article.turn')].map(one => one.dataset.sequence)"
        assert stuck.evaluate(shown) == page.evaluate(shown)


@pytest.mark.rule("PAGE-14")
def test_a_reader_that_reads_nothing_does_not_slow_a_page(chrome: Any, service: Live) -> None:
    slow = service.on.stream("events?kinds=actor,entity,turn,upsert,episode,end")
    with service.portal.wrap_async_context_manager(slow), opened(chrome, service) as page:
        entity = cast(service, "echo", "hello")
        show(page, entity)
        page.wait_for_selector('#main .step:has-text("Ended: done")')

"""What the page shows of entities and of the service. `PICTURES=1` writes the picture of docs/alarms.md."""

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Retry, ask_first, scripted
from cantrip_actors.crystals import Breaker, limited
from cantrip_actors.observe import Telemetry
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart, ResponseDone, ResponseStart
from cantrip_actors.wards import max_depth, max_tokens, max_turns, timeout
from tests.drawings import folder_for
from tests.http.browser import Live, live
from tests.http.page.pages import IN_CHROMIUM, call, cast, opened, publish, refused, search, show, until
from tests.http.serving import ECHO, ROOT

pytestmark = IN_CHROMIUM


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

        def list_rows() -> set[str]:
            return {
                str(one) for one in page.evaluate("[...document.querySelectorAll('#loom .row')].map(r => r.dataset.id)")
            }

        page.wait_for_selector(f'#loom [data-id="{well}"]')
        page.select_option('#loom select[aria-label="Entities that called a gate"]', "search")
        until(lambda: well in list_rows() and badly not in list_rows())
        page.select_option('#loom select[aria-label="Entities that called a gate"]', "pay")
        until(lambda: badly in list_rows() and well not in list_rows())
        page.select_option('#loom select[aria-label="Entities that called a gate"]', "")
        page.click('#loom .chip:has-text("Errors")')
        until(lambda: badly in list_rows() and well not in list_rows())
        page.click('#loom .chip:has-text("All")')
        page.fill("#loom input", "lovelace")
        until(lambda: list_rows() == {well})
        # a call that comes while the page looks counts, too
        page.fill("#loom input", "")
        late = refused(service)
        page.click('#loom .chip:has-text("Errors")')
        until(lambda: late in list_rows())


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
        page.wait_for_selector(f'#actors [data-id$="{entity}"]', state="attached")
        # the moment at which the page has both, by the page's clock, which is the machine's
        page.evaluate(
            """id => { window.seen = []; new MutationObserver(() => {
              const crashes = [...document.querySelectorAll("#needs .crashes li")];
              const badge = document.querySelector(`#actors [data-id$="${id}"] .badge.warn`);
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
        page.click(f'#actors [data-id$="{entity}"]')
        page.wait_for_selector('#actors .detail .report:has-text("RuntimeError: the bed broke")')
        told = " ".join(page.inner_text("#actors .detail").split())
        assert f"restarts {len(took)} last exit crash:" in told  # its circle's crash is its own
        assert "RuntimeError: the bed broke" in told
        assert "Last crash" in told
        assert "restart: transient" in told
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


AT_END = """() => {
  const body = document.querySelector("#main .body");
  return body.scrollHeight - body.scrollTop - body.clientHeight < 60;
}"""


@pytest.mark.rule("PAGE-01", "PAGE-06")
def test_the_timeline_follows_the_newest_turn_until_a_person_scrolls_up(chrome: Any, service: Live) -> None:
    bob = cast(service, "echo", "turns 12 0", "bob-follows")

    def send(text: str) -> None:
        service.call(service.on.post, f"entities/{bob}/send", {"intent": text, "wait": 5})
        page.wait_for_selector(f'#main .step:has-text("you said: {text}")')

    with opened(chrome, service) as page:
        show(page, bob)
        page.wait_for_selector('#main .step:has-text("Episode: done")')
        page.wait_for_function(AT_END)
        page.evaluate(  # a turn comes before the browser reports where the page has scrolled to
            """() => new Promise((done) => requestAnimationFrame(() => {
              const body = document.querySelector("#main .body");
              body.scrollTop = 0;
              body.scrollTop = body.scrollHeight;
              const tall = Object.assign(document.createElement("li"), {style: "height: 500px"});
              document.querySelector("#main .thread").append(tall);
              requestAnimationFrame(() => requestAnimationFrame(done));
            }))"""
        )
        send("one more")
        page.wait_for_function(AT_END)
        page.hover("#main .body")
        page.mouse.wheel(0, -600)
        page.wait_for_function(f"() => !({AT_END})()")
        send("and another")
        assert not page.evaluate(AT_END)


def test_the_name_of_a_child_that_answers_from_the_background_leads_to_it(chrome: Any) -> None:
    def think(context: Any) -> Any:
        last = str(context[-1].content)
        if last == "plan":
            return call("I start one.", ("call_agent", {"intent": "look", "wait": False}))
        return {"content": "Found." if last == "look" else "Done."}

    circle = Circle(["done", "background"], [max_turns(9), max_depth(1)])
    planner = Cantrip(scripted(think, record=False), circle=circle, name="planner")
    with live([planner]) as service, opened(chrome, url=service.link()) as page:
        show(page, cast(service, "planner", "plan", "pia"))
        sender = page.locator('#main .step:has-text("steered by") a.by')
        sender.wait_for()
        assert sender.text_content() == "child"
        sender.click()
        page.wait_for_selector('#main .step:has-text("look")')

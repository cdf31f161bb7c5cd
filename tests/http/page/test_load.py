"""The page with many entities, many updates, long logs, stuck readers and a killed server."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns
from tests.exhaustive import EXHAUSTIVE
from tests.http.browser import Live, live
from tests.http.page.pages import ENTITIES, IN_CHROMIUM, OPERATOR, cast, opened, search, show, until
from tests.http.serving import ECHO, process
from tests.slowness import measure_slowness

pytestmark = IN_CHROMIUM

TURNS = 10_000 if EXHAUSTIVE else 2_000


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
def test_an_entity_of_many_turns_opens_in_a_second_at_its_newest(chrome: Any) -> None:
    """In a second of a machine that is idle: the service reads all turns of the entity for it."""
    look = {"content": "again", "tool_calls": [{"gate": "search", "args": {"query": "x"}}]}
    says = scripted([*[look] * (TURNS - 1), {"content": "at last"}], record=False)
    many = Cantrip(says, circle=Circle(["done", search], [max_turns(TURNS)]), name="many")

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
                        """([id, last]) => new Promise((done) => {
                          const began = performance.now();
                          new MutationObserver((_, self) => {
                            if (!document.querySelector(`[data-sequence="${last}"]`)) return;
                            self.disconnect();
                            requestAnimationFrame(() => done(performance.now() - began));
                          }).observe(document.getElementById("main"), { subtree: true, childList: true });
                          location.hash = `#/e/${id}`;
                        })""",
                        [entity, TURNS],
                    )
                    / measure_slowness()
                )
                if took[-1] < 1000:
                    break
            assert min(took) < 1000, took
            assert page.locator("article.turn").count() <= 100
            page.click('#main button:has-text("Show earlier")')
            page.wait_for_selector(f'[data-sequence="{TURNS - 150}"]')


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

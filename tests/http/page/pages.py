"""The live page in a real Chromium: how a test opens it, the entities that it shows, and how it reads the loom.

Each test polls for what it expects; none sleeps.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, ask_first, gate, scripted
from cantrip_actors.wards import max_turns
from tests.http.browser import Live, chromium

IN_CHROMIUM = [
    pytest.mark.real_time,
    pytest.mark.skipif(chromium() is None, reason="no chromium on PATH: the live page is tested in a real browser"),
]
"""The marks of every test of the page."""

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


@contextmanager
def opened(
    chrome: Any,
    service: Live | None = None,
    url: str | None = None,
    *,
    is_staged: bool = False,
    now: datetime | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Open the page; an error, a report of its policy or a request to another host fails the test.

    The test plays the events of a page that `is_staged`, which has 2,000 entities. `now` is the time by its clock.
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
    if now is not None:
        page.clock.set_fixed_time(now)
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


def refused(service: Live) -> str:
    """Cast an entity whose one call is denied, which is an error that it observes."""
    payer = cast(service, "echo", "pay 9")
    (request,) = until(lambda: service.call(service.on.get, f"requests?entity={payer}")["items"])
    service.call(service.on.post, f"requests/{request['id']}", {"decision": "deny"}, 200)
    return payer

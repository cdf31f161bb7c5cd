"""The walk of a visitor: cast, children, crash, approval, fork. `PICTURES=1` writes the pictures of docs/page.md."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors.runtime.circles.gates_actor import GatesActor
from tests.drawings import folder_for
from tests.http.browser import Live
from tests.http.page.pages import (
    IN_CHROMIUM,
    OPERATOR,
    decisions,
    opened,
    show,
    story,
)

pytestmark = IN_CHROMIUM


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

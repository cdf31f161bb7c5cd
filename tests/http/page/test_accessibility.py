"""The page for everybody: names, roles, contrast, and a focus that stays while the page updates."""

from typing import Any

import pytest

from tests.http.browser import Live
from tests.http.page.pages import ENTITIES, IN_CHROMIUM, cast, opened, show, until

pytestmark = IN_CHROMIUM


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

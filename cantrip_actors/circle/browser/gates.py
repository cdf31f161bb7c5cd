"""The gates of a browser (SPEC 4.4). Importing them imports neither Playwright nor an HTTP client."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from cantrip_actors.circle.browser.downloads import save_download
from cantrip_actors.circle.browser.entity_browser import EntityBrowser
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.risk import Risk
from cantrip_actors.user_code.threads import run_to_end

if TYPE_CHECKING:
    from cantrip_actors.circle.browser.session import BrowserSession

RISKS: Final[list[Risk]] = ["untrusted_content", "way_out"]

LOAD: Final = 8.0
"""Seconds that a page has to load after its address was opened."""

VISIBLE: Final = 2
"""Queries that show what an action changed."""

ElementTarget = Annotated[
    str, Field(max_length=2000, description="a ref from look (e12), a text (text=Buy) or a CSS selector (form #name)")
]
SecretTexts = Injected[Mapping[str, str] | None]


@gate(idempotent=True, ephemeral=True, visible_for=1, risks=RISKS)
async def goto(
    url: Annotated[str, Field(max_length=8192, description="an http or https address")],
    browser: Injected[EntityBrowser],
    secrets: SecretTexts = None,
) -> Any:
    """Open an address in the tab in front, and see the page: a line for each element, with a ref such as e12."""

    async def work(session: BrowserSession) -> str:
        address = session.check_url(url)
        tab = await session.tabs.get_front()
        response = await tab.page.goto(address, wait_until="commit", timeout=session.settings.timeout * 1000)
        await session.settle(LOAD)
        status = "" if response is None or response.status < 400 else f"[status {response.status}]\n"
        return status + await session.see(part=1)

    return await browser.perform(work, secrets)


@gate(idempotent=True, read_only=True, ephemeral=True, visible_for=1, risks=RISKS)
async def look(
    browser: Injected[EntityBrowser],
    part: Annotated[int, Field(ge=1, description="the part of a long page, from 1")] = 1,
    within: Annotated[str | None, Field(description="show only this element: a ref or a selector")] = None,
    secrets: SecretTexts = None,
) -> Any:
    """See the page in front: a line for each element, with a ref. Lines that are new since the last look have a +."""

    async def work(session: BrowserSession) -> str:
        return await session.see(part=part, within=within)

    return await browser.perform(work, secrets)


@gate(ephemeral=True, visible_for=VISIBLE, risks=RISKS)
async def click(target: ElementTarget, browser: Injected[EntityBrowser], secrets: SecretTexts = None) -> Any:
    """Click on an element, and see what that changes."""

    async def work(session: BrowserSession) -> str:
        await (await session.locate(target)).click()
        await session.settle()
        return await session.see()

    return await browser.perform(work, secrets)


@gate(ephemeral=True, visible_for=VISIBLE, risks=RISKS)
async def fill(
    target: ElementTarget,
    browser: Injected[EntityBrowser],
    text: Annotated[str | None, Field(description="the text that replaces what is in the field")] = None,
    secret: Annotated[str | None, Field(description="the name of a secret to write, instead of a text")] = None,
    secrets: SecretTexts = None,
) -> Any:
    """Write a text, or a secret by its name, into a field, and see what that changes."""
    if (text is None) == (secret is None):
        raise GateError("fill: expected either a text or the name of a secret")
    if secret is not None and secret not in (secrets or {}):
        raise GateError(f"fill: no secret is called {secret!r}: there are {', '.join(secrets or {}) or 'none'}")
    value = text if secret is None else (secrets or {})[secret]

    async def work(session: BrowserSession) -> str:
        await (await session.locate(target)).fill(value or "")
        await session.settle()
        return await session.see()

    return await browser.perform(work, secrets)


@gate(ephemeral=True, visible_for=VISIBLE, risks=RISKS)
async def press(
    key: Annotated[str, Field(max_length=50, description="a key, as in Enter, Escape, ArrowDown, Control+A")],
    browser: Injected[EntityBrowser],
    target: Annotated[str | None, Field(description="the element that gets it; left out: the one in focus")] = None,
    secrets: SecretTexts = None,
) -> Any:
    """Press a key, and see what that changes."""
    if _is_of_clipboard(key):
        raise GateError("press: the clipboard is off, because entities would share it: use fill")

    async def work(session: BrowserSession) -> str:
        if target is None:
            await (await session.tabs.get_front()).page.keyboard.press(key)
        else:
            await (await session.locate(target)).press(key)
        await session.settle()
        return await session.see()

    return await browser.perform(work, secrets)


def _is_of_clipboard(key: str) -> bool:
    *modifiers, last = key.lower().removesuffix("+").split("+")
    last = last.removeprefix("key")
    return bool(modifiers) and (last in ("c", "v", "x", "insert") or (last == "delete" and "shift" in modifiers))


@gate(ephemeral=True, visible_for=VISIBLE, risks=RISKS)
async def select(
    target: ElementTarget,
    option: Annotated[str, Field(description="the text of the option")],
    browser: Injected[EntityBrowser],
    secrets: SecretTexts = None,
) -> Any:
    """Choose an option of a list, and see what that changes."""

    async def work(session: BrowserSession) -> str:
        field = await session.locate(target)
        options = await field.locator("option").all_inner_texts()
        if option not in [text.strip() for text in options]:
            raise GateError(f"select: expected one of {[text.strip() for text in options][:50]}, got {option!r}")
        await field.select_option(label=option)
        await session.settle()
        return await session.see()

    return await browser.perform(work, secrets)


@gate(ephemeral=True, visible_for=VISIBLE, risks=RISKS)
async def back(browser: Injected[EntityBrowser], secrets: SecretTexts = None) -> Any:
    """Go back to the page before, and see it."""

    async def work(session: BrowserSession) -> str:
        tab = await session.tabs.get_front()
        if await tab.page.go_back(wait_until="commit") is None:
            raise GateError("there is no page before this one")
        await session.settle()
        return await session.see()

    return await browser.perform(work, secrets)


@gate(idempotent=True, risks=RISKS)
async def tabs(
    browser: Injected[EntityBrowser],
    show: Annotated[int | None, Field(description="the number of a tab to bring to the front")] = None,
    close: Annotated[int | None, Field(description="the number of a tab to close")] = None,
    secrets: SecretTexts = None,
) -> Any:
    """List the open tabs, after bringing one to the front or closing one."""

    async def work(session: BrowserSession) -> str:
        if close is not None:
            await session.tabs.close(close)
        if show is not None:
            await session.tabs.show(show)
        return await session.tabs.render()

    return await browser.perform(work, secrets)


@gate(idempotent=True, read_only=True, ephemeral=True, visible_for=1, risks=RISKS)
async def screenshot(
    browser: Injected[EntityBrowser],
    target: Annotated[str | None, Field(description="an element; left out: what the window shows")] = None,
    secrets: SecretTexts = None,
) -> Image:
    """Get an image of the page."""

    async def work(session: BrowserSession) -> bytes:
        page = (await session.tabs.get_front()).page
        if target is None:
            return await page.screenshot(type="jpeg", quality=70)
        return await (await session.locate(target)).screenshot(type="jpeg", quality=70)

    return Image(await browser.perform(work, secrets))


@gate(ephemeral=True, visible_for=VISIBLE, risks=RISKS)
async def download(
    target: ElementTarget, browser: Injected[EntityBrowser], root: Injected[Path], secrets: SecretTexts = None
) -> Any:
    """Click on an element that downloads a file, and save the file in your folder. A file there is never replaced."""

    async def work(session: BrowserSession) -> tuple[Path, str, str]:
        file, suggested = await session.download(target)
        return file, suggested, await session.see()

    file, suggested, seen = await browser.perform(work, secrets)
    name, size = await run_to_end(partial(save_download, root, file, suggested))
    return f'saved as "{name}": {size:,} bytes\n{seen}'


GATES: Final = (goto, look, click, fill, press, select, back, tabs, screenshot)

"""The state of a browser as bytes, and back: cookies, storage, open addresses, and the values of form fields.

State that only a page's memory holds is lost: its scripts' variables, its history, IndexedDB. A page is loaded again by
its address, so one that answered a form may show something else. Nothing that contains a secret is stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Error, Page, Route

LARGEST: Final = 1_000_000
"""Characters of a state that is stored. A larger one is stored without the storage of its pages, then without the
values of their form fields, and at last without anything."""

ANSWER: Final = 1.0
"""Seconds in which a page has to return the values of its form fields."""

_READ: Final = """() => {
  const plain = storage => { try { return Object.fromEntries(Object.entries(storage)) } catch { return {} } }
  const fields = [...document.querySelectorAll('input, textarea, select')].map((field, at) => ({
    at, tag: field.tagName, name: field.name, kind: field.type, value: field.value, checked: !!field.checked,
    is_new: field.options ? [...field.options].some(one => one.selected !== one.defaultSelected)
      : field.value !== field.defaultValue || !!field.checked !== !!field.defaultChecked,
  })).filter(field => field.is_new && !['password', 'file', 'hidden'].includes(field.kind))
  return {local: plain(localStorage), session: plain(sessionStorage), fields}
}"""

_STORE: Final = """([local, session]) => {
  for (const [name, value] of Object.entries(local)) localStorage.setItem(name, value)
  for (const [name, value] of Object.entries(session)) sessionStorage.setItem(name, value)
}"""

_WRITE: Final = """fields => {
  const all = [...document.querySelectorAll('input, textarea, select')]
  return fields.filter(({at, tag, name, value, checked}) => {
    const field = all[at]
    if (!field || field.tagName !== tag || field.name !== name) return true
    if (['checkbox', 'radio'].includes(field.type)) field.checked = checked
    else field.value = value
    for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true}))
    return field.value !== value
  }).length
}"""

IsSecret = Callable[[str], bool]


async def read_page(page: Page) -> dict[str, Any] | None:
    """Return the address of a page, its storage and the values of its form fields; None if it does not answer."""
    try:
        async with asyncio.timeout(ANSWER):
            state = await page.evaluate(_READ) if page.url.startswith("http") else {}
    except (Error, TimeoutError):
        return None
    return {"url": page.url, **state}


def encode_state(
    cookies: list[Any], pages: list[dict[str, Any]], origins: Mapping[str, Any], current: int, is_secret: IsSecret
) -> bytes:
    """Return a state as bytes. `origins` is the storage of each origin that has been open."""
    tabs = [_leave_secrets(page, is_secret) for page in pages]
    plain_cookies = [cookie for cookie in cookies if not is_secret(cookie["value"])]
    local = {origin: _keep(values, is_secret) for origin, values in origins.items()}
    whole = {"cookies": plain_cookies, "tabs": tabs, "origins": local, "current": current}
    stored = whole | {"tabs": [tab | {"session": {}} for tab in tabs], "origins": {}}
    bare = stored | {"tabs": [tab | {"session": {}, "fields": []} for tab in tabs]}
    empty: dict[str, Any] = {"cookies": [], "tabs": [], "origins": {}, "current": 0}
    texts = map(json.dumps, (whole, stored, bare, empty))
    return next(text for text in texts if len(text) <= LARGEST).encode()


def _leave_secrets(page: dict[str, Any], is_secret: IsSecret) -> dict[str, Any]:
    url = "about:blank" if is_secret(page["url"]) else page["url"]
    fields = [field for field in page.get("fields", ()) if not is_secret(str(field["value"]))]
    return {"url": url, "fields": fields, "session": _keep(page.get("session", {}), is_secret)}


def _keep(values: Mapping[str, Any], is_secret: IsSecret) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str) and not is_secret(value)}


def find_origin(url: str) -> str:
    """Return the origin of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def store_values(page: Page, origin: str, local: Mapping[str, str], session: Mapping[str, str]) -> None:
    """Put storage into an origin, without a request to it."""

    async def answer(route: Route) -> None:
        await route.fulfill(body="", content_type="text/html")

    await page.route("**/*", answer)
    await page.goto(f"{origin}/")
    await page.evaluate(_STORE, [local, session])
    await page.unroute("**/*", answer)


async def write_fields(page: Page, fields: list[Any]) -> int:
    """Write values into the fields of a page; return the number of fields that no longer exist."""
    async with asyncio.timeout(ANSWER):
        return int(await page.evaluate(_WRITE, fields))


async def restore_storage(context: BrowserContext, state: dict[str, Any], open_origins: set[str]) -> None:
    """Restore the cookies, and the storage of origins that no tab shows."""
    await context.add_cookies(state["cookies"])
    others = {origin: values for origin, values in state["origins"].items() if values and origin not in open_origins}
    if others:
        page = await context.new_page()
        for origin, values in others.items():
            await store_values(page, origin, values, {})
        await page.close()

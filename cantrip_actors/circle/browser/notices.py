"""Events that pages caused without a gate call: lines for the next observation, and the secrets that are removed from
texts for the entity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from cantrip_actors.circle.browser.page_text import shorten_text
from cantrip_actors.circle.browser.proxy import FilteringProxy

MOST: Final = 20
"""The most lines of an observation about events that pages caused without a gate call."""


class Notices:
    """The lines since the last observation, with what the proxy has refused. Used in the driver's loop alone."""

    def __init__(self, proxy: FilteringProxy) -> None:
        self._proxy = proxy
        self._lines: list[str] = []
        self._secrets: dict[str, str] = {}

    def add_secrets(self, secrets: Mapping[str, str]) -> None:
        """Hide these from now on, too."""
        self._secrets |= secrets

    def hide(self, text: str) -> str:
        """Return a text with the names of secrets in their place."""
        return hide_secrets(text, self._secrets)

    def note(self, line: str) -> None:
        """Add a line, unless there are too many."""
        if len(self._lines) < MOST:
            self._lines.append(shorten_text(self.hide(line)))

    def clear(self) -> None:
        """Forget the lines."""
        self._lines.clear()

    def take(self) -> list[str]:
        """Return the lines since the last observation."""
        lines = [*self._lines, *(f"refused: {why}" for why in self._proxy.refused)]
        self._lines.clear()
        self._proxy.refused.clear()
        return [f"[{line}]" for line in map(self.hide, lines)]


def hide_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text with the name of each secret in its place, also where it is written as in a URL or in JSON.

    Where one secret begins another, the longer one is hidden: else its rest would remain.
    """
    names: dict[str, str] = {}
    for name, value in secrets.items():
        escaped = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
        written = {value, *escaped, quote(value, safe=""), quote(value), quote_plus(value)} - {""}
        names |= dict.fromkeys(written, name)
    forms = sorted((form for form in names if form in text), key=len, reverse=True)
    if not forms:
        return text
    return re.sub("|".join(map(re.escape, forms)), lambda match: f"[secret {names[match[0]]}]", text)

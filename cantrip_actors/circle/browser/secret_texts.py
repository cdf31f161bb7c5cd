"""Hide the secrets of a browser in texts for its entity."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus


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

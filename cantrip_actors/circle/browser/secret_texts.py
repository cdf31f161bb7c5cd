"""Hide the secrets of a browser in texts for its entity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote, quote_plus


def hide_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text with the name of each secret in its place, also where it is written as in a URL or in JSON."""
    for name, value in secrets.items():
        escaped = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
        for form in sorted({value, *escaped, quote(value, safe=""), quote(value), quote_plus(value)}, key=len):
            if form:
                text = text.replace(form, f"[secret {name}]")
    return text

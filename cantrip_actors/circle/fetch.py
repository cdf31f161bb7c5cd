"""The `fetch` gate. What it does is in `fetching.py`, imported by the first call: httpx takes a fifth of a second."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from cantrip_actors.model.gate import Injected, gate
from cantrip_actors.model.image import Image

__all__ = ["BYTES", "SECONDS", "fetch"]

BYTES: Final = 200_000
"""Of one result, unless the `max_bytes` dependency says otherwise: about 50,000 tokens."""

SECONDS: Final = 30.0
"""For all of it; `fetch.with_(timeout=…)` changes it."""


@gate(idempotent=True, timeout=SECONDS)
async def fetch(
    url: Annotated[str, Field(max_length=8192, description="an http or https address")],
    client: Injected[Any] = None,  # an httpx.AsyncClient
    allow_private: Injected[bool] = False,
    max_bytes: Injected[int] = BYTES,
    images: Injected[bool] = False,  # whether a picture is fetched as one, or refused
) -> str | Image:
    """Get the text behind a URL; redirects are followed."""
    from cantrip_actors.circle.fetching import fetched

    return await fetched(client, url, allow_private, max_bytes, images=images)

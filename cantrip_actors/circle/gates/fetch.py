"""The `fetch` gate. Its first call imports `fetch_request.py`, because importing httpx takes 0.2 s."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from cantrip_actors.terms.gate import provide
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.image import Image

BYTES: Final = 200_000
"""The largest text, in bytes, unless the `max_bytes` dependency is given: about 50,000 tokens."""

SECONDS: Final = 30.0
"""The time limit of a whole call; `fetch.with_(timeout=…)` changes it."""


@gate(idempotent=True, read_only=True, timeout=SECONDS, risks=["untrusted_content", "way_out"])
async def fetch(
    url: Annotated[str, Field(max_length=8192, description="an http or https address")],
    client: Injected[Any] = None,  # an AsyncClient of httpx or httpx2
    allow_private: Injected[bool] = False,
    max_bytes: Injected[int] = BYTES,
    images: Injected[bool] = False,  # if False, an image is refused
) -> str | Image:
    """Get the text behind a URL; redirects are followed."""
    from cantrip_actors.circle.gates.fetch_request import request

    return await request(client, url, allow_private=allow_private, max_bytes=max_bytes, images=images, seconds=SECONDS)


provide(fetch)

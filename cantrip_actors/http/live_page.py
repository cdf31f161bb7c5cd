"""The live page: HTML, modules and a stylesheet from the wheel; they load nothing from other hosts.

The page names its assets by a hash of all of them: a browser caches them for a year and gets a new version at once. So
no answer has an ETag: a name that is kept has one content, and the page itself is not stored. Compressed with gzip,
which every browser accepts, the files have a third of their size. The page names everything relative to its own
address, so it works below any prefix.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache, partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cantrip_actors.page.texts import fill_page, read_texts

PAGE_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

_KINDS: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_FOR_A_YEAR: Final = "public, max-age=31536000, immutable"
_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?!;\s*q=0(?:\.0*)?\s*(?:,|$))(?:;|,|$)", re.IGNORECASE)
"""An `Accept-Encoding` that names gzip with another weight than 0."""


@cache
def assets() -> dict[str, str]:
    """Return the texts of the page by their paths."""
    texts = {name: text for name, text in read_texts().items() if not name.startswith("export")}
    digest = hashlib.sha256("\0".join(text for _, text in sorted(texts.items())).encode()).hexdigest()[:12]
    page = fill_page(
        texts.pop("page.html"),
        title="cantrip",
        head=f'<link rel="stylesheet" href="page/{digest}/page.css">\n'
        f'<script src="page/{digest}/app.js" type="module"></script>',
    )
    return {"/": page, **{f"/page/{digest}/{name}": text for name, text in texts.items()}}


@cache
def _compress(path: str) -> bytes:
    return gzip.compress(assets()[path].encode(), mtime=0)


def page_routes() -> list[Route]:
    """Return the routes of the page; they need no token, since they show no data of the service."""
    return [Route(path, partial(_serve, path), methods=["GET"]) for path in assets()]


async def _serve(path: str, request: Request) -> Response:
    headers = {**PAGE_HEADERS, "vary": "accept-encoding"}
    if path != "/":
        headers["cache-control"] = _FOR_A_YEAR
    kind = _KINDS["html" if path == "/" else path.rpartition(".")[2]]
    if _GZIP.search(request.headers.get("accept-encoding", "")):
        return Response(_compress(path), headers={**headers, "content-encoding": "gzip"}, media_type=kind)
    return Response(assets()[path], headers=headers, media_type=kind)

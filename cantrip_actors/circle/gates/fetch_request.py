"""The body of the `fetch` gate: get the text or the image of a URL, but never from the host's own network.

The host name is resolved here, all of its addresses are checked, and the connection goes to a checked address, with the
name in the Host header and in TLS. So there is no second resolution that could give another address (DNS rebinding),
and spellings such as `http://2130706433/` or `[::ffff:127.0.0.1]` are judged by the address that they denote. Each
redirect is a new URL and checked like the first.

It only reads: GET, no request body, no stored cookies, no proxies from the environment (a proxy would resolve names
itself).
"""

from __future__ import annotations

import codecs
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import Mapping
from functools import cache, partial
from typing import Final, NamedTuple

import anyio
import httpx

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.special_addresses import REACHABLE, REFUSED, UNICAST
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.errors import InvalidImage
from cantrip_actors.terms.file import LARGEST
from cantrip_actors.terms.image import Image
from cantrip_actors.user_code.http_clients import get_http_errors
from cantrip_actors.user_code.threads import run_apart

HOPS: Final = 5
"""Redirects that are followed."""

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_TEXTUAL: Final = ("text/", "application/json", "application/xml", "application/javascript", "application/x-ndjson")
_GZIP: Final = b"\x1f"
"""The first byte of a member of gzip."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


async def request(
    client: httpx.AsyncClient | None, url: str, *, allow_private: bool, max_bytes: int, images: bool, seconds: float
) -> str | Image:
    """Return the text behind `url`, or its image if `images` allows one.

    Without a `client` it makes one that waits at most `seconds` for each network operation. Raises GateError.
    """
    most = _Most(max_bytes, images=images)
    if client is not None:
        return await _follow(client, parse_url(url), allow_private, most)
    # a client of its own, made and closed in this task: no connection outlives the call, on either backend
    tls = await run_apart(make_tls)
    async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=seconds) as own:
        return await _follow(own, parse_url(url), allow_private, most)


class _Most(NamedTuple):
    """The limits of a response: bytes of a text, and whether images are accepted."""

    text: int
    images: bool


@cache
def make_tls() -> ssl.SSLContext:
    """Return the TLS context; cached, because parsing the certificates takes tens of milliseconds."""
    return httpx.create_ssl_context(trust_env=False)


async def _follow(client: httpx.AsyncClient, url: httpx.URL, allow_private: bool, most: _Most) -> str | Image:
    for _ in range(HOPS + 1):
        addresses: list[str | None] = [None] if allow_private else await resolve_public(url)
        fetched = await _get(client, url, addresses, most)
        if not isinstance(fetched, httpx.URL):
            return fetched
        url = fetched
    raise GateError(f"more than {HOPS} redirects, the last to {_shorten(url)}")


def parse_url(text: str) -> httpx.URL:
    """Return the URL in a text. Raises GateError for one that may not be fetched."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        if "@" in text:
            raise GateError("this is not a URL: expected for example https://example.org/") from None
        raise GateError(f"{_shorten(text)} is not a URL: {error}") from error
    return _check_allowed(url)


def _check_allowed(url: httpx.URL) -> httpx.URL:
    if url.userinfo:
        raise GateError("a URL with a user name or password is refused: expected one without")
    if url.scheme not in ("http", "https"):
        raise GateError(f"{_shorten(url)}: expected http or https, got {url.scheme or 'no scheme'}")
    try:
        host = url.host
    except ValueError as error:  # httpx decodes the name of the host now
        raise GateError(f"{_shorten(url)}: its host is no name of the internet: {error}") from error
    if not host:
        raise GateError(f"{_shorten(url)}: expected a host, as in https://example.org/")
    if url.port is not None and not 0 < url.port < 65536:
        raise GateError(f"{_shorten(url)}: expected a port from 1 to 65535, got {url.port}")
    return url


def _shorten(url: object) -> str:
    text = render_url(url)
    return text if len(text) <= 200 else f"{text[:199]}…"


# ------------------------------------------------------------------------------------------------------------ addresses


async def resolve_public(url: httpx.URL) -> list[str | None]:
    """Return the addresses of the URL's host. Raises GateError if one of them is not on the public internet."""
    host = url.raw_host.decode("ascii")
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        infos = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise GateError(f"the host {host} cannot be resolved: check its name") from error
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    if not addresses or not all(map(is_public, addresses)):
        raise GateError(
            f"the host {host} is refused: it has a private, local or reserved address, expected the public internet"
        )
    return list(addresses)


def is_public(address: str) -> bool:
    """Return whether a literal address is on the public internet, by the IANA registries.

    An address that contains another (IPv4-mapped, NAT64) is judged by the one it contains. Never raises: a text that is
    not an address is not public.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None:
            return False
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)))
        if ip not in UNICAST:
            return False
    return any(ip in block for block in REACHABLE) or not any(ip in block for block in REFUSED)


# -------------------------------------------------------------------------------------------------------------- one hop


async def _get(
    client: httpx.AsyncClient, url: httpx.URL, addresses: list[str | None], most: _Most
) -> str | Image | httpx.URL:
    """Send one request to the first reachable address; return the text, the image, or the redirect's target."""
    unreached = "no address"
    for address in addresses:
        request = build_request(client, "GET", url, address, {"accept-encoding": "gzip"})
        try:
            response = await client.send(request, stream=True, follow_redirects=False)
        except get_http_errors("ConnectError", "ConnectTimeout") as error:
            unreached = str(error) or "no connection"
            continue
        except get_http_errors("TransportError") as error:
            raise GateError(f"{_shorten(url)} did not answer: {type(error).__name__}: {error}") from error
        try:
            return await _read_response(response, url, most)
        except get_http_errors("TransportError") as error:
            raise GateError(f"{_shorten(url)}: the answer broke off: {type(error).__name__}: {error}") from error
        finally:
            await response.aclose()
    raise GateError(f"{_shorten(url)} cannot be reached: {unreached}")


def build_request(
    client: httpx.AsyncClient,
    method: str,
    url: httpx.URL,
    address: str | None,
    headers: Mapping[str, str],
    content: bytes | None = None,
) -> httpx.Request:
    """Return the request, sent to `address` if one is given, with the name in the Host header and in TLS."""
    if address is None:
        return client.build_request(method, str(url), headers=headers, content=content)
    headers = {**headers, "host": url.netloc.decode("ascii")}
    extensions = {"sni_hostname": url.raw_host.decode("ascii")}
    target = str(url.copy_with(host=address))
    return client.build_request(method, target, headers=headers, content=content, extensions=extensions)


async def _read_response(response: httpx.Response, url: httpx.URL, most: _Most) -> str | Image | httpx.URL:
    if response.status_code in _REDIRECTS and "location" in response.headers:
        return _check_allowed(url.join(response.headers["location"]))
    kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
    if most.images and kind.startswith("image/") and response.status_code < 400:
        return await _read_image(response, url)
    if kind and not (kind.startswith(_TEXTUAL) or kind.endswith(("+json", "+xml"))):
        size = response.headers.get("content-length", "an unknown number of")
        wanted = "text or a picture" if most.images else "text"
        raise GateError(f"{_shorten(url)} is {kind} ({size} bytes): expected {wanted}")
    failed = response.status_code >= 400
    data, whole = await _read_body(response, url, 2_000 if failed else most.text)
    text = _decode(data, response.charset_encoding)
    if failed:
        status = f"status {response.status_code} {response.reason_phrase}"
        raise GateError(f"{status} from {_shorten(url)}: {text[:500].strip() or 'no text'}")
    if not kind and "\0" in text:
        raise GateError(f"{_shorten(url)} is binary: expected text")
    return text if whole else f"{text}\n[cut after {len(data):,} bytes; there is more]"


async def _read_image(response: httpx.Response, url: httpx.URL) -> Image:
    data, whole = await _read_body(response, url, LARGEST)
    if not whole:
        raise GateError(f"{_shorten(url)} is a picture of more than {LARGEST:,} bytes")
    try:
        return await run_apart(partial(Image, data))  # a digest of 20 MB takes long
    except InvalidImage as error:
        raise GateError(f"{_shorten(url)}: {error}") from error


async def _read_body(response: httpx.Response, url: httpx.URL, most: int) -> tuple[bytes, bool]:
    """Return up to `most` bytes of the decompressed body, and whether that is all of it.

    The body is decompressed here and not by httpx, because a small body can expand to a huge one. The stream is never
    left early by `break` or an exception of this function, because only the outermost of httpx's nested generators
    would be closed. A cancellation passes through all of them.
    """
    if response.is_stream_consumed:  # a client that the user passed may answer from memory
        return response.content[:most], len(response.content) <= most
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip"):
        raise GateError(f"{_shorten(url)} is packed as {coding}: expected gzip or nothing")
    unpacking = None if coding == "identity" else _Unpacking()
    data, problem = bytearray(), ""
    with anyio.CancelScope() as enough:
        async for chunk in response.aiter_raw():
            room = most + 1 - len(data)
            if room <= 0:  # a limit of 0 bytes would decompress everything
                continue
            try:
                data += unpacking.unpack(chunk, room) if unpacking else chunk
            except zlib.error as error:
                problem = str(error)
            if problem or len(data) > most:
                enough.cancel()
    if unpacking is not None and unpacking.is_within and len(data) <= most:
        problem = problem or "it ends too early"
    if problem:
        raise GateError(f"{_shorten(url)}: the answer cannot be unpacked: {problem}")
    return bytes(data[:most]), len(data) <= most


class _Unpacking:
    """Unpacks a body of gzip, which may have several members, one after the other, and padding after the last."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._is_first = True
        self.is_within = False
        """Whether a member has begun and not ended."""

    def unpack(self, chunk: bytes, room: int) -> bytes:
        """Return what a chunk unpacks to, `room` bytes at most: the caller wants no more. Raises zlib.error."""
        data = bytearray()
        while len(data) < room and chunk and (self._is_first or self.is_within or chunk.startswith(_GZIP)):
            data += self._member.decompress(chunk, room - len(data))
            chunk, self.is_within = self._member.unused_data, not self._member.eof
            if self._member.eof:
                self._member, self._is_first = zlib.decompressobj(wbits=31), False
        return bytes(data)


_CHARSETS: Final = re.compile(
    r"ascii|utf-(?:8|16|32)(?:-[bl]e|-sig)?|iso8859-\d+|iso2022_\w+|cp\d+|koi8-[rtu]|mac-\w+|gb\w+|big5\w*|hz|johab"
    r"|euc_\w+|shift_ji\w+|tis-620|kz1048|ptcp154"
)
"""The charsets of pages, under Python's names. Its codec of host names takes the square of the time, and others write
no text."""


def _decode(data: bytes, charset: str | None) -> str:
    try:
        name = codecs.lookup(charset or "utf-8").name
    except LookupError:  # an unknown charset
        name = "utf-8"
    return data.decode(name if _CHARSETS.fullmatch(name) else "utf-8", "replace")

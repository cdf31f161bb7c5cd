"""The one place that talks HTTP to providers: it opens the stream, hands its events to a decoder, and closes it.

**Connections.** Within `async with crystal:` connections are kept for the next queries of that event loop: a runtime
does this while a crystal is in use. A query borrows a client with one connection, because the pool of an httpx client
looks at all of its connections for each query, which takes 20 ms with 500 of them. Nothing in an httpx client belongs
to the task that opened it, so another task may use it, and close it. A client that the caller gave is shared by all
queries, and is never closed here. A query outside of both makes a client of its own, and leaves nothing behind.

**Time.** Three limits (`Timeouts`), all of them on progress and none on bytes, so that a server which keeps its
connection warm with comments cannot keep a turn waiting for ever. Once a response is complete, the rest of its stream
gets `GRACE` seconds; if no event can follow any more, the end of the stream gets `END` seconds, and only where the
connection can be kept.

**Leaving.** A cancelled query closes its connection before the cancellation propagates.

**Keys** go into headers and nowhere else: not into addresses, errors, logs or reprs. They are removed from a provider's
words before those are passed on. A user's headers with a secret's name count as keys, too. Without a key, an `Access`
may authenticate (`access.py`); if the provider refuses its credentials, they are fetched anew, once.
"""

from __future__ import annotations

import math
import os
import re
import ssl
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypedDict, cast
from urllib.parse import unquote

import anyio
import httpx
import orjson
from anyio.lowlevel import EventLoopToken, current_token

from cantrip_actors.crystal.access import Access, run_in_thread
from cantrip_actors.crystal.answer_bytes import LARGEST_ANSWER, Body, read_body
from cantrip_actors.crystal.draft import Decoder
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.lessons import Adjusted
from cantrip_actors.crystal.request_headers import REQUEST_HEADERS
from cantrip_actors.crystal.sse import ServerSentEvent, check_values
from cantrip_actors.crystal.stand_ins import check_query
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.redact.urls import render_url
from cantrip_actors.stream.wire import Payload, ResponseStart
from cantrip_actors.terms.arguments import check, is_number
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import Response
from cantrip_actors.user_code.http_clients import get_http_errors, is_http_client

if TYPE_CHECKING:
    import httpx2

    UserClient: TypeAlias = httpx.AsyncClient | httpx2.AsyncClient

GRACE: Final = 2.0
"""Seconds that a server has to end its stream after the response is complete."""

END: Final = 0.1
"""Seconds that a server has to end its stream after its last event: as long as another connection would take."""

KEPT: Final = 3.0
"""Seconds for which an unused connection is kept: less than the 5 s after which many servers close it."""

REDIRECTS: Final = 4
"""The most addresses of a query: a server may redirect it, within its own host (307, 308)."""

ERROR_BYTES: Final = 64 * 1024
"""How many bytes of the body of an error are read."""

_NO_ACCESS: Final = frozenset({401, 403})
_HIDDEN: Final = "[key]"
_SAYS_SO: Final = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token)\s+", re.IGNORECASE)
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_SHORTEST: Final = 5
"""Characters: a shorter text is not a key, and would be found everywhere."""

_log: Final = get_logger("cantrip_actors.crystal")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, until the first token of an answer, and from one token to the next.

    A model that thinks without streaming it is silent for minutes: the limits end a stuck query, not a slow one.
    """

    connect: float = 10.0
    first: float = 600.0
    between: float = 300.0

    def __post_init__(self) -> None:
        for name in ("connect", "first", "between"):
            value = getattr(self, name)
            check(is_number(value) and value > 0, f"timeouts: {name}", "seconds > 0", value, InvalidCantrip)


class ProviderRequest(NamedTuple):
    """One request to a provider, with the facts about it that the decoder needs."""

    path: str
    body: bytes
    utterance: int = 1
    tools: frozenset[str] = frozenset()
    """The names of the offered tools, as they are sent."""
    names: Mapping[str, str] = {}
    """The gates of the tools that are sent under another name, by that name."""
    sent: Mapping[str, bytes] = {}
    """The parameters that a provider may refuse (`Family.learn`), with the JSON of a value that it may refuse."""
    wanted: frozenset[str] = frozenset()
    """The parameters that the query asked for, also the omitted ones."""
    effort: str | None = None
    """The sent level of thinking."""
    left_out: tuple[str, ...] = ()
    """The settings that the query asked for and that are not sent."""
    headers: Mapping[str, str] = {}
    """Headers of this request only; a value is appended to a header of the same name."""
    secrets: tuple[str, ...] = ()
    """Secrets in the body, which no error may show."""
    adjusted: Mapping[str, Adjusted] = {}
    """The settings that are sent with a different value."""
    files: Mapping[str, File] = {}
    """The images and files of its context, by their keys."""


class ConnectionSettings(TypedDict, total=False):
    """How to reach a provider. A setting that is omitted or None has the family's default."""

    api_key: str | Callable[[], str | None] | None
    """The key, or a function that returns it for each query; by default it is in the environment."""
    headers: Mapping[str, str] | None
    """Further headers of each request, for a proxy or a gateway."""
    client: httpx.AsyncClient | httpx2.AsyncClient | None
    """The client that sends the requests; its owner closes it. By default the crystal has its own."""
    timeouts: Timeouts | None
    """Seconds to connect, to the first token, and between tokens."""
    record: str | Path | None
    """A file to which every answer is appended, for `replay`. It has no keys."""


def read_environment(*names: str) -> str | None:
    """Return the value of the first of these environment variables that is set and not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """A key in an environment variable with this name or one of the others, read for each query."""

    variable: str
    others: tuple[str, ...] = ()

    def __call__(self) -> str | None:
        """Return the key, or None if the environment has none."""
        return read_environment(self.variable, *self.others)


def _redact(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text


def _find_redirect_address(response: httpx.Response) -> str | None:
    """Return the address of a redirect: on the same host, and not from https to http; None for any other."""
    if response.status_code not in (307, 308):
        return None
    requested_url = response.request.url
    try:
        moved = requested_url.join(response.headers.get("location", ""))
    except get_http_errors("InvalidURL"):
        return None
    is_safe = moved.scheme == requested_url.scheme or (moved.scheme, requested_url.scheme) == ("https", "http")
    is_same_port = moved.port == requested_url.port or moved.scheme != requested_url.scheme
    return (
        str(moved) if moved.host == requested_url.host and is_safe and is_same_port and moved != requested_url else None
    )


def _parse_xml_error(text: str) -> Mapping[str, Any] | None:
    """Return the error in a page of a bucket, None for another page."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    return None if code is None or message is None else {"error": {"message": f"{message[1]} ({code[1]})"}}


def _find_secret_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the values of headers with the name of a secret, without the word before them (`Bearer …`)."""
    values = {name: _SCHEME.sub("", value, count=1) for name, value in headers.items() if _SAYS_SO.search(name)}
    return {name: value for name, value in values.items() if len(value) >= _SHORTEST}


def _move_password(address: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return the address without user and password, which would appear in logs, and a header with them."""
    scheme, _, rest = address.partition("//")
    user, at, host = rest.partition("/")[0].rpartition("@")
    if not at:
        return address, headers
    signed = b64encode(unquote(user).encode()).decode()
    return f"{scheme}//{host}{rest[len(user) + 1 + len(host) :]}", {"authorization": f"Basic {signed}", **headers}


@cache
def _load_certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # 20 ms: once for all clients


def _make_client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=KEPT)
    return httpx.AsyncClient(verify=_load_certificates(), limits=limits)


class _KeptClients:
    """The clients of one event loop that no query uses, each with its connection; the newest is used next."""

    def __init__(self) -> None:
        self.users = 0
        """The number of blocks that keep connections; without any, a client is closed after its query."""
        self._unused: deque[tuple[float, httpx.AsyncClient]] = deque()
        """Each client with the time of its last query, oldest first."""

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client that no other query uses meanwhile."""
        client = self._unused.pop()[1] if self._unused else _make_client()
        try:
            yield client
        finally:
            now = anyio.current_time()
            self._unused.append((now, client))
            await self.close(before=now - KEPT if self.users else math.inf)

    async def close(self, before: float = math.inf) -> None:
        """Close the clients that have not been used since that time."""
        with anyio.CancelScope(shield=True):
            while self._unused and self._unused[0][0] < before:
                await self._unused.popleft()[1].aclose()


class Client:
    """Posts to one provider. The key is read for each query, so that a new one is used at once."""

    def __init__(
        self,
        provider: str,
        base_url: str,
        *,
        key: Callable[[], str | None],
        key_header: tuple[str, str],
        headers: Mapping[str, str],
        access: Access | None,
        connection: ConnectionSettings,
    ) -> None:
        self.provider = provider
        base_url, headers = _move_password(base_url, {**headers, **(connection.get("headers") or {})})
        try:
            httpx.URL(base_url)
        except httpx.InvalidURL:  # its text may repeat a piece of a password
            raise InvalidCantrip(
                f"{provider}: base_url: expected an address such as https://api.example/v1, got "
                f"{render_url(base_url)}; write %40, %2F, %3F, %23 for @, /, ?, # in a password"
            ) from None
        client, record = connection.get("client"), connection.get("record")
        expected = "an AsyncClient of httpx or httpx2, or None"
        check(client is None or is_http_client(client), f"{provider}: client", expected, client, InvalidCantrip)
        self.base_url = base_url
        self.timeouts = connection.get("timeouts") or Timeouts()
        self._key = key
        self._key_header, self._before_key = key_header
        self._headers = {name.lower(): value for name, value in headers.items()}  # else a key would be sent beside it
        self._access = access
        self._secret_headers = _find_secret_headers(headers)
        self._client = client
        self._record = None if record is None else Path(record)
        self._open: dict[EventLoopToken, _KeptClients] = {}

    @property
    def secrets(self) -> Mapping[str, str]:
        """The secrets that must not leave the runtime, except the key: headers, and an access's credentials."""
        return self._secret_headers if self._access is None else {**self._secret_headers, **self._access.secrets}

    async def run(
        self, request: ProviderRequest, decoder: Decoder, emit: Callable[[Payload], None] | None = None
    ) -> Response:
        """Post, and decode the response; `emit` gets the payloads as they arrive.

        Raises ProviderError if the provider fails or stalls, CrystalError if its answer breaks the contract.
        """
        heard = _Hearing(decoder, emit, self._record, self._scrub)
        try:
            with anyio.move_on_after(self.timeouts.first) as scope:
                await self._stream(request, heard, scope)
            if heard.error is not None:
                raise heard.error
            if scope.cancelled_caught and not (decoder.complete or decoder.over):
                raise self._make_stall_error(decoder)
            response = decoder.finish()
        except get_http_errors("HTTPError") as error:
            raise self._make_unreachable_error(error) from None  # its request has the key
        except CrystalError as error:
            error.args = (self._scrub(_redact(str(error), request.secrets)),)
            if decoder.draft.started:
                heard.tell(decoder.fail(error))
            raise
        heard.tell(decoder.draft.take())
        await heard.save()
        return response

    async def fetch(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], largest: int = LARGEST_ANSWER
    ) -> bytes:
        """Return the whole body of the response to a request other than a query.

        Raises ProviderError if the provider fails or stalls, or sends more than `largest` bytes.
        """
        try:
            with anyio.fail_after(self.timeouts.first):
                async with self._request(method, self.make_url(path), body, headers) as response:
                    if response.status_code >= 300:
                        raise await self._read_refusal(response)
                    answer = await read_body(response, self.provider, largest)
                    if largest == LARGEST_ANSWER:  # of a larger file, each line is checked
                        check_values(answer)
                    return answer
        except get_http_errors("HTTPError") as error:
            raise self._make_unreachable_error(error) from None  # its request has the key
        except TimeoutError:
            raise ProviderError(f"{self.provider}: no whole answer came for {self.timeouts.first:g} s") from None

    async def _stream(self, request: ProviderRequest, heard: _Hearing, scope: anyio.CancelScope) -> None:
        """Read until the end, or until the answer is complete: then the scope is cancelled, so that reading ends where
        it waits. Breaking out of the loop would leave httpx's generators to the garbage collector.
        """
        url = self.make_url(request.path)
        for _ in range(REDIRECTS):
            async with self._request("POST", url, request.body, request.headers) as response:
                moved = _find_redirect_address(response)
                if moved is None:
                    await self._hear(response, heard, scope)
                    return
                url = moved
        raise ProviderError(f"{self.provider}: {self.address} sends us on and on: check the provider's address")

    async def _hear(self, response: httpx.Response, heard: _Hearing, scope: anyio.CancelScope) -> None:
        decoder, is_complete = heard.decoder, False
        if response.status_code >= 300:
            raise await self._read_refusal(response)
        answer = Body(response, self.provider, LARGEST_ANSWER, scope)
        try:
            async for chunk in answer:
                further = heard.hear(chunk)
                if heard.error is not None or (decoder.over and not self._is_shared):
                    answer.stop()
                elif decoder.over:
                    scope.deadline = min(scope.deadline, anyio.current_time() + END)
                elif decoder.complete and not is_complete:
                    is_complete = True
                    scope.deadline = anyio.current_time() + GRACE
                elif further:  # some servers mark each of their chunks as the last
                    scope.deadline = anyio.current_time() + (GRACE if is_complete else self.timeouts.between)
        except get_http_errors("HTTPError"):
            if not decoder.complete:
                raise
        finally:
            if not decoder.complete:
                heard.error = heard.error or answer.error
        heard.hear(None)

    # Connections

    @property
    def _is_shared(self) -> bool:
        return self._client is not None or bool(self._open)

    def make_url(self, path: str) -> str:
        """Return the address of a path, with the query of the base address and that of the path.

        A whole address, as that of a bucket, is unchanged.
        """
        if path.startswith(("https://", "http://")):
            return path
        base, _, query = self.base_url.partition("?")
        path, _, more = path.partition("?")
        queries = "&".join(part for part in (query, more) if part)
        return f"{base.rstrip('/')}{path}{'?' if queries else ''}{queries}"

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, body: bytes, own: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Return the response to a request; if its credentials are refused, that to the same request with new ones."""
        check_query(self.provider, url)
        async with self._open_client() as client:
            async with self._send(client, method, url, body, own) as response:
                if self._access is None or self._choose_key(url) or response.status_code not in _NO_ACCESS:
                    yield response
                    return
            self._access.forget()
            async with self._send(client, method, url, body, own) as response:
                yield response

    def _choose_key(self, url: str) -> str | None:
        """Return the key of a request to this address; None if another access is meant for it."""
        return None if self._access is not None and self._access.is_alone_at(url) else self._key()

    @asynccontextmanager
    async def _send(
        self, client: UserClient, method: str, url: str, body: bytes, own: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        key = self._choose_key(url)
        if key and not (key.isascii() and key.isprintable()):
            raise CrystalError(f"{self.provider}: the API key has characters that no key has: was more copied than it?")
        headers = {
            **{name.lower(): value for name, value in REQUEST_HEADERS.get().items()},
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # a compressed stream waits for its block to fill
            **({self._key_header: self._before_key + key} if key else {}),
            **self._headers,
        }
        for name, value in own.items():
            headers[name] = f"{headers[name]},{value}" if name in headers and name != "content-type" else value
        if not key and self._access is not None:
            headers.update(await self._access.make_headers(method, url, body))
        timeout = (self.timeouts.connect, None, None, None)  # connect, read, write, pool
        async with client.stream(method, url, content=body, headers=headers, timeout=timeout) as response:
            yield cast("httpx.Response", response)  # one of httpx2 has the same interface

    @asynccontextmanager
    async def _open_client(self) -> AsyncIterator[UserClient]:
        kept = self._open.get(current_token()) if self._open else None
        if self._client is not None:
            yield self._client
        elif kept is not None:
            async with kept.borrow() as client:
                yield client
        else:
            async with _make_client() as client:
                yield client

    async def __aenter__(self) -> Self:
        """Keep connections from now on, in this event loop. May be nested."""
        self._open.setdefault(current_token(), _KeptClients()).users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept = self._open[current_token()]
        kept.users -= 1
        if not kept.users:
            del self._open[current_token()]
            await kept.close()

    # Errors

    async def _read_refusal(self, response: httpx.Response) -> ProviderError:
        body = b""
        with anyio.move_on_after(GRACE) as scope:  # the status is known, so the body is optional
            refusal = Body(response, self.provider, LARGEST_ANSWER, scope)
            async for chunk in refusal:
                body += chunk
                if len(body) > ERROR_BYTES:
                    refusal.stop()
        text = self._scrub(body.decode(errors="replace"))
        if response.status_code < 400:
            where = self._scrub(render_url(response.headers.get("location", "elsewhere")))
            error = f"{self.provider}: {self.address} sends us to {where}: check the provider's address"
            return ProviderError(error, status=response.status_code, retryable=False)
        try:
            details: Any = orjson.loads(text)
        except orjson.JSONDecodeError:
            details = text
            if text.lstrip().startswith("<"):
                details = _parse_xml_error(text) or f"a page with status {response.status_code} instead of an answer"
        return make_failure(self.provider, response.status_code, details, response.headers, time.time())

    def _make_stall_error(self, decoder: Decoder) -> ProviderError:
        if decoder.draft.started:
            return ProviderError(f"{self.provider}: no more came for {self.timeouts.between:g} s (between tokens)")
        return ProviderError(f"{self.provider}: nothing came for {self.timeouts.first:g} s (first token)")

    def _make_unreachable_error(self, error: Exception) -> ProviderError:
        message = self._scrub(str(error))
        kind = type(error).__name__
        description = f"{kind}: {message}" if message else kind
        return ProviderError(
            f"{self.provider} could not be reached: {description}",
            retryable=False
            if isinstance(error, get_http_errors("UnsupportedProtocol", "LocalProtocolError"))
            else None,
        )

    def _scrub(self, text: str) -> str:
        secrets = [self._key() or "", *self.secrets.values()]
        for secret in sorted((secret for secret in secrets if len(secret) >= _SHORTEST), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    @property
    def address(self) -> str:
        """Return the base address, without its query, which may have a key."""
        return render_url(self.base_url.partition("?")[0])

    def __repr__(self) -> str:
        return f"<client of {self.provider} at {self.address}>"


class _Hearing:
    """One answer as it arrives: split into events, decoded, emitted, and recorded for `replay` if the user wants that.

    `error` is kept until the connection is closed, and raised then.
    """

    def __init__(
        self,
        decoder: Decoder,
        emit: Callable[[Payload], None] | None,
        record: Path | None,
        scrub: Callable[[str], str],
    ) -> None:
        self.decoder = decoder
        self.error: CrystalError | None = None
        self._emit = emit
        self._framing = decoder.framing()
        self._record = record
        self._scrub = scrub
        self._lines: list[bytes] = []

    def hear(self, chunk: bytes | None) -> bool:
        """Read a chunk; None is the end of the response.

        Return whether the answer made progress: the work of tools is progress, a keep-alive is not.
        """
        if self.error is not None:
            return False
        try:
            return self._decode(self._framing.close() if chunk is None else self._framing.feed(chunk))
        except CrystalError as error:
            self.error = error
            return False

    def _decode(self, events: list[ServerSentEvent]) -> bool:
        further = False
        for event in events:
            if self._record is not None and event.data != b"[DONE]":
                self._lines.append(event.data.replace(b"\n", b" "))
            check_values(event.data)
            payloads = self.decoder.feed(event)
            further = further or self.decoder.moves
            if payloads:
                further = further or not (len(payloads) == 1 and isinstance(payloads[0], ResponseStart))
                self.tell(payloads)
        return further

    def tell(self, payloads: list[Payload]) -> None:
        """Emit the payloads to the observer."""
        if self._emit is not None:
            for payload in payloads:
                self._emit(payload)

    async def save(self) -> None:
        """Record an event on each line, if the response is complete: others cannot be replayed.

        An answer that cannot be recorded is an answer all the same, because it was paid for.
        """
        if self._record is None:
            return
        record, lines, scrub = self._record, self._lines, self._scrub

        def append() -> None:
            text = scrub(b"\n".join(lines).decode(errors="replace")) + "\n"
            record.parent.mkdir(parents=True, exist_ok=True)
            with record.open("ab", buffering=0) as file:  # in one piece, between those of other queries
                file.write(text.encode())

        try:
            await run_in_thread(append)
        except OSError as error:
            _log.warning("an answer cannot be recorded", file=str(record), why=error.strerror)

"""Log in at a server with OAuth: the SDK's flow, with tokens in files and a link that a person opens.

An entity never waits for a browser: if a person has to log in, its calls fail with `LoginNeeded`, which names the
command. The command listens on the loopback address for the browser that comes back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import orjson
from anyio.abc import SocketAttribute, SocketStream, TaskGroup
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from cantrip_actors.mcp.oauth import Login, OAuth, file_of
from cantrip_actors.own_files.modes import make_folder, private
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.tool_server import ToolServerError

CALLBACK: Final = "/callback"
LONGEST: Final = 16_384
"""The maximum bytes read of a browser's request."""

EARLY: Final = 30.0
"""A token is refreshed this many seconds before it expires."""

_WRITING: Final = threading.Lock()

_log = get_logger("cantrip_actors.mcp")


class LoginNeeded(ToolServerError):
    """A person has to log in at the server first."""


async def authentication(login: OAuth | Login, url: str, tasks: TaskGroup) -> httpx2.Auth:
    """Return the authentication that adds the token to each request for a server and refreshes it when needed.

    `tasks` have to run for as long as it is used.
    """
    if isinstance(login, Login):
        return _Person(login.oauth, url, await _Browser.listen(login, tasks))
    return _Person(login, url, None) if login.client_secret is None else _Machine(login, url)


class _Tokens:
    """The tokens of one server, in a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.context: Any = None
        """The SDK's context of the server."""

    async def load(self, url: str) -> Mapping[str, Any] | None:
        """Return the stored login of the server; None if it is missing or unreadable."""
        try:
            stored = orjson.loads(await anyio.Path(self._path).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            _log.warning("tokens of a server cannot be read", path=str(self._path), problem=str(problem))
            return None
        return stored if isinstance(stored, dict) and stored.get("url") == url else None

    async def get_tokens(self) -> OAuthToken | None:
        """Return None: `load` returns the tokens, with all that belongs to them."""
        return None

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return None: `load` returns the client with its tokens."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens, with their client and the metadata of their issuer."""
        context = self.context
        metadata, client = context.oauth_metadata, context.client_info
        lasts = tokens.expires_in
        stored = {
            "url": context.server_url,
            "issuer": None if metadata is None else str(metadata.issuer),
            "tokens": tokens.model_dump(mode="json", exclude_none=True),
            "expires_at": None if lasts is None else time.time() + lasts,
            "client": None if client is None else client.model_dump(mode="json", exclude_none=True),
            "metadata": None if metadata is None else metadata.model_dump(mode="json", exclude_none=True),
        }
        await anyio.to_thread.run_sync(self._write, orjson.dumps(stored))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Do nothing: a client is stored with its tokens."""

    def _write(self, text: bytes) -> None:
        make_folder(self._path.parent)
        new = self._path.with_suffix(f".{os.getpid()}.new")
        with _WRITING:  # two connections of this process may have one login
            with open(new, "wb", opener=private) as file:  # Path.open has no opener
                file.write(text)
            new.replace(self._path)

    async def restore(self, context: Any, url: str) -> bool:
        """Load the stored login into the SDK's context; return whether there are tokens."""
        stored = await self.load(url)
        if stored is None:
            return False
        try:
            tokens = OAuthToken.model_validate(stored["tokens"])
            client = stored.get("client") and OAuthClientInformationFull.model_validate(stored["client"])
            metadata = stored.get("metadata") and OAuthMetadata.model_validate(stored["metadata"])
        except (KeyError, ValidationError):
            _log.warning("tokens of a server cannot be read", path=str(self._path), problem="they are incomplete")
            return False
        context.current_tokens, context.client_info = tokens, client
        context.oauth_metadata = metadata
        if stored.get("issuer"):
            context.auth_server_url = str(stored["issuer"])
        expires = stored.get("expires_at")
        context.token_expiry_time = None if expires is None else float(expires) - EARLY
        return True


class _Person(OAuthClientProvider):
    """A person's login, in the `browser` now or earlier."""

    def __init__(self, login: OAuth, url: str, browser: _Browser | None) -> None:
        self._given = login
        self._browser = browser
        self._tokens = _Tokens(file_of(login, url))
        callback = "http://127.0.0.1/callback" if browser is None else browser.url
        super().__init__(
            url,
            OAuthClientMetadata(
                client_name="cantrip",
                redirect_uris=[AnyUrl(callback)],
                token_endpoint_auth_method="none",  # noqa: S106  # no password: a public client
                scope=" ".join(login.scopes) or None,
            ),
            self._tokens,
            None if browser is None else browser.show,
            None if browser is None else browser.answer,
        )
        self._tokens.context = self.context

    async def _initialize(self) -> None:
        """Load the tokens, unless a person is logging in. Raises LoginNeeded."""
        context, login = self.context, self._given
        if self._browser is None and not await self._tokens.restore(context, context.server_url):
            raise _make_login_needed(context.server_url)
        if login.client_id is not None:
            context.client_info = OAuthClientInformationFull(
                client_id=login.client_id,
                redirect_uris=context.client_metadata.redirect_uris,
                token_endpoint_auth_method="none",  # noqa: S106  # likewise
                issuer=login.issuer,
            )
        self._initialized = True

    async def _perform_authorization(self) -> httpx2.Request:
        if self._browser is None:  # the server refuses the tokens, and they cannot be refreshed
            raise _make_login_needed(self.context.server_url)
        return await super()._perform_authorization()


class _Machine(ClientCredentialsOAuthProvider):
    """A login with the credentials of this program itself."""

    def __init__(self, login: OAuth, url: str) -> None:
        assert login.client_id is not None, "oauth() checks it"
        assert login.client_secret is not None, "likewise"
        tokens = _Tokens(file_of(login, url))
        scope = " ".join(login.scopes) or None
        super().__init__(url, tokens, login.client_id, login.client_secret, scope=scope, issuer=login.issuer)
        self._tokens = tokens
        tokens.context = self.context

    async def _initialize(self) -> None:
        """Load the tokens."""
        await self._tokens.restore(self.context, self.context.server_url)
        self.context.client_info = self._fixed_client_info
        self._initialized = True


def _make_login_needed(url: str) -> LoginNeeded:
    return LoginNeeded(f"no user is logged in there: run `cantrip mcp login {url}`")


class _Browser:
    """Waits on the loopback address for the browser of the person who logs in."""

    def __init__(self, login: Login, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}{CALLBACK}"
        self._show = login.show
        self._state = ""
        self._came = anyio.Event()
        self._result: AuthorizationCodeResult | None = None
        self._problem = ""

    @classmethod
    async def listen(cls, login: Login, tasks: TaskGroup) -> _Browser:
        """Listen for as long as the tasks run."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=login.port)
        browser = cls(login, listener.extra(SocketAttribute.local_port))  # noqa: S610  # no Django

        async def serve() -> None:
            async with listener:
                await listener.serve(browser._serve)

        tasks.start_soon(serve)
        return browser

    async def show(self, link: str) -> None:
        """Show the person the link; the program never opens it."""
        self._state = parse_qs(urlsplit(link).query).get("state", [""])[0]
        self._show(link)

    async def answer(self) -> AuthorizationCodeResult:
        """Return the authorization server's answer, which the browser brings. Raises ToolServerError if it refuses."""
        await self._came.wait()
        if self._result is None:
            raise ToolServerError(f"the login was refused: {self._problem}")
        return self._result

    async def _serve(self, stream: SocketStream) -> None:
        # browsers also open connections in advance, and close them without a request
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await self._answer_request(stream)

    async def _answer_request(self, stream: SocketStream) -> None:
        async with stream:
            head = b""
            with anyio.move_on_after(10):
                while b"\r\n\r\n" not in head and len(head) < LONGEST:
                    head += await stream.receive()
            status, message = self._read(head)
            page = f"<!doctype html><meta charset=utf-8><title>cantrip</title><p>{message}".encode()
            fields = f"content-type: text/html; charset=utf-8\r\ncontent-length: {len(page)}\r\nconnection: close"
            await stream.send(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + page)

    def _read(self, head: bytes) -> tuple[str, str]:
        """Read a browser's request; return the status and the text of the answer."""
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        try:
            target = urlsplit(words[1] if len(words) == 3 else "")  # method, target, version
        except ValueError:  # brackets without an IPv6 address
            target = urlsplit("")
        fields = {name: values[0] for name, values in parse_qs(target.query).items()}
        if target.path != CALLBACK or not self._state or fields.get("state") != self._state:
            return "404 Not Found", "This does not answer the login that is under way."
        if "code" in fields:
            self._result = AuthorizationCodeResult(code=fields["code"], state=fields["state"], iss=fields.get("iss"))
        else:
            self._problem = (fields.get("error_description") or fields.get("error") or "no code came back")[:500]
        self._came.set()
        return "200 OK", "You may close this page." if self._result else "The login was refused."


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return whether to log the traceback of an SDK line; for expected errors the caller gets a message instead."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ToolServerError)


logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_worth_logging)

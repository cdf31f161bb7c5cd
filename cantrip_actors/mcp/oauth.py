"""OAuth logins at servers behind a URL, as values. The flow itself is in `oauth_flow.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cantrip_actors.terms.arguments import check_kind, read_texts
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.secure_url import is_secure_url

FOLDER: Final = Path(".cantrip", "oauth")
"""The folder for tokens, below the user's home folder: no gate reads a folder called `.cantrip`."""


@dataclass(frozen=True, kw_only=True)
class OAuth:
    """A login with OAuth. Make one with `oauth`."""

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    issuer: str | None = None
    scopes: tuple[str, ...] = ()
    folder: str | None = None

    @property
    def path(self) -> Path:
        """The folder of the tokens."""
        return Path.home() / FOLDER if self.folder is None else Path(self.folder)


def file_of(login: OAuth, url: str) -> Path:
    """Return the file of the tokens for one server."""
    return login.path / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True)
class Login:
    """A login during which a person opens a link in a browser; `show` gets the link."""

    oauth: OAuth
    show: Callable[[str], object]
    port: int = 0


def oauth(
    *,
    client_id: str | None = None,
    client_secret: str | None = None,
    issuer: str | None = None,
    scopes: Iterable[str] = (),
    folder: str | None = None,
) -> OAuth:
    """Return a login with OAuth, for `http(…, auth=oauth())`.

    A person logs in once, with `cantrip mcp login URL`; from then on the tokens are refreshed without one. `client_id`
    is that of a client that is registered with the authorization server; without it, one is registered.

    `client_id`, `client_secret` and `issuer` together are the client's own credentials (the grant
    `client_credentials`): no person logs in, and they are sent only to the authorization server with that `issuer`.

    Tokens are kept in `folder` (`~/.cantrip/oauth`), in files of mode 0600, one a server, that name their issuer.

    Raises InvalidCantrip for a secret without a client or an issuer, and for an issuer that is not an https URL.
    """
    if client_secret is not None and (client_id is None or issuer is None):
        raise InvalidCantrip("oauth: client_secret needs client_id and issuer, the authorization server that made them")
    check_kind("oauth: issuer", issuer, str | None, "an https URL", InvalidCantrip)
    for what, value in (("client_id", client_id), ("client_secret", client_secret), ("folder", folder)):
        check_kind(f"oauth: {what}", value, str | None, "a text", InvalidCantrip)
    if issuer is not None and not is_secure_url(issuer):
        raise InvalidCantrip(f"oauth: issuer: expected an https URL, got {issuer!r}")
    wanted = read_texts("oauth: scopes", scopes, "a list of texts", InvalidCantrip)
    return OAuth(client_id=client_id, client_secret=client_secret, issuer=issuer, scopes=wanted, folder=folder)

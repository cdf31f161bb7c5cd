"""Authorization: bearer tokens with scopes and tenants, from a file, or one token for this run.

The file has the SHA-256 of each token and never the token itself. A token without a tenant sees the whole loom. If any
token of the file has a tenant, a token without one needs the scope `admin`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from cantrip_actors.http.bodies import Strict
from cantrip_actors.own_files.modes import make_folder, private
from cantrip_actors.records.tenant import check_tenant
from cantrip_actors.terms.errors import CantripError, suggest_nearest

SCOPES: Final = (
    *("read", "observe", "cast", "send", "steer", "stop", "approve", "reward", "dispatch", "secrets", "admin"),
)
"""The scopes of tokens. `admin` allows everything and sees all tenants."""

PREFIX: Final = "ct_"
"""The prefix of tokens, so that scanners for leaked secrets find them."""


class InvalidTokens(CantripError, ValueError):
    """A file of tokens is invalid, or a token cannot be created."""


@dataclass(frozen=True, slots=True)
class Token:
    """The properties of a token. `cantrips` are the names that it may use: it may cast these, and sees and reaches the
    entities that were cast with them, and what is below those; None allows all.
    """

    name: str
    digest: str
    scopes: frozenset[str]
    tenant: str | None = None
    expires: datetime | None = None
    cantrips: frozenset[str] | None = None
    max_concurrent: int | None = None
    max_cost_per_day: float | None = None
    """In US dollars; a day is one of UTC."""
    requests_per_minute: float | None = None
    max_streams: int | None = None
    max_body: float | None = None
    """The largest body of a request, in MiB. These replace the limits of the service."""

    def allows(self, scope: str) -> bool:
        """Return whether the token has a scope."""
        return scope in self.scopes or "admin" in self.scopes

    def may_cast(self, cantrip: str) -> bool:
        """Return whether the token may use a cantrip."""
        return self.cantrips is None or cantrip in self.cantrips

    @property
    def sees_all(self) -> bool:
        """Whether the token sees the whole loom: it has no tenant, and is not limited to some cantrips."""
        return self.tenant is None and self.cantrips is None

    def is_expired(self, now: datetime | None = None) -> bool:
        """Return whether the token's time is over."""
        return self.expires is not None and self.expires <= (now or datetime.now(UTC))

    @property
    def sender(self) -> str:
        """The token's name in records."""
        return f"token:{self.name}"


ANYONE: Final = Token("anyone", "", frozenset({"admin"}))
"""The token of a service without authentication."""


class _TokenRow(Strict):
    name: str = Field(min_length=1, max_length=100, pattern=r"^[\w.@-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: list[str]
    tenant: str | None = None
    expires: datetime | date | None = None
    cantrips: list[str] | None = None
    max_concurrent: int | None = Field(default=None, ge=1)
    max_cost_per_day: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    requests_per_minute: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_streams: int | None = Field(default=None, ge=1)
    max_body: float | None = Field(default=None, gt=0, le=1024)


class _File(Strict):
    token: list[_TokenRow] = Field(default_factory=list)


class Tokens:
    """The tokens that a service knows."""

    def __init__(self, tokens: Iterable[Token], path: Path | None = None) -> None:
        self._path = path
        self._tokens = _index_by_digest(tokens)

    @classmethod
    def of_file(cls, path: Path) -> Tokens:
        """Read a file of tokens. Raises InvalidTokens."""
        return cls(_read(path), path)

    def reload(self) -> None:
        """Read the file again. Raises InvalidTokens; the tokens stay as they were then."""
        if self._path is not None:
            self._tokens = _index_by_digest(_read(self._path))

    def find(self, text: str, now: datetime | None = None) -> Token | None:
        """Return the token of a text; None for an unknown or expired one."""
        digest = digest_of(text)
        token = self._tokens.get(digest)
        if token is None or not hmac.compare_digest(token.digest, digest):
            return None
        return None if token.is_expired(now) else token

    def has_lost(self, token: Token, now: datetime | None = None) -> bool:
        """Return whether a token that was found before may now do less: it is gone, has expired, or lost a right."""
        known = self._tokens.get(token.digest)
        if known is None or known.is_expired(now) or known.tenant != token.tenant:
            return True
        lost_scope = not all(map(known.allows, token.scopes))
        lost_cantrip = known.cantrips is not None and not (
            token.cantrips is not None and token.cantrips <= known.cantrips
        )
        return lost_scope or lost_cantrip


def digest_of(text: str) -> str:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    """Return a new token: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def add_token(path: Path, name: str, scopes: Iterable[str], tenant: str | None = None) -> str:
    """Make a token, add it to a file (created if missing), and return the token. Raises InvalidTokens."""
    text = new_token()
    tokens = list(_read(path)) if path.exists() else []
    token = _read_token(_TokenRow(name=name, sha256=digest_of(text), scopes=list(scopes), tenant=tenant), path)
    _check([*tokens, token], path)
    lines = ["[[token]]", f"name = {_quote(name)}", f'sha256 = "{token.digest}"']
    lines.append(f"scopes = [{', '.join(_quote(scope) for scope in sorted(token.scopes))}]")
    if tenant is not None:
        lines.append(f"tenant = {_quote(tenant)}")
    make_folder(path.parent)
    with open(path, "a", encoding="utf-8", opener=private) as file:
        file.write("\n".join(["", *lines, ""]) if os.fstat(file.fileno()).st_size else "\n".join([*lines, ""]))
    return text


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _index_by_digest(tokens: Iterable[Token]) -> dict[str, Token]:
    return {token.digest: token for token in tokens}


def _read(path: Path) -> list[Token]:
    try:
        parsed: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        file = _File.model_validate(parsed)
    except OSError as error:
        raise InvalidTokens(f"{path}: the tokens cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise InvalidTokens(f"{path}: expected TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidTokens(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    tokens = [_read_token(row, path) for row in file.token]
    _check(tokens, path)
    return tokens


def _read_token(row: _TokenRow, path: Path) -> Token:
    for scope in row.scopes:
        if scope not in SCOPES:
            raise InvalidTokens(
                f'{path}: token "{row.name}": unknown scope "{scope}": {suggest_nearest(scope, SCOPES)}'
            )
    if not row.scopes:
        raise InvalidTokens(f'{path}: token "{row.name}": expected at least one scope of {", ".join(SCOPES)}')
    if row.tenant is not None:
        try:
            check_tenant(row.tenant)
        except ValueError as error:
            raise InvalidTokens(f'{path}: token "{row.name}": {error}') from error
    expires = row.expires
    if expires is not None and not isinstance(expires, datetime):
        expires = datetime(expires.year, expires.month, expires.day, tzinfo=UTC)
    elif expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    cantrips = None if row.cantrips is None else frozenset(row.cantrips)
    return Token(
        row.name,
        row.sha256,
        frozenset(row.scopes),
        row.tenant,
        expires,
        cantrips,
        row.max_concurrent,
        row.max_cost_per_day,
        row.requests_per_minute,
        row.max_streams,
        row.max_body,
    )


def _check(tokens: list[Token], path: Path) -> None:
    """Raise InvalidTokens for two tokens with one name, and for one that would see other tenants' entities."""
    names = [token.name for token in tokens]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidTokens(f'{path}: two tokens are called "{twice}": records name a token by its name')
    has_tenants = any(token.tenant is not None for token in tokens)
    for token in tokens:
        if token.tenant is not None and "admin" in token.scopes:
            raise InvalidTokens(f'{path}: token "{token.name}": admin sees all tenants, so it has no tenant of its own')
        if has_tenants and token.tenant is None and "admin" not in token.scopes:
            raise InvalidTokens(
                f'{path}: token "{token.name}" would see all tenants: give it a tenant, or the scope admin'
            )

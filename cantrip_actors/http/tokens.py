"""Authorization: bearer tokens with scopes and tenants, from a file, or one token for this run.

The file has the SHA-256 of each token and never the token itself; it also names the authorization servers whose tokens
count (`issuers.py`). A token without a tenant sees the whole loom. If any token of the file has a tenant, a token
without one needs the scope `admin`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from cantrip_actors.http.bodies import Strict, validate
from cantrip_actors.http.issuers import Issuer, Issuers, make_issuer
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.token import SCOPES, Token
from cantrip_actors.own_files.modes import make_folder, private
from cantrip_actors.records.tenant import check_tenant
from cantrip_actors.terms.errors import CantripError, suggest_nearest

PREFIX: Final = "ct_"
"""The prefix of tokens, so that scanners for leaked secrets find them."""


_DIGEST: Final = re.compile("[0-9a-f]{64}")


class InvalidTokens(CantripError, ValueError):
    """A file of tokens is invalid, or a token cannot be created."""


class _Limits(Strict):
    name: str = Field(min_length=1, max_length=100, pattern=r"^[\w.@-]+$")
    cantrips: list[str] | None = None
    max_concurrent: int | None = Field(default=None, ge=1)
    max_cost_per_day: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    requests_per_minute: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_streams: int | None = Field(default=None, ge=1)
    max_body: float | None = Field(default=None, gt=0, le=1024)


class _TokenRow(_Limits):
    sha256: str
    scopes: list[str]
    tenant: str | None = None
    expires: datetime | date | None = None


class _IssuerRow(_Limits):
    url: str
    resource: str
    scopes: list[str]
    audience: str | None = None
    tenant_claim: str | None = None
    jwks_url: str | None = None
    blocked: list[str] = Field(default_factory=list)


class _File(Strict):
    token: list[_TokenRow] = Field(default_factory=list)
    issuer: list[_IssuerRow] = Field(default_factory=list)


class Tokens:
    """The tokens that a service knows, and the authorization servers whose tokens it accepts."""

    def __init__(
        self,
        tokens: Iterable[Token],
        path: Path | None = None,
        issuers: Iterable[Issuer] = (),
        scopes: Collection[str] = SCOPES,
    ) -> None:
        self._path = path
        self._scopes = scopes
        self._tokens = _index_by_digest(tokens)
        self.issuers: Issuers = Issuers(issuers)

    @classmethod
    def of_file(cls, path: Path, scopes: Collection[str] = SCOPES) -> Tokens:
        """Read a file of tokens, which may have these scopes. Raises InvalidTokens."""
        tokens, issuers = _read(path, scopes)
        return cls(tokens, path, issuers, scopes)

    def reload(self) -> None:
        """Read the file again. Raises InvalidTokens; the tokens stay as they were then."""
        if self._path is not None:
            tokens, issuers = _read(self._path, self._scopes)
            self._tokens, self.issuers = _index_by_digest(tokens), Issuers(issuers)

    def find(self, text: str) -> Token | None:
        """Return the token of the file with this text; None for an unknown or expired one."""
        digest = digest_of(text)
        token = self._tokens.get(digest)
        if token is None or not hmac.compare_digest(token.digest, digest):
            return None
        return None if token.is_expired() else token

    async def identify(self, text: str) -> Token | None:
        """Return the token with this text, of the file or of an authorization server; None for one that is not valid.

        Raises IssuerUnreachable.
        """
        return self.find(text) or await self.issuers.find(text)

    def has_lost(self, token: Token) -> bool:
        """Return whether a token that was found before may now do less: it is gone, has expired, or lost a right."""
        current = self._tokens.get(token.digest) if token.claims is None else self.issuers.grant(token.claims)
        return token.is_reduced_to(current)


def digest_of(text: str) -> str:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    """Return a new token: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def add_token(
    path: Path, name: str, scopes: Iterable[str], tenant: str | None = None, known: Collection[str] = SCOPES
) -> str:
    """Make a token, add it to a file (created if missing), and return the token. Its scopes are among the `known` ones.

    Raises InvalidTokens.
    """
    text = new_token()
    tokens, issuers = _read(path, known) if path.exists() else ([], [])
    token = _read_token(_TokenRow(name=name, sha256=digest_of(text), scopes=list(scopes), tenant=tenant), path, known)
    _check([*tokens, token], issuers, path)
    lines = ["[[token]]", f"name = {_quote(name)}", f'sha256 = "{token.digest}"']
    lines.append(f"scopes = [{', '.join(_quote(scope) for scope in sorted(token.scopes))}]")
    if tenant is not None:
        lines.append(f"tenant = {_quote(tenant)}")
    try:
        make_folder(path.parent)
        with open(path, "a", encoding="utf-8", opener=private) as file:
            file.write("\n".join(["", *lines, ""]) if os.fstat(file.fileno()).st_size else "\n".join([*lines, ""]))
    except OSError as error:
        raise InvalidTokens(f"{path}: the token cannot be added: {error.strerror}") from error
    return text


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _index_by_digest(tokens: Iterable[Token]) -> dict[str, Token]:
    return {token.digest: token for token in tokens}


def _read(path: Path, scopes: Collection[str]) -> tuple[list[Token], list[Issuer]]:
    try:
        parsed: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidTokens(f"{path}: the tokens cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise InvalidTokens(f"{path}: expected TOML: {error}") from error
    for name in _File.model_fields:
        if isinstance(parsed.get(name), dict):
            raise InvalidTokens(f"{path}: {name}: expected a table [[{name}]] for each, got [{name}]")
    try:
        file = validate(_File, parsed, strict=False)
    except Problem as problem:
        raise InvalidTokens(f"{path}: {problem.detail}") from None
    tokens = [_read_token(row, path, scopes) for row in file.token]
    issuers = [_read_issuer(row, path, scopes) for row in file.issuer]
    _check(tokens, issuers, path)
    return tokens, issuers


def _read_rights(row: _TokenRow | _IssuerRow, what: str, scopes: Collection[str]) -> Token:
    """Return the rights of all tokens of a row, as a token without a digest. Raises InvalidTokens."""
    for scope in row.scopes:
        if scope not in scopes:
            raise InvalidTokens(f'{what}: unknown scope "{scope}": {suggest_nearest(scope, scopes)}')
    if not row.scopes:
        raise InvalidTokens(f"{what}: expected at least one scope of {', '.join(scopes)}")
    limits = row.model_dump(include=set(_Limits.model_fields))
    cantrips = None if row.cantrips is None else frozenset(row.cantrips)
    return Token(**limits | {"scopes": frozenset(row.scopes), "cantrips": cantrips})


def _read_issuer(row: _IssuerRow, path: Path, scopes: Collection[str]) -> Issuer:
    what = f'{path}: issuer "{row.name}"'
    rights = _read_rights(row, what, scopes)
    try:
        return make_issuer(rights, **row.model_dump(exclude={*_Limits.model_fields, "scopes"}))
    except ValueError as error:
        raise InvalidTokens(f"{what}: {error}") from error


def _read_token(row: _TokenRow, path: Path, scopes: Collection[str]) -> Token:
    rights = _read_rights(row, f'{path}: token "{row.name}"', scopes)
    if not _DIGEST.fullmatch(row.sha256):  # the message does not repeat it: it may be the token itself
        raise InvalidTokens(
            f'{path}: token "{row.name}": sha256: expected the SHA-256 of the token, 64 digits 0-9 and a-f, got '
            f"{len(row.sha256)} characters: `cantrip serve token NAME` makes a token and its rows"
        )
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
    return replace(rights, digest=row.sha256, tenant=row.tenant, expires=expires)


def _check(tokens: list[Token], issuers: list[Issuer], path: Path) -> None:
    """Raise InvalidTokens for two tokens with one name, and for one that would see other tenants' entities."""
    names = [token.name for token in (*tokens, *(issuer.rights for issuer in issuers))]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidTokens(f'{path}: two tokens are called "{twice}": records name a token by its name')
    _check_issuers(issuers, path)
    has_tenants = any(token.tenant is not None for token in tokens) or any(issuer.tenant_claim for issuer in issuers)
    for issuer in issuers:
        name, is_admin = issuer.rights.name, "admin" in issuer.rights.scopes
        if issuer.tenant_claim is not None and is_admin:
            raise InvalidTokens(f'{path}: issuer "{name}": admin sees all tenants: leave out admin, or tenant_claim')
        if has_tenants and issuer.tenant_claim is None and not is_admin:
            raise InvalidTokens(
                f'{path}: issuer "{name}": its tokens would see all tenants: give it a tenant_claim, or the scope admin'
            )
    for token in tokens:
        if token.tenant is not None and "admin" in token.scopes:
            raise InvalidTokens(f'{path}: token "{token.name}": admin sees all tenants, so it has no tenant of its own')
        if has_tenants and token.tenant is None and "admin" not in token.scopes:
            raise InvalidTokens(
                f'{path}: token "{token.name}" would see all tenants: give it a tenant, or the scope admin'
            )


def _check_issuers(issuers: list[Issuer], path: Path) -> None:
    """Raise InvalidTokens for issuers that cannot be told apart, or that know the service by different URLs."""
    urls = [issuer.url for issuer in issuers]
    if len(set(urls)) < len(urls):
        raise InvalidTokens(f"{path}: two issuers have one url: tokens name their issuer by it")
    if len({issuer.resource for issuer in issuers}) > 1:
        raise InvalidTokens(f"{path}: issuers: expected one `resource` for all: it is the URL of this service")

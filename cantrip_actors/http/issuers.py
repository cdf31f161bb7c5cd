"""Authorization servers whose access tokens the service accepts: JSON Web Tokens (RFC 9068).

`Issuer.grant` says what the claims of a token allow, without a clock and without a network. `Issuers` checks the
signature with the keys that the server publishes. They are fetched when the first token needs one, and again when a
token names an unknown one. Only a published key makes a token valid: `none` and shared secrets are refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

from cantrip_actors.http.token import Token
from cantrip_actors.records.tenant import check_tenant
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.bounds import DEEPEST, is_deeper
from cantrip_actors.terms.errors import CantripError
from cantrip_actors.terms.exact_json import parse_exactly
from cantrip_actors.terms.secure_url import is_secure_url

if TYPE_CHECKING:
    import httpx

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SKEW: Final = 30.0
"""Seconds by which the clock of an authorization server may be ahead. The time of expiry has no tolerance."""
LONGEST: Final = 16 << 10
"""Characters of a token."""
FRESH: Final = 3600.0
"""Seconds after which keys are fetched again, so that a withdrawn one is forgotten."""
PAUSE: Final = 10.0
"""Seconds between two fetches: anyone can send a token that names an unknown key."""
PATIENCE: Final = 10.0
LARGEST: Final = 1 << 18
"""Bytes of a document of an authorization server."""

_log = get_logger("cantrip_actors.http")


class IssuerUnreachable(CantripError):
    """The keys of an authorization server cannot be read, so its tokens cannot be checked now."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """An authorization server. Make one with `make_issuer`.

    `rights` are the most that its tokens may do, and the limits of each of its users. `resource` is the URL of this
    service. Tokens are for one of the `audiences`. `tenant_claim` names the claim with the tenant. Tokens of `blocked`
    subjects are refused.
    """

    rights: Token
    url: str
    resource: str
    audiences: frozenset[str]
    tenant_claim: str | None = None
    jwks_url: str | None = None
    blocked: frozenset[str] = frozenset()

    def grant(self, claims: Mapping[str, Any]) -> Token | None:
        """Return the rights that the claims of a token give; None if it is for another service, or lacks a required
        claim.

        The caller has checked the signature; the time is checked by `Token.is_expired`.
        """
        subject, expires, audience = claims.get("sub"), _read_time(claims.get("exp")), claims.get("aud")
        audiences = {audience} if isinstance(audience, str) else _read_texts(audience)
        if claims.get("iss") != self.url or not self.audiences & audiences or expires is None:
            return None
        if not (isinstance(subject, str) and 0 < len(subject) <= 200 and subject.isprintable()):
            return None
        if subject in self.blocked:
            return None
        tenant = None
        if self.tenant_claim is not None:
            tenant = claims.get(self.tenant_claim)
            if not isinstance(tenant, str) or not _is_tenant(tenant):
                return None
        scopes = _read_texts(claims.get("scope")) | _read_texts(claims.get("scp"))
        return replace(
            self.rights,
            name=f"{self.rights.name}:{subject}",
            digest=_hash_identity(claims, subject),
            scopes=self.rights.scopes & scopes,
            tenant=tenant,
            expires=expires,
            claims=claims,
        )


def make_issuer(
    rights: Token,
    url: str,
    resource: str,
    *,
    audience: str | None = None,
    tenant_claim: str | None = None,
    jwks_url: str | None = None,
    blocked: Iterable[str] = (),
) -> Issuer:
    """Return an authorization server. Raises ValueError for a URL that is not https, and without the extra "oauth"."""
    for name, value in (("url", url), ("resource", resource), ("jwks_url", jwks_url)):
        if value is not None and not is_secure_url(value):
            raise ValueError(f"{name}: expected an https URL, got {value!r}")
    if urlsplit(resource).path.strip("/") or urlsplit(resource).query or urlsplit(resource).fragment:
        raise ValueError(f"resource: expected the URL of this service without a path, got {resource!r}")
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise ValueError("tokens of authorization servers need the extra: pip install 'cantrip-actors[oauth]'")
    base = resource.rstrip("/")
    audiences = frozenset({base, f"{base}/", f"{base}/mcp"}) if audience is None else frozenset({audience})
    return Issuer(rights, url, base, audiences, tenant_claim, jwks_url, frozenset(blocked))


class Issuers:
    """The authorization servers of a service, with their keys."""

    def __init__(self, issuers: Iterable[Issuer] = ()) -> None:
        self._keys = {issuer.url: _Keys(issuer) for issuer in issuers}

    def __iter__(self) -> Iterator[Issuer]:
        """Iterate over the servers."""
        return (keys.issuer for keys in self._keys.values())

    async def find(self, text: str) -> Token | None:
        """Return the token with this text; None for one that is not valid. Raises IssuerUnreachable."""
        if not self._keys:
            return None
        header, claims = _peek(text)
        keys = self._keys.get(str(claims.get("iss")))
        if keys is None or header.get("alg") not in ALGORITHMS:
            return None
        checked = _verify(text, header["alg"], await keys.find(header.get("kid")))
        token = None if checked is None else keys.issuer.grant(checked)
        return None if token is None or token.is_expired() else token

    def grant(self, claims: Mapping[str, Any]) -> Token | None:
        """Return the rights that checked claims give now; None if their server is not accepted any more."""
        keys = self._keys.get(str(claims.get("iss")))
        return None if keys is None else keys.issuer.grant(claims)


@dataclass(slots=True)
class _Keys:
    """The published keys of one server."""

    issuer: Issuer
    keys: Sequence[Mapping[str, Any]] = ()
    fetched_at: float = -FRESH
    tried_at: float = -PAUSE
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    async def find(self, key_id: object) -> list[Mapping[str, Any]]:
        """Return the keys with an id, or all if a token names none. Raises IssuerUnreachable if there are no keys."""
        is_fresh = anyio.current_time() - self.fetched_at < FRESH
        if not (self._select(key_id) and (is_fresh or self.lock.locked())):  # no token waits for a key that is there
            async with self.lock:
                await self._fetch(key_id)
        if not self.keys:
            raise IssuerUnreachable(f"the authorization server {self.issuer.url} has no keys to check tokens with")
        return self._select(key_id)

    async def _fetch(self, key_id: object) -> None:
        """Fetch the keys again, unless the key is there by now, or they were fetched just before."""
        now = anyio.current_time()
        if (self._select(key_id) and now - self.fetched_at < FRESH) or now - self.tried_at < PAUSE:
            return
        try:
            self.keys, self.fetched_at = await _fetch_keys(self.issuer), now
        except IssuerUnreachable as error:
            _log.warning("the keys of an authorization server stay as they were", why=str(error))
        self.tried_at = anyio.current_time()  # after an attempt that took long

    def _select(self, key_id: object) -> list[Mapping[str, Any]]:
        return [key for key in self.keys if key_id is None or key.get("kid") == key_id]


async def _fetch_keys(issuer: Issuer) -> list[Mapping[str, Any]]:
    """Return the keys that a server publishes. Raises IssuerUnreachable."""
    import httpx  # a service without authorization servers does not need it

    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            with anyio.fail_after(PATIENCE):
                url = issuer.jwks_url or await _find_keys_url(client, issuer.url)
                document = await _fetch(client, url)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        raise IssuerUnreachable(f"{issuer.url}: {str(error) or type(error).__name__}") from error
    keys = document.get("keys")
    if not isinstance(keys, list):
        raise IssuerUnreachable(f"{issuer.url}: expected a set of keys at {url}")
    return [key for key in keys if isinstance(key, dict) and key.get("use", "sig") == "sig"]


async def _find_keys_url(client: httpx.AsyncClient, issuer: str) -> str:
    """Return where a server says that its keys are. Raises ValueError, httpx.HTTPError."""
    import httpx

    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [  # OpenID Connect appends its path, RFC 8414 inserts it
        f"{base}{path}/.well-known/openid-configuration",
        f"{base}/.well-known/oauth-authorization-server{path}",
    ]
    error: Exception = ValueError("expected metadata")
    for place in places:
        try:
            metadata = await _fetch(client, place)
        except (httpx.HTTPError, ValueError) as problem:
            error = problem
            continue
        if metadata.get("issuer") != issuer:
            raise ValueError(f"{place} is about another issuer: {metadata.get('issuer')!r}")
        url = metadata.get("jwks_uri")
        if not (isinstance(url, str) and is_secure_url(url)):
            raise ValueError(f"{place}: jwks_uri: expected an https URL, got {url!r}")
        return url
    raise error


async def _fetch(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError, httpx.HTTPError."""
    async with client.stream("GET", url, headers={"accept": "application/json"}) as answer:
        if answer.status_code != HTTPStatus.OK:
            raise ValueError(f"{url} answers {answer.status_code}")
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > LARGEST:
                raise ValueError(f"{url} has more than {LARGEST} bytes")
    value = parse_exactly(body)
    if not isinstance(value, dict):
        raise ValueError(f"{url}: expected an object")  # noqa: TRY004  # a fault of the document
    return value


def _peek(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims of a token, unchecked; empty ones for a text that is not a JSON Web Token."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > LONGEST or not text.isascii():
        return {}, {}
    try:
        header, claims = (parse_exactly(base64.urlsafe_b64decode(part + "==")) for part in parts[:2])
    except ValueError:
        return {}, {}
    if not (isinstance(header, dict) and isinstance(claims, dict)) or is_deeper([header, claims], DEEPEST):
        return {}, {}
    return header, claims


def _verify(text: str, algorithm: str, keys: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the claims of a token that one of these keys has signed, and whose time has come; else None."""
    import jwt  # takes a tenth of a second, and most services never need it

    options: Any = {"require": ["exp", "iss", "sub", "aud"], "verify_aud": False}
    for key in keys:
        try:
            published = jwt.PyJWK(dict(key), None if "alg" in key else algorithm)
            return jwt.decode(text, published, algorithms=ALGORITHMS, options=options, leeway=SKEW)
        except jwt.PyJWTError:
            continue
    return None


def _read_texts(value: object) -> frozenset[str]:
    """Return the texts of a claim: a list, or one text with blanks between them."""
    if isinstance(value, str):
        return frozenset(value.split())
    return frozenset(text for text in value if isinstance(text, str)) if isinstance(value, list) else frozenset()


def _read_time(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _is_tenant(name: str) -> bool:
    try:
        check_tenant(name)
    except ValueError:
        return False
    return True


def _hash_identity(claims: Mapping[str, Any], subject: str) -> str:
    """Return the user and the client of a token, which stay the same when the client renews it."""
    client = claims.get("client_id") or claims.get("azp")
    return hashlib.sha256(repr((claims.get("iss"), subject, client)).encode()).hexdigest()

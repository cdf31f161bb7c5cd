"""The rights of a token: its scopes, its tenant, its cantrips and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

SCOPES: Final = (
    *("read", "observe", "cast", "send", "steer", "stop", "approve", "reward", "dispatch", "secrets", "inputs"),
    "admin",
)
"""The scopes of tokens. `inputs` reads what models are given; `admin` allows everything and sees all tenants."""


@dataclass(frozen=True, slots=True)
class Token:
    """The properties of a token. `cantrips` are the names that it may use: it may cast these, and sees and reaches the
    entities that were cast with them, and their children; None allows all.
    """

    name: str
    digest: str = ""
    scopes: frozenset[str] = frozenset()
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
    claims: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The claims of the authorization server that issued it; None for a token of the file."""
    connection: HTTPConnection | None = field(default=None, compare=False, repr=False)
    """The request that an authentication backend let in with it; None for other tokens."""

    is_authenticated: ClassVar[bool] = True

    @property
    def display_name(self) -> str:
        """The name: a token can be the user that an authentication backend of Starlette returns."""
        return self.name

    @property
    def identity(self) -> str:
        """The name, likewise."""
        return self.name

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

    def is_expired(self) -> bool:
        """Return whether the token's time is over."""
        return self.expires is not None and self.expires <= datetime.now(UTC)

    @property
    def sender(self) -> str:
        """The token's name in records."""
        return f"token:{self.name}"

    def is_reduced_to(self, token: Token | None) -> bool:
        """Return whether `token`, which this one has become, allows less: it is gone or expired, or lost a right."""
        if token is None or token.is_expired() or token.tenant != self.tenant:
            return True
        lost_scope = not all(map(token.allows, self.scopes))
        lost_cantrip = token.cantrips is not None and not (
            self.cantrips is not None and self.cantrips <= token.cantrips
        )
        return lost_scope or lost_cantrip


ANYONE: Final = Token("anyone", "", frozenset({"admin"}))
"""The token of a service without authentication."""

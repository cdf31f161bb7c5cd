"""`Webhook`: an address that gets events of a runtime, signed by the Standard Webhooks scheme. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from cantrip_actors.terms.arguments import check, check_seconds, is_list, is_text
from cantrip_actors.terms.secure_url import is_secure_url

WebhookKind = Literal[
    "request.opened",
    "request.decided",
    "episode.ended",
    "entity.ended",
    "entity.crashed",
    "budget.exceeded",
    "quarantine.began",
    "quarantine.ended",
]
"""The kinds of messages of a webhook: https://www.standardwebhooks.com calls the kind the type of an event."""

WEBHOOK_KINDS: Final[tuple[WebhookKind, ...]] = get_args(WebhookKind)

SECRET: Final = "whsec_"  # noqa: S105  # the prefix of every secret
_SIZES: Final = range(24, 65)


@dataclass(frozen=True)
class Webhook:
    """An address that gets signed events: `Runtime.open(…, webhooks=[Webhook("https://example.org/hook", secret)])`.

    `secret` is "whsec_" and 24 to 64 random bytes in base64; the receiver has it, too. `events` are the kinds that it
    gets; left out, all of them. An address of the own network, and `http`, need `allow_private=True`. The position of a
    webhook in the loom is stored under its `name`, which is its URL if it is left out.

    With `links`, the URL of the service that `cantrip serve` is reached by, a message about an approval has a link with
    which a person decides it without a token, within `links_last` seconds.

    Raises ValueError for an invalid value.
    """

    url: str
    secret: str = field(repr=False)
    events: tuple[WebhookKind, ...] = WEBHOOK_KINDS
    allow_private: bool = False
    name: str = ""
    links: str = ""
    links_last: float = 86400.0

    def __post_init__(self) -> None:
        scheme = self.url.partition("://")[0].lower() if is_text(self.url) else ""
        expected = "a URL with https, or with http and allow_private=True"
        check(scheme == "https" or (scheme == "http" and self.allow_private), "Webhook: url", expected, self.url)
        if _read_secret(self.secret) is None:
            raise ValueError('Webhook: secret: expected "whsec_" and 24 to 64 bytes in base64')
        kinds = tuple(self.events) if is_list(self.events) else (None,)
        expected = f"some of {', '.join(WEBHOOK_KINDS)}"
        check(bool(kinds) and {*kinds} <= {*WEBHOOK_KINDS}, "Webhook: events", expected, self.events)
        check(not self.links or is_secure_url(self.links), "Webhook: links", "a URL with https", self.links)
        check_seconds("Webhook: links_last", self.links_last)
        object.__setattr__(self, "events", kinds)
        object.__setattr__(self, "name", self.name or self.url)

    def sign(self, id: str, timestamp: int, body: bytes) -> str:
        """Return the signature of a message, as its header `webhook-signature` has it."""
        key = _read_secret(self.secret)
        assert key is not None, "it was checked when the webhook was made"
        digest = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
        return f"v1,{base64.b64encode(digest).decode()}"


def _read_secret(secret: object) -> bytes | None:
    """Return the key of a secret; None for anything else."""
    if not (isinstance(secret, str) and secret.startswith(SECRET)):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(SECRET), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) in _SIZES else None

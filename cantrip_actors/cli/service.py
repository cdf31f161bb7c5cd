"""A running service, asked through its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cantrip_actors.cli.errors import Unreachable
from cantrip_actors.cli.output import one_line

if TYPE_CHECKING:
    import httpx

SLOWEST: Final = 10.0
"""Seconds that a service may take."""


class ServiceClient:
    """A client of the native API at `url`. Methods raise Unreachable, which says what the service answered."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token
        self._client: httpx.Client | None = None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer; None for one without content."""
        import httpx

        try:
            answered = self._connect().request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:  # the last: a token of other letters
            raise Unreachable(
                f"{self.url} does not answer: {error}; --url takes the address that `cantrip serve` prints"
            ) from error
        if answered.is_error:
            raise Unreachable(f"{self.url} answered {answered.status_code}: {one_line(answered.text, 200)}")
        if not answered.content:
            return None
        try:
            return answered.json()
        except ValueError as error:
            problem = f"{self.url} is not a cantrip service: expected JSON, got {one_line(answered.text, 60)!r}"
            raise Unreachable(f"{problem}; give the address that `cantrip serve` prints, without /api/v1") from error

    def _connect(self) -> httpx.Client:
        import httpx

        if self._client is None:
            headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
            base = f"{self.url.rstrip('/')}/api/v1/"
            self._client = httpx.Client(base_url=base, headers=headers, timeout=SLOWEST)
        return self._client

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

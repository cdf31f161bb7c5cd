"""Authenticates requests without a key: by a token that expires, or by a signature.

An `Access` gives the headers of one request. It fetches the credentials (a token, a key pair) in a worker thread, in
the query that needs them: no background task renews them, and nothing blocks the event loop. If many queries find a
token expired, one fetches the next token and the others wait for it. A crystal without queries fetches nothing.

The libraries that know where a cloud keeps its credentials (`google-auth`, `azure-identity`, `botocore`) are extras of
this package, imported where they are first needed.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.user_code import Failure, Threads

EARLY: Final = 120.0
"""Seconds before a token expires at which the next one is fetched: a request may be on its way for a while."""

_threads: Final = Threads("cantrip_actors.crystal credentials", 8)

T = TypeVar("T")


class Access(ABC):
    """The authentication of requests without a key."""

    @abstractmethod
    async def make_headers(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """Return the headers that authenticate a request, which has `content-type: application/json`.

        Raises CrystalError if there are no credentials, ProviderError if they cannot be fetched now.
        """

    def is_alone_at(self, url: str) -> bool:  # noqa: ARG002
        """Return whether this address accepts only this access, and no key of the provider."""
        return False

    @abstractmethod
    def forget(self) -> None:
        """Fetch the credentials anew for the next request: the provider refused them before they expired."""

    @property
    @abstractmethod
    def secrets(self) -> Mapping[str, str]:
        """The secrets in use, by name: they must not leave the runtime."""


class BearerToken(NamedTuple):
    """A bearer token, valid `until` a time in seconds since the epoch, with further headers."""

    text: str
    until: float
    more: Mapping[str, str] = {}


class TokenAccess(Access):
    """Access by a token that `fetch`, which may block, returns. `name` is the name of its secret."""

    def __init__(self, name: str, fetch: Callable[[], BearerToken], clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._fetch = fetch
        self._clock = clock
        self._token: BearerToken | None = None
        self._lock = Lock()  # the queries of several event loops may share a crystal

    async def make_headers(self, method: str, url: str, body: bytes) -> Mapping[str, str]:  # noqa: ARG002
        """Return the token as `authorization`."""
        token = self._token
        if token is None or token.until - self._clock() < EARLY:
            token = await run_in_thread(lambda: self._renew(token))
        return {"authorization": f"Bearer {token.text}", **token.more}

    def _renew(self, seen: BearerToken | None) -> BearerToken:
        with self._lock:
            if self._token is None or self._token is seen:
                self._token = self._fetch()
            return self._token

    def forget(self) -> None:
        """Forget the token: the next request fetches one."""
        self._token = None

    @property
    def secrets(self) -> Mapping[str, str]:
        """The token."""
        return {} if self._token is None else {self._name: self._token.text}


async def run_in_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a worker thread; the thread is abandoned when the query is
    cancelled.
    """
    result = await _threads.attempt(work)
    if isinstance(result, Failure):
        raise result.exception
    return result


def import_extra(name: str, module: str) -> Any:
    """Return a module of an optional dependency. Raises InvalidCantrip, with the extra to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidCantrip(f'{name}: needs {module}: pip install "cantrip-actors[{name}]" ({error})') from error

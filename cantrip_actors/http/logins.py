"""Logins of a service's own: the answer of an authentication backend of Starlette about a request, as a token.

The backend returns the scopes, and a user: a `Token`, whose tenant, cantrips and limits count, or any other, of which
the name counts. It is asked again about the requests whose answers are under way, so that a person who is logged out
reads no stream to its end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import anyio
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser
from starlette.requests import HTTPConnection

from cantrip_actors.http.problems import Problem
from cantrip_actors.http.token import Token
from cantrip_actors.user_code.attempt import Failure, attempt

LONGEST: Final = 10.0
"""Seconds that a backend may take to say whether a person is still logged in."""


class Logins:
    """The people and programs that an authentication backend lets in."""

    def __init__(self, backend: AuthenticationBackend) -> None:
        self._backend = backend

    async def identify(self, connection: HTTPConnection) -> Token | None:
        """Return the token of a request; None without a login. Raises Problem 401 with the text of the backend."""
        try:
            return await self._find_token(connection)
        except AuthenticationError as error:
            raise Problem(401, "token", str(error) or "the login is not valid") from error

    async def has_lost(self, token: Token) -> bool:
        """Return whether a request that was let in would get less now; a backend that fails or hangs gives nothing."""
        connection = token.connection
        assert connection is not None, "the token is of this backend"
        current: Token | Failure | None = None
        with anyio.move_on_after(LONGEST):
            current = await attempt(partial(self._find_token, connection))
        return isinstance(current, Failure) or token.is_reduced_to(current)

    async def _find_token(self, connection: HTTPConnection) -> Token | None:
        answer = await self._backend.authenticate(connection)
        return None if answer is None else _make_token(*answer, connection)


def _make_token(credentials: AuthCredentials, user: BaseUser, connection: HTTPConnection) -> Token:
    token = user if isinstance(user, Token) else Token(user.display_name)
    return replace(token, scopes=frozenset(credentials.scopes), connection=connection)

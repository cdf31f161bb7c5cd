"""The additions of a package to a service: routes behind the same steps as the service's own, and answers to its
errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cantrip_actors import RequestSource
from cantrip_actors.http.calls import BASE
from cantrip_actors.http.problems import DescribeError, describe_no_error
from cantrip_actors.http.table import ApiRoute
from cantrip_actors.http.token import SCOPES

_SCOPE: Final = re.compile(r"[a-z][a-z0-9:-]{0,63}")


@dataclass(frozen=True, slots=True)
class ServiceExtension:
    """An addition to a service: `make_app(service, extensions=[ServiceExtension(…)])`.

    The paths of `routes` begin at `/api/v1`. Each route has a scope, is in the OpenAPI document, and is called after
    the token, its rates, the query and the body were checked. `scopes` are further ones that the routes name and that
    tokens may have, such as `shop:order`: lower-case letters, digits, `-` and `:`. `describe_error` returns the problem
    for an error that a route raises, or None for one that it does not know. The requests of `requests` are listed,
    shown on the page and decided with those of entities. Raises ValueError for a scope that cannot be used.
    """

    name: str
    routes: tuple[ApiRoute, ...] = ()
    describe_error: DescribeError = describe_no_error
    requests: RequestSource | None = None
    scopes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong = next((scope for scope in self.scopes if scope in SCOPES or not _SCOPE.fullmatch(scope)), None)
        if wrong is not None:
            raise ValueError(
                f'extension "{self.name}": scopes: expected names such as "{self.name}:write", which no scope of the '
                f"service has, got {wrong!r:.100}"
            )

    @property
    def whole_routes(self) -> tuple[ApiRoute, ...]:
        """The routes with their whole paths."""
        return tuple(route._replace(path=BASE + route.path) for route in self.routes)


def list_scopes(extensions: Iterable[ServiceExtension]) -> tuple[str, ...]:
    """Return the scopes that tokens may have: those of the service, and those of extensions.

    Raises ValueError for a route with another one.
    """
    extensions = tuple(extensions)
    scopes = (*SCOPES, *dict.fromkeys(scope for extension in extensions for scope in extension.scopes))
    for extension in extensions:
        for route in extension.routes:
            if route.scope is not None and route.scope not in scopes:
                raise ValueError(
                    f'extension "{extension.name}": the route {route.path} has the scope "{route.scope}", which is '
                    "neither one of the service nor among the `scopes` of an extension"
                )
    return scopes

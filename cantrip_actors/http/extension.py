"""What a package adds to a service: routes behind the same steps as the service's own, and answers to its errors."""

from __future__ import annotations

from dataclasses import dataclass

from cantrip_actors import RequestSource
from cantrip_actors.http.problems import DescribeError, describe_no_error
from cantrip_actors.http.table import BASE, ApiRoute


@dataclass(frozen=True, slots=True)
class ServiceExtension:
    """An addition to a service: `make_app(service, extensions=[ServiceExtension(…)])`.

    The paths of `routes` begin at `/api/v1`. Each route has a scope, is in the OpenAPI document, and is called after
    the token, its rates, the query and the body were checked. `describe_error` returns the problem for an error that a
    route raises, or None for one that it does not know. The requests of `requests` are listed, shown on the page and
    decided with those of entities.
    """

    name: str
    routes: tuple[ApiRoute, ...] = ()
    describe_error: DescribeError = describe_no_error
    requests: RequestSource | None = None

    @property
    def whole_routes(self) -> tuple[ApiRoute, ...]:
        """The routes with their whole paths."""
        return tuple(route._replace(path=BASE + route.path) for route in self.routes)

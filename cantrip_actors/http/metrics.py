"""The page that Prometheus reads, on the service's port and on that of the health checks."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from cantrip_actors.http.calls import Call
from cantrip_actors.http.problems import Problem

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def get_metrics(call: Call) -> Response:
    """Return all metrics of the service in Prometheus' text format."""
    telemetry = call.service.telemetry
    if telemetry is None:
        raise Problem(404, "metrics", "this service has no metrics")
    if call.token.tenant is not None:
        raise Problem(403, "tenant", "metrics are about all tenants: use a token without one")
    return Response(telemetry.prometheus(), headers={"content-type": CONTENT_TYPE})

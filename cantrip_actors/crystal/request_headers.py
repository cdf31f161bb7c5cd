"""Headers that the caller of a crystal adds to its requests to a provider, such as the `traceparent` of a query."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

REQUEST_HEADERS: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "cantrip_actors.request_headers", default=MappingProxyType({})
)
"""Headers, by names in lower case. A header that the crystal itself was given takes precedence."""

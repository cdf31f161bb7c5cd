"""The client that makes a request: which entities it sees, which cantrips it may use, and how records name it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cantrip_actors import Cantrip, CantripError, Loom, Runtime
from cantrip_actors.runtime.loom.outage_log import repeat_through_outages

T = TypeVar("T")


class CallerRefused(CantripError):
    """The client may not make this request, or not now."""


@asynccontextmanager
async def _skip_count() -> AsyncIterator[Callable[[str], None]]:
    yield lambda _entity_id: None


@dataclass(frozen=True, slots=True)
class McpCaller:
    """The client of a request. `runtime` is that of its tenant, `cantrips` are those that it may use, by name.

    `by` names it in records, and `door` names the door that vouches for it. `allows` says whether it has a scope
    (`cantrip_actors.http.tokens`). `starting` raises CallerRefused if it may not begin another entity now; it yields a
    function that counts the one that it begins in the block.
    `page` is the address of the live page, where people decide requests; None if there is none.
    """

    runtime: Runtime
    cantrips: Mapping[str, Cantrip]
    by: str
    door: str = ""
    allows: Callable[[str], bool] = lambda _scope: True
    starting: Callable[[], AbstractAsyncContextManager[Callable[[str], None]]] = _skip_count
    page: str | None = None

    async def read(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which reads the loom, as `Runtime.read`; wait while that cannot be reached."""
        return await repeat_through_outages(partial(self.runtime.read, work))

    @property
    def loom(self) -> Loom:
        """The loom as this client may see it: with secrets only if it has the scope for them."""
        return self.runtime.loom if self.allows("secrets") else self.runtime.shown_loom

    def redact(self, value: Any) -> Any:
        """Return a JSON value as this client may see it."""
        return value if self.allows("secrets") else self.runtime.redact(value)

    def sees(self, entity_id: str) -> bool:
        """Return whether an entity exists, belongs to the client's tenant, and has a cantrip that it may use.

        Reads the loom: call it in `read`.
        """
        loom = self.runtime.loom
        return loom.has(entity_id) and (loom.header(loom.ancestry(entity_id)[-1]).cantrip_name or "") in self.cantrips

    def check(self, scope: str) -> None:
        """Raise CallerRefused if the client lacks a scope."""
        if not self.allows(scope):
            raise CallerRefused(f"this token lacks the scope {scope}")

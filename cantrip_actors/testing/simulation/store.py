"""The store of a process in a simulation: SQLite, with latencies, and with the faults of that process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.loom.stores.store import Postponed

T = TypeVar("T")


class StoreOwner(Protocol):
    """A process, as its store sees it."""

    def must_wait(self) -> bool:
        """Return whether the next access waits."""

    def check_reachable(self) -> None:
        """Raise LoomError while the store cannot be reached."""

    def write(self, write: Callable[[], T], *, is_attempt: bool) -> T:
        """Write, or do what a fault does to this write."""


class SimulatedStore(SqliteStore):
    """A store that belongs to a simulated process. `shared` says whether other processes use the same loom."""

    def __init__(self, path: str | os.PathLike[str], process: StoreOwner, *, shared: bool) -> None:
        self._process = process
        self.shared = shared  # else it looks for mail of others and renews leases, all the time
        super().__init__(path, durability="none")

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise Postponed, as often as the seed says."""
        if self._process.must_wait():
            raise Postponed
        return super().attempt(work)

    def _transact(self, work: Callable[[Any], T], *expected: type[Exception]) -> T:
        transact = super()._transact
        return self._process.write(lambda: transact(work, *expected), is_attempt=self._is_attempt)

    def _fetch_rows(self, query: str, *values: Any) -> list[Any]:
        self._process.check_reachable()
        return super()._fetch_rows(query, *values)

    def _count_written(self, size: int) -> None:
        """Do nothing: a thread would copy a long write-ahead log."""

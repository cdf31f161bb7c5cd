"""The product's Postgres store over a session of the model, and what is broken in it on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from cantrip_actors.loom import Lease
from cantrip_actors.loom.postgres.postgres import PostgresStore
from cantrip_actors.loom.postgres.postgres_connection import Sql
from cantrip_actors.loom.seal.seal_key import UNSEALED
from cantrip_actors.loom.tables.tables import _BY_KEY
from cantrip_actors.machine.project import Life
from cantrip_actors.machine.queues import free
from cantrip_actors.terms.errors import LoomError
from tests.simulation.server import Server, Session
from tests.simulation.world import Mutex, Process

__all__ = [
    "VARIANTS",
    "AccountNotLocked",
    "ClaimInOppositeOrder",
    "KeyNotUnique",
    "PlaceFreedTwice",
    "PlaceNeverFreed",
    "ReleaseInOneStatement",
    "SimStore",
    "TokenNotChecked",
    "UnlockedPost",
    "Unordered",
]


class SimStore(PostgresStore):
    """The store of one process."""

    has_unique_keys = True
    clustered = 0.8
    """How likely it is used by nodes, and not by programs without a node."""

    def __init__(self, process: Process, server: Server) -> None:
        self._process, self._server = process, server
        super().__init__("postgresql:///sim", schema="sim")
        for session in (self._writer, self._reader, self._renewer):
            session.lock = Mutex(process.world)

    def _connect(self, *, writes: bool = False, lock_timeout: float = 0.0) -> Any:
        if self._process.is_cut or self._server.is_down:
            raise LoomError("cannot reach the server")
        self._note_time(self._server.world.now)
        self.connections += 1
        return Session(self._server, self._process)

    def _check(self, connection: Any) -> None:  # the tables are there
        self.seal = UNSEALED

    @contextmanager
    def _begin(self, connection: Any) -> Iterator[Any]:
        """Return a transaction of the model, which has no pipelines."""
        with connection.transaction():
            yield Sql(connection)

    def _pipeline(self, db: Any) -> Any:
        return db.connection.pipeline()

    def _fetch_each(self, db: Any, query: str, columns: str, rows: Sequence[tuple[str, ...]]) -> Iterable[Any]:
        """The same query, with the rows as SQLite takes them."""
        names = ", ".join(f"column{at} as {name}" for at, name in enumerate(columns.split(", "), 1))
        marks = ", ".join(f"({', '.join('?' for _ in row)})" for row in rows)
        given = f"(select {names} from (values {marks})) as given"
        found: Iterable[Any] = db.execute(query.format(given=given), [value for row in rows for value in row])
        return found

    def frees_left(self, life: Life | None, entity: str) -> bool:
        """Return whether a process frees the place of an entity that does not run there any more."""
        return not self.is_held(entity) if life is None else life >= Life.OVER


class PlaceFreedTwice(SimStore):
    """A process frees the place of an entity that leaves it, though another one continues the entity, and frees it."""

    def frees_left(self, life: Life | None, entity: str) -> bool:
        return True


class PlaceNeverFreed(SimStore):
    """A place is freed by the process that took it, and by no other one."""

    def change_account(self, name: str, change: Any, now: float) -> Any:
        is_sweep = isinstance(change, partial) and change.func is free and change.args[1:] != ([],)
        return None if is_sweep else super().change_account(name, change, now)


class AccountNotLocked(SimStore):
    """Two processes change an account at the same time."""

    _row_locked = ""


class UnlockedPost(SimStore):
    """A sender does not lock the tree that it posts to. (`places` is read without `for share`.)"""

    def _lock(self, db: Any, entities: Sequence[str], *, claims: bool, posts: bool) -> None:
        if not posts:
            super()._lock(db, entities, claims=claims, posts=posts)


class ReleaseInOneStatement(SimStore):
    """A program looks for mail, and releases, in one statement."""

    clustered = 0.0

    def release_if_empty(self, *leases: Lease) -> list[Lease]:
        def work(db: Any) -> list[Lease]:
            released = [one for one in leases if db.execute(_RELEASE, (one.token, one.entity_id)).rowcount]
            return [one for one in leases if one not in released]

        return self._transact(work)


class TokenNotChecked(SimStore):
    """Whoever appends has the right token."""

    _given: Any = None

    def append(self, records: Any, leases: Any = None, **more: Any) -> None:
        self._given = leases or {}
        super().append(records, self._given, **more)

    def _look_up(self, db: Any, *values: Any, **more: Any) -> Any:
        found = super()._look_up(db, *values, **more)
        for place in self._known.places.values():
            place.tree.token = (self._given or {}).get(place.tree.root, place.tree.token)
        return found


class KeyNotUnique(SimStore):
    """A key is neither looked up nor unique."""

    has_unique_keys = False

    def _fetch_each(self, db: Any, query: str, columns: str, rows: Sequence[tuple[str, ...]]) -> Iterable[Any]:
        return [] if query == _BY_KEY else super()._fetch_each(db, query, columns, rows)


class Unordered(SimStore):
    """The rows of several trees are locked in no order. (A claim without an order.)"""

    def _lock(self, db: Any, entities: Sequence[str], *, claims: bool, posts: bool) -> None:
        entities = sorted(entities)
        self._server.world.chance.shuffle(entities)
        if not entities:
            super()._lock(db, entities, claims=claims, posts=posts)
        for one in entities:
            super()._lock(db, [one], claims=claims, posts=posts)


class ClaimInOppositeOrder(SimStore):
    """A claim locks leases, and then trees: as it was until the simulation showed that claims wait for each other."""

    def _lock(self, db: Any, entities: Sequence[str], *, claims: bool, posts: bool) -> None:
        if claims:
            db.execute("select 1 from leases where entity = any(?) order by entity for update", (entities,))
        super()._lock(db, entities, claims=claims, posts=posts)


_RELEASE = """
delete from leases where token = ? and not exists (
  select 1 from trees join entities using (no) where id = ? and loads > 0)
"""

VARIANTS: Sequence[type[SimStore]] = [
    UnlockedPost,
    ReleaseInOneStatement,
    TokenNotChecked,
    KeyNotUnique,
    Unordered,
    PlaceFreedTwice,
    PlaceNeverFreed,
    AccountNotLocked,
]

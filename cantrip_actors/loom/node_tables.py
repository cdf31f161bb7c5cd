"""The tables of nodes in both SQL stores: nodes that have joined, and entities without a living holder (`nodes`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from cantrip_actors.loom.lease import REMAINS, gone
from cantrip_actors.loom.nodes import TABLES, NodeInfo, NodeRow, Unowned, Why, decode_info, encode_info
from cantrip_actors.loom.rules import Tree
from cantrip_actors.loom.store import Store
from cantrip_actors.records.seal import NOTHING
from cantrip_actors.terms.errors import LoomError

__all__ = ["Connection", "NodeTables"]

T = TypeVar("T")

FORGET = 100
"""The number of beats after which a node forgets holders that are long dead and hold nothing."""

SWEPT = 1000
"""Leases of dead holders that are removed in one transaction."""


class Connection(Protocol):
    """A connection in the middle of a transaction. A `?` in a query stands for a value."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement and return its cursor."""

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Run a statement for each row."""


class NodeTables(Store):
    """A store whose leases are rows, so that nodes can join."""

    _where: str
    """The database's name in messages."""
    _lasts: ClassVar[str]
    """The columns of a holder that say for how long its leases last (`_left`)."""
    _row_locked: ClassVar[str] = ""
    """The end of a query whose row is locked against changes."""
    _has_accounts: bool = False
    _beats: int = 0
    _has_nodes: bool = False
    """Whether the tables of nodes are known to exist."""

    @abstractmethod
    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query. Text arrives as str or as UTF-8."""

    @abstractmethod
    def _left(self, *found: Any) -> float:
        """Return for how many seconds a lease lasts, from the columns of `_lasts`."""

    @abstractmethod
    def _hold(self, db: Connection, owner: str, ttl: float) -> float:
        """Let all leases of `owner` last until `ttl` seconds from now; return the end in seconds since 1970."""

    @abstractmethod
    def _extend(self, db: Connection, owner: str, ttl: float) -> bool:
        """Let all leases of `owner` last until `ttl` seconds from now; return False if it has no row."""

    @abstractmethod
    def _has_table(self, db: Connection, name: str) -> bool:
        """Return whether a table of that name exists."""

    def _lock_tables(self, db: Connection) -> None:
        """Keep others from making tables at the same time."""

    def _while_renewing(self, work: Callable[[Any], T]) -> T:
        """Do `work` in a transaction that no append delays."""
        return self._transact(work)

    def can_join(self) -> str:
        """Return why no node can join this loom; "" if one can."""
        return ""

    @abstractmethod
    def _now(self, db: Connection) -> float:
        """Return the time, in seconds, of one clock for all processes."""

    def change_account(self, name: str, change: Callable[[str | None, float], tuple[str, T]], now: float) -> T:  # noqa: ARG002  # the server's clock alone counts
        """Change an account while all others wait."""

        def work(db: Connection) -> T:
            if not self._has_accounts:
                self._lock_tables(db)
                db.execute("create table if not exists accounts (name text primary key, state text not null)")
            db.execute("insert into accounts (name, state) values (?, '') on conflict (name) do nothing", (name,))
            query = f"select state from accounts where name = ? {self._row_locked}"  # noqa: S608  # our own words
            (state,) = db.execute(query, (name,)).fetchone()
            state, result = change(_text(state) or None, self._now(db))
            db.execute("update accounts set state = ? where name = ?", (state, name))
            return result

        result = self._transact(work)
        self._has_accounts = True
        return result

    def join(self, owner: str, ttl: float, info: NodeInfo) -> None:
        """Make `owner` a node, whose leases last until `ttl` seconds from now; call `beat` from then on."""

        def work(db: Connection) -> None:
            self._lock_tables(db)
            if not self._has_table(db, "takeovers"):
                for statement in TABLES:
                    db.execute(statement)
            db.execute("delete from nodes where not exists (select 1 from holders where holders.owner = nodes.owner)")
            db.execute("delete from takeovers where not exists (select 1 from leases where entity = takeovers.entity)")
            db.execute(_NEW_RELEASE, (info.release,))

        self._transact(work)
        self._has_nodes = True
        self.beat(owner, ttl, info, busy=0, is_draining=False)

    def beat(self, owner: str, ttl: float, info: NodeInfo, *, busy: int, is_draining: bool) -> bool:
        """Let all leases of a node last until `ttl` seconds from now; return whether it was asked to drain.

        A node whose row was removed meanwhile, because it was very late, gets a new row.
        """

        def work(db: Connection) -> bool:
            self._beats += 1
            if self._beats % FORGET == 0 or not self._extend(db, owner, ttl):
                self._hold(db, owner, ttl)
            (asked,) = db.execute(_BEAT, (owner, encode_info(info), busy, is_draining, False)).fetchone()
            return bool(asked)

        return self._while_renewing(work)

    def leave(self, owner: str) -> None:
        """Remove a node: its leases end, and its row is deleted."""

        def work(db: Connection) -> None:
            self._hold(db, owner, -REMAINS)
            db.execute("delete from nodes where owner = ?", (owner,))
            db.execute(
                "delete from holders where owner = ? and not exists (select 1 from leases where holder = holders.no)",
                (owner,),
            )

        self._transact(work)

    def ask_to_drain(self, owner: str) -> None:
        """Ask a node to hand over its entities and leave."""
        self._transact(lambda db: db.execute("update nodes set asked = ? where owner = ?", (True, owner)))

    def use_release(self, release: str) -> None:
        """Make a release the newest one. Raises LoomError for a release that no node has had."""

        def work(db: Connection) -> None:
            known = [_text(name) for (name,) in db.execute("select release from releases order by no").fetchall()]
            if release not in known:
                raise LoomError(
                    f"no node of {self._where} has had the release {release!r}; known are, the newest last: "
                    f"{', '.join(map(repr, known)) or 'none'}"
                )
            db.execute("update releases set no = (select max(no) + 1 from releases) where release = ?", (release,))

        self._transact(work)

    def nodes(self) -> list[NodeRow]:
        """Return the nodes that have joined, ordered by name; dead ones stay listed for an hour."""
        if not self._knows_nodes():
            return []
        nothing = ", ".join("null" for _ in self._lasts.split(", "))
        found = self._rows(  # the releases are rows without an `info`
            f"select nodes.owner, info, busy, draining, {self._lasts} from nodes "  # noqa: S608  # our own words
            "join holders on holders.owner = nodes.owner "
            f"union all select release, '', no, false, {nothing} from releases"
        )
        releases = {_text(name): no for name, text, no, *_ in found if not text}
        rows = []
        for owner, text, busy, is_draining, *lasts in found:
            if not text:
                continue
            info, name = decode_info(text), _text(owner)
            left = self._left(*lasts)
            is_living = left > 0 and not gone(name)
            rows.append(NodeRow(name, info, busy, bool(is_draining), is_living, releases.get(info.release, 0)))
        return sorted(rows, key=lambda row: (row.info.name, row.owner))

    def place(self, entity_id: str) -> str | None:
        """Return the living holder of the lease on a root entity; None if there is none."""
        query = f"select owner, {self._lasts} from leases join holders on holders.no = holder where entity = ?"  # noqa: S608  # our own words
        for owner, *lasts in self._rows(query, entity_id):
            if self._is_live(_text(owner), self._left(*lasts)):
                return _text(owner)
        return None

    def unowned(self, limit: int, dead: Sequence[tuple[int, Why]] | None = None) -> list[Unowned]:
        """Return root entities that have work and no living holder, those with running episodes first.

        `dead` is the result of `dead_holders`.

        It reads the leases of dead holders, the entities at work without a lease, and the inboxes with mail; entities
        that are idle or run elsewhere cost nothing (N-15). Quarantined ones are left out.
        """
        found: dict[str, Unowned] = {}

        def add(rows: Iterable[Any], why: Any, *, is_busy: bool) -> None:
            for (entity,) in rows:
                found.setdefault(_text(entity), Unowned(_text(entity), is_busy, why))

        dead = self.dead_holders() if dead is None else dead
        free = self._rows(_FREE, limit, limit)
        for no, why in dead:
            add(self._rows(_BUSY_OF, no, limit), why, is_busy=True)
        add(((entity,) for entity, is_busy in free if is_busy), "free", is_busy=True)
        for no, why in dead:
            add(self._rows(_MAIL_OF, no, limit), why, is_busy=False)
        add(((entity,) for entity, is_busy in free if not is_busy), "free", is_busy=False)
        return list(found.values())[:limit]

    def work(self) -> int:
        """Return how many root entities have a running episode or mail, whichever node runs them."""
        ((found,),) = self._rows(_WORK)
        return int(found)

    def sweep(self, dead: Sequence[tuple[int, Why]]) -> int:
        """Remove some unneeded leases of dead holders on idle entities; return their number."""
        numbers = [no for no, _ in dead]
        if not numbers:
            return 0
        removed: int = self._transact(lambda db: sum(db.execute(_SWEEP, (no, SWEPT)).rowcount for no in numbers))
        return removed

    def dead_holders(self) -> list[tuple[int, Why]]:
        """Return the numbers of dead holders that have leases, and how their death is known."""
        found: list[tuple[int, Why]] = []
        query = (
            f"select no, owner, {self._lasts} from holders "  # noqa: S608  # our own words
            "where exists (select 1 from leases where holder = holders.no)"
        )
        for no, owner, *lasts in self._rows(query):
            if gone(_text(owner)):
                found.append((no, "gone"))
            elif not self._is_live(_text(owner), self._left(*lasts)):
                found.append((no, "expired"))
        return found

    def _knows_nodes(self) -> bool:
        if not self._has_nodes:
            self._has_nodes = self._asks_for_table("takeovers")
        return self._has_nodes

    @abstractmethod
    def _asks_for_table(self, name: str) -> bool:
        """Return whether a table of that name exists."""

    def _deaths_since_progress(self, db: Any, tree: Tree, deaths: int) -> int:
        """Return how many holders died in a row since the tree got its last record (N-14)."""
        if not self._has_nodes:
            return deaths
        row = db.execute("select head from takeovers where entity = ?", (tree.root,)).fetchone()
        head = (tree.head or NOTHING).decode()
        db.execute(
            "insert into takeovers (entity, head) values (?, ?) "
            "on conflict (entity) do update set head = excluded.head",
            (tree.root, head),
        )
        return deaths if row is not None and _text(row[0]) == head else 0


_NEW_RELEASE = (
    "insert into releases (release, no) select cast(? as text), coalesce(max(no), 0) + 1 from releases where true "
    "on conflict (release) do nothing"
)
_BEAT = (
    "insert into nodes (owner, info, busy, draining, asked) values (?, ?, ?, ?, ?) on conflict (owner) do update set "
    "info = excluded.info, busy = excluded.busy, draining = excluded.draining returning asked"
)
_ROOT = "join entities on entities.id = leases.entity and tree = entities.no"
_BUSY_OF = f"select id from leases {_ROOT} where holder = ? and life = 0 order by leases.token limit ?"  # noqa: S608  # our own words
_BUSY_FREE = (
    "select id from entities where life = 0 and tree = no "
    "and not exists (select 1 from leases where entity = id) order by no limit ?"
)
_MAIL_OF = (
    f"select id from leases {_ROOT} join trees on trees.no = entities.no "  # noqa: S608  # our own words
    "where holder = ? and control + intents > 0 and loads > 0 order by leases.token limit ?"
)
_MAIL_FREE = (
    "select id from trees join entities using (no) where control + intents > 0 and loads > 0 "
    "and not exists (select 1 from leases where entity = id) order by trees.no limit ?"
)
_FREE = f"select id, true from ({_BUSY_FREE}) as busy union all select id, false from ({_MAIL_FREE}) as mailed"  # noqa: S608  # likewise
_WORK = (
    "select (select count(*) from entities where life = 0 and tree = no) + (select count(*) from trees "
    "join entities using (no) where control + intents > 0 and loads > 0 and life <> 0)"
)
_SWEEP = (
    "delete from leases where token in (select token from leases left join entities on entities.id = leases.entity "
    "left join trees on trees.no = entities.no where holder = ? and coalesce(life, 1) <> 0 "
    "and coalesce(trees.loads, 0) = 0 limit ?)"
)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()

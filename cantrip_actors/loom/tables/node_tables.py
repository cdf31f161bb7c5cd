"""The tables of leases and nodes in both SQL stores: holders, nodes, and entities without a living holder (`nodes`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from cantrip_actors.loom.stores.lease import (
    REMAINS,
    SERVICE,
    Held,
    Holder,
    Lease,
    QuarantineRow,
    is_gone,
    make_holder,
    read_service,
)
from cantrip_actors.loom.stores.nodes import TABLES, NodeInfo, NodeRow, Unowned, Why, decode_info, encode_info
from cantrip_actors.loom.tables.table_rows import Connection, Tables, decode_text
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

FORGET = 100
"""The number of beats after which a node forgets holders that are long dead and have no leases."""

BUSY = ("mail", "trees", "timers", "submissions", "leases", "holders", "accounts")
"""Tables whose rows change or go all the time."""

SWEPT = 1000
"""Leases of dead holders that are removed in one transaction."""


class Survey(NamedTuple):
    """The result of one poll of a loom: its nodes, the holders that are not living, and entities without a lease."""

    nodes: list[NodeRow]
    dead: list[tuple[int, Why]]
    """As `dead_holders` returns them."""
    free: list[tuple[str, bool]]
    """Entities that have work and no lease, and whether each is at work."""


class NodeTables(Tables):
    """A store whose leases are rows, so that nodes can join."""

    _table_query: ClassVar[str]
    """A query that finds a table by its name, and by `_table_place`."""
    _table_place: tuple[str, ...] = ()
    _locked: ClassVar[str]
    """The end of a query that locks the leases that it finds."""
    _owners: set[str]
    """The owners that have claimed through this store."""
    _row_locked: ClassVar[str] = ""
    """The end of a query whose row is locked against changes."""
    _beats: int = 0
    _written: tuple[int, str, str, int, bool] | None = None
    """The row of this store's node, and the number of the store's connections when the row was written."""
    _has_nodes: bool = False
    """Whether the tables of nodes are known to exist."""

    @property
    @abstractmethod
    def _now(self) -> str:
        """The time, in seconds, of one clock for all processes, in SQL."""

    @property
    @abstractmethod
    def _until(self) -> str:
        """The value of `until` for a number of seconds from now."""

    @property
    @abstractmethod
    def _lasts(self) -> str:
        """The seconds for which the leases of a holder last."""

    @property
    def _boot(self) -> str:
        """The value of `boot`: which start of the machine the clock belongs to."""
        return "''"

    def renew(self, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now."""
        self._run_while_renewing(lambda db: self._extend(db, owner, ttl), is_single=True)

    def _extend(self, db: Connection, owner: str, ttl: float) -> bool:
        """Let all leases of `owner` last until `ttl` seconds from now; return False if it has no row."""
        return bool(db.execute(_RENEW.format(self._until), (ttl, owner)).rowcount)

    def _hold(self, db: Connection, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now; add its row if it has none."""
        db.execute(_HOLD.format(self._until, self._boot), (owner, ttl))

    def _forget_holders(self, db: Connection) -> None:
        """Delete the holders that are long dead and have no leases."""
        db.execute(_FORGET.format(self._lasts), (-REMAINS,))

    def _find_holder(self, db: Connection, entity: str) -> Holder | None:
        row = db.execute(f"{_LEASES.format(self._lasts)} where leases.entity = ? {self._locked}", (entity,)).fetchone()
        if row is None:
            return None
        token, owner, deaths, ends, why, left = row
        return make_holder(token, owner, deaths, left or 0.0, ends, decode_text(why))

    def _grant(
        self,
        db: Connection,
        entity: str,
        owner: str | None,
        deaths: int,
        ttl: float,
        note: str,
        until: float | None = None,
    ) -> tuple[int, float]:
        lasts = 0.0
        if owner is not None:
            if owner not in self._owners:
                self._forget_holders(db)
            self._owners.add(owner)
            self._hold(db, owner, ttl)
            lasts = self.clock() + ttl
        (token,) = db.execute(
            "insert into leases (entity, holder, deaths, ends, why) "
            "values (?, coalesce((select no from holders where owner = ?), 0), ?, ?, ?) returning token",
            (entity, owner or "", deaths, until, note),
        ).fetchone()
        return token, lasts

    def _drop(self, db: Connection, entity: str, token: int) -> None:  # noqa: ARG002  # a token is no other entity's
        db.execute("delete from leases where token = ?", (token,))

    def quarantines(self) -> list[QuarantineRow]:
        """Return the quarantines, in the order of the entities' ids."""
        query = "select entity, why, ends from leases where holder = 0 order by entity"
        rows = self._fetch_rows(query)
        return [QuarantineRow(decode_text(entity), decode_text(why), ends) for entity, why, ends in rows]

    def leases_of(self, owner: str) -> list[Lease]:
        """Return the leases of a holder."""
        query = "select entity, token from leases join holders on holders.no = holder where owner = ?"
        return [Lease(decode_text(entity), owner, token, 0.0) for entity, token in self._fetch_rows(query, owner)]

    def served(self) -> frozenset[str]:
        """Return the names and content ids of the cantrips that other living processes serve."""
        rows = self._fetch_rows(_SERVICES.format(self._lasts), SERVICE)
        living = [decode_text(text) for text, owner, _, left in rows if self._is_others(owner, left)]
        return frozenset(cantrip for text in living for cantrip in read_service(text))

    def _is_others(self, owner: Any, left: float) -> bool:
        """Return whether a lease is a valid one of another holder."""
        name = None if owner is None else decode_text(owner)
        return name is not None and name not in self._owners and self._is_live(name, left)

    def find_held(self, entity_id: str) -> Held | None:
        """Return the error of a claim if another holder has a lease on the tree of an entity."""
        root = "coalesce((select id from entities where no = (select tree from entities where id = ?)), ?)"
        rows = self._fetch_rows(f"{_LEASES.format(self._lasts)} where leases.entity = {root}", entity_id, entity_id)
        owners = [(decode_text(owner), left) for _, owner, *_, left in rows if self._is_others(owner, left)]
        return next((Held.by(entity_id, owner, left) for owner, left in owners), None)

    def _has_table(self, db: Connection, name: str) -> bool:
        return db.execute(self._table_query, (name, *self._table_place)).fetchone() is not None

    def _lock_tables(self, db: Connection) -> None:
        """Keep others from making tables at the same time."""

    def _keep_small(self, db: Connection, tables: Sequence[str]) -> None:
        """Have tables vacuumed often, whose rows change or go all the time."""

    def _run_while_renewing(self, work: Callable[[Any], T], *, is_single: bool = False) -> T:  # noqa: ARG002  # no matter
        """Do `work` in a transaction that no append delays; `is_single` if it is one statement."""
        return self._transact(work)

    def can_join(self) -> str:
        """Return why no node can join this loom; "" if one can."""
        return ""

    def change_account(self, name: str, change: Callable[[str | None, float], tuple[str, T]], now: float) -> T:  # noqa: ARG002  # the server's clock alone counts
        """Change an account while all others wait."""

        def work(db: Connection) -> T:
            db.execute("insert into accounts (name, state) values (?, '') on conflict (name) do nothing", (name,))
            query = f"select state from accounts where name = ? {self._row_locked}"  # noqa: S608  # our own words
            (state,) = db.execute(query, (name,)).fetchone()
            state, result = change(decode_text(state) or None, db.execute(f"select {self._now}").fetchone()[0])
            db.execute("update accounts set state = ? where name = ?", (state, name))
            return result

        return self._transact(work)

    def join(self, owner: str, ttl: float, info: NodeInfo) -> None:
        """Make `owner` a node, whose leases last until `ttl` seconds from now; call `beat` from then on."""

        def work(db: Connection) -> None:
            self._lock_tables(db)
            if not self._has_table(db, "nodes"):
                for statement in TABLES:
                    db.execute(statement)
                self._keep_small(db, (*BUSY, "nodes"))
            db.execute("delete from nodes where not exists (select 1 from holders where holders.owner = nodes.owner)")
            db.execute(_NEW_RELEASE, (info.release,))

        self._transact(work)
        self._has_nodes = True
        self.beat(owner, ttl, info, busy=0, is_draining=False)

    def beat(self, owner: str, ttl: float, info: NodeInfo, *, busy: int, is_draining: bool) -> bool:
        """Let all leases of a node last until `ttl` seconds from now; return whether it was asked to drain.

        A node whose row was removed meanwhile, because it was very late, gets a new row. A beat in which nothing about
        the node has changed is one statement.
        """
        self._beats += 1
        # a server that failed over may have forgotten the row as it was written last
        row = self.connections, owner, encode_info(info), busy, is_draining

        def renew(db: Connection) -> bool | None:
            rows = db.execute(f"{_RENEW.format(self._until)} returning {_ASKED}", (ttl, owner)).fetchone()
            return None if rows is None or rows[0] is None else bool(rows[0])

        def write(db: Connection) -> bool:
            if self._beats % FORGET == 0:
                self._forget_holders(db)
            if not self._extend(db, owner, ttl):
                self._forget_holders(db)
                self._hold(db, owner, ttl)
            (asked,) = db.execute(_BEAT, (*row[1:], False)).fetchone()
            return bool(asked)

        if row == self._written and self._beats % FORGET:
            asked = self._run_while_renewing(renew, is_single=True)
            if asked is not None:
                return asked
        asked = self._run_while_renewing(write)
        self._written = row
        return asked

    def leave(self, owner: str) -> None:
        """Remove a node: its leases end, and its row is deleted."""

        def work(db: Connection) -> None:
            self._hold(db, owner, -REMAINS)
            db.execute("delete from nodes where owner = ?", (owner,))
            db.execute(_LEAVE, (owner,))

        self._transact(work)

    def ask_to_drain(self, owner: str) -> None:
        """Ask a node to drain and leave."""
        self._transact(lambda db: db.execute("update nodes set asked = ? where owner = ?", (True, owner)))

    def use_release(self, release: str) -> None:
        """Make a release the newest one. Raises LoomError for a release that no node has had."""

        def work(db: Connection) -> None:
            known = [decode_text(name) for (name,) in db.execute("select release from releases order by no").fetchall()]
            if release not in known:
                raise LoomError(
                    f"no node of {self.where} has had the release {release!r}; known releases, oldest first: "
                    f"{', '.join(map(repr, known)) or 'none'}"
                )
            db.execute("update releases set no = (select max(no) + 1 from releases) where release = ?", (release,))

        self._transact(work)

    def nodes(self) -> list[NodeRow]:
        """Return the nodes that have joined, ordered by name; dead ones stay listed for a day."""
        if not self._look_for_nodes():
            return []
        return self._decode_nodes(self._fetch_rows(f"{_NODES.format(self._lasts)} union all {_RELEASES}"))

    def _decode_nodes(self, found: Sequence[Any]) -> list[NodeRow]:
        releases = {decode_text(id): no for what, id, _, no, *_ in found if decode_text(what) == "release"}
        rows = []
        for what, id, text, busy, is_draining, left in found:
            if decode_text(what) == "node":
                info, owner = decode_info(text), decode_text(id)
                is_living = left > 0 and not is_gone(owner)
                rows.append(NodeRow(owner, info, busy, bool(is_draining), is_living, releases.get(info.release, 0)))
        return sorted(rows, key=lambda row: (row.info.name, row.owner))

    def _decode_dead(self, rows: Sequence[Any]) -> list[tuple[int, Why]]:
        dead: list[tuple[int, Why]] = []
        for what, id, _, no, _, left in rows:
            if decode_text(what) != "holder":
                continue
            if is_gone(decode_text(id)):
                dead.append((no, "gone"))
            elif not self._is_live(decode_text(id), left):
                dead.append((no, "expired"))
        return dead

    def survey(self, limit: int) -> Survey:
        """Return the facts that a node reads every beat, in one statement; at most `limit` entities of each kind."""
        free = f"select 'free', id, '', 0, is_busy, null from ({_FREE}) as free"  # noqa: S608  # our own words
        parts = [_NODES.format(self._lasts), _RELEASES, _HOLDERS.format(self._lasts), free]
        rows = self._fetch_rows(" union all ".join(parts), limit, limit)
        free_ones = [
            (decode_text(id), bool(is_busy)) for what, id, _, _, is_busy, *_ in rows if decode_text(what) == "free"
        ]
        return Survey(self._decode_nodes(rows), self._decode_dead(rows), free_ones)

    def place(self, entity_id: str) -> str | None:
        """Return the living holder of the lease on a root entity; None if no living process holds it."""
        query = f"select owner, {self._lasts} from leases join holders on holders.no = holder where entity = ?"  # noqa: S608  # our own words
        for owner, left in self._fetch_rows(query, entity_id):
            if self._is_live(decode_text(owner), left):
                return decode_text(owner)
        return None

    def unowned(self, limit: int, seen: Survey | None = None) -> list[Unowned]:
        """Return root entities that have work and no living holder, those with running episodes first.

        `seen` is the result of a `survey` just made.

        It reads the leases of dead holders, the entities at work without a lease, and the inboxes with mail; entities
        that are idle or run elsewhere cost nothing. Quarantined ones are left out.
        """
        if seen is None:
            free = [(decode_text(entity), bool(is_busy)) for entity, is_busy in self._fetch_rows(_FREE, limit, limit)]
            seen = Survey([], self.dead_holders(), free)
        found: dict[str, Unowned] = {}
        for is_busy, query in ((True, _BUSY_OF), (False, _MAIL_OF)):
            rows: list[tuple[str, Why]] = []
            for no, why in seen.dead:
                rows += [(entity, why) for entity in self._fetch_ids(query, no, limit)]
            rows += [(entity, "free") for entity, busy in seen.free if busy is is_busy]
            for entity, why in rows:
                found.setdefault(entity, Unowned(entity, is_busy, why))
        return list(found.values())[:limit]

    def work(self) -> int:
        """Return how many root entities have a running episode or mail, whichever node runs them."""
        ((rows,),) = self._fetch_rows(_WORK)
        return int(rows)

    def sweep(self, dead: Sequence[tuple[int, Why]]) -> int:
        """Remove some unneeded leases of dead holders on idle entities; return their number."""
        numbers = [no for no, _ in dead]
        if not numbers:
            return 0
        removed: int = self._transact(lambda db: sum(db.execute(_SWEEP, (no, SWEPT)).rowcount for no in numbers))
        return removed

    def dead_holders(self) -> list[tuple[int, Why]]:
        """Return the numbers of dead holders that have leases, and how their death is known."""
        return self._decode_dead(self._fetch_rows(_HOLDERS.format(self._lasts)))

    def _look_for_nodes(self) -> bool:
        if not self._has_nodes:
            self._has_nodes = bool(self._fetch_rows(self._table_query, "nodes", *self._table_place))
        return self._has_nodes


_RENEW = "update holders set until = {} where owner = ?"
_HOLD = (
    "insert into holders (owner, until, boot) values (?, {}, {}) "
    "on conflict (owner) do update set until = excluded.until, boot = excluded.boot"
)
_HAS_LEASES = "exists (select 1 from leases where holder = holders.no)"
_FORGET = f"delete from holders where {{}} < ? and not {_HAS_LEASES}"  # noqa: S608  # our own words
_LEAVE = f"delete from holders where owner = ? and not {_HAS_LEASES}"  # noqa: S608  # likewise
_LEASES = "select token, owner, deaths, ends, why, {} from leases left join holders on holders.no = holder"
_SERVICES = (
    f"select entity, owner, deaths, {{}} from leases join holders on holders.no = holder "  # noqa: S608  # our own words
    f"where substr(entity, 1, {len(SERVICE)}) = ?"
)
_RELEASES = "select 'release', release, '', no, false, null from releases"
_NODES = (
    "select 'node' as what, nodes.owner as id, info, busy, draining, {} from nodes "
    "join holders on holders.owner = nodes.owner"
)
_HOLDERS = f"select 'holder', owner, '', no, false, {{}} from holders where {_HAS_LEASES}"  # noqa: S608  # likewise
_NEW_RELEASE = (
    "insert into releases (release, no) select cast(? as text), coalesce(max(no), 0) + 1 from releases where true "
    "on conflict (release) do nothing"
)
_BEAT = (
    "insert into nodes (owner, info, busy, draining, asked) values (?, ?, ?, ?, ?) on conflict (owner) do update set "
    "info = excluded.info, busy = excluded.busy, draining = excluded.draining returning asked"
)
_ASKED = "(select asked from nodes where nodes.owner = holders.owner)"
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
_FREE = (
    f"select id, true as is_busy from ({_BUSY_FREE}) as busy "  # noqa: S608  # likewise
    f"union all select id, false from ({_MAIL_FREE}) as mailed"
)
_WORK = (
    "select (select count(*) from entities where life = 0 and tree = no) + (select count(*) from trees "
    "join entities using (no) where control + intents > 0 and loads > 0 and life <> 0)"
)
_SWEEP = (
    "delete from leases where token in (select token from leases left join entities on entities.id = leases.entity "
    "left join trees on trees.no = entities.no where holder = ? and coalesce(life, 1) <> 0 "
    "and coalesce(trees.loads, 0) = 0 limit ?)"
)

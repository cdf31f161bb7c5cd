"""The leases of a store: which holder may write for a tree. Each kind of store keeps them in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from cantrip_actors.loom.lease import (
    DEATHS,
    Held,
    Holder,
    Lease,
    Quarantined,
    count_deaths,
    is_alive,
    is_gone,
    make_not_root,
)
from cantrip_actors.loom.nodes import NodeRow
from cantrip_actors.loom.rules import Known, Tree, has_work
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record

T = TypeVar("T")


class LeaseStore(ABC):
    """A store with leases."""

    shared: bool = True
    """Whether other processes may write to it meanwhile, so that running an entity requires a claim (`lease`)."""
    expires: bool = False
    """Whether time alone ends a lease, even of a living process: then a thread must renew it."""
    _known: Known
    _contended: tuple[type[Exception], ...] = ()
    """The driver's error for a claim at the same moment as another one."""

    def claim(self, entity_id: str, owner: str, ttl: float, *, lift: bool = False) -> Lease:
        """Claim the right to write for a root entity and all below it, for `ttl` seconds; it may be about to begin.

        `owner` is a name from `this_process`, one per runtime. Claiming again what one holds gives a new token and ends
        the old one. Raises Held while another holder has it, and Quarantined if three holders in a row did not release
        it, because it may have killed their processes; `lift` ends the quarantine.
        """
        lease = self._transact(lambda db: self._claim(db, entity_id, owner, ttl, lift=lift), *self._contended)
        if isinstance(lease, Quarantined):
            raise lease
        return lease

    def _claim(self, db: Any, entity: str, owner: str, ttl: float, *, lift: bool) -> Lease | Quarantined:
        """Claim an entity, or quarantine it."""
        self._look_up(db, roots=[entity])
        place = self._known.find_place(entity)
        if place is not None and place.tree.root != entity:
            raise make_not_root(entity, place.tree.root)
        held, deaths = self._find_holder(db, entity), 0
        if held is not None:
            if held.owner is not None and held.owner != owner and self._is_live(held.owner, held.left):
                raise Held.by(entity, held.owner, held.left)
            if held.owner is None and not lift:
                return Quarantined.after(held.deaths, entity)
            # by its token: a newer lease, granted while this claim waited for another one, must not be removed
            self._drop(db, entity, held.token)
            deaths = count_deaths(held.deaths, held.owner, owner)
            if deaths > held.deaths and place is not None:
                deaths = self._count_deaths_since_progress(db, place.tree, deaths)
        if place is None or lift or not has_work(place):
            deaths = 0
        is_quarantined = deaths >= DEATHS
        token, until = self._grant(db, entity, None if is_quarantined else owner, deaths, ttl)
        if place is not None:
            place.tree.token = token
        return Quarantined.after(deaths, entity) if is_quarantined else Lease(entity, owner, token, until)

    def quarantine(self, entity_id: str) -> None:
        """Let no process run a root entity until a claim lifts its quarantine. It ends the lease on the entity."""

        def work(db: Any) -> None:
            self._look_up(db, roots=[entity_id])
            holder, place = self._find_holder(db, entity_id), self._known.find_place(entity_id)
            if holder is not None:
                self._drop(db, entity_id, holder.token)
            token, _ = self._grant(db, entity_id, None, DEATHS, 0.0)
            if place is not None:
                place.tree.token = token

        self._transact(work)

    def _count_deaths_since_progress(self, db: Any, tree: Tree, deaths: int) -> int:  # noqa: ARG002  # without nodes all of them count
        """Return how many of these dead holders count towards a quarantine."""
        return deaths

    def can_join(self) -> str:
        """Return why no node can join this loom; "" if one can."""
        return "it has one writer: nodes share a loom in Postgres or, on one machine, in SQLite"

    def nodes(self) -> list[NodeRow]:
        """Return the nodes that have joined."""
        return []

    @abstractmethod
    def quarantined(self) -> list[str]:
        """Return the entities that are quarantined, because they crashed again and again, or their holders died."""

    def served(self) -> frozenset[str]:
        """Return the names and content ids of the cantrips that other living processes serve (`service_lease`)."""
        return frozenset()

    def leases_of(self, owner: str) -> list[Lease]:  # noqa: ARG002  # only those of a server can come back
        """Return the leases of a holder according to the store; `until` is 0."""
        return []

    @abstractmethod
    def renew(self, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now. Lost leases stay lost."""

    def release(self, *leases: Lease) -> None:
        """Release leases, all in one transaction; one that has ended already is ignored."""
        self._transact(lambda db: self._release(db, leases))

    def release_if_empty(self, *leases: Lease) -> list[Lease]:
        """Release the leases of entities without waiting mail that would load them; return the others.

        The check and the release are one transaction. So if a poster finds no lease, no process will read the mail.
        """

        def work(db: Any) -> list[Lease]:
            self._look_up(db, roots=[lease.entity_id for lease in leases])
            places = {lease: self._known.find_place(lease.entity_id) for lease in leases}
            kept = [lease for lease, place in places.items() if place is not None and place.tree.waiting.loads]
            self._release(db, [lease for lease in leases if lease not in kept])
            return kept

        return self._transact(work)

    def _release(self, db: Any, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._drop(db, lease.entity_id, lease.token)
            place = self._known.places.get(lease.entity_id)
            if place is not None and place.tree.token == lease.token:
                place.tree.token = None

    @abstractmethod
    def is_held(self, entity_id: str) -> bool:
        """Return whether a lease on the entity's tree is valid that was not claimed through this store object."""

    @abstractmethod
    def _transact(self, work: Callable[[Any], T], *expected: type[Exception]) -> T:
        """Do `work` in one transaction, with a connection. Raises LoomError if that fails, and `expected` as it is."""

    @abstractmethod
    def _look_up(
        self,
        db: Any,
        records: Sequence[Record] = (),
        lines: Sequence[bytes] = (),
        mails: Sequence[Mail] = (),
        taken: Sequence[int] = (),
        roots: Sequence[str] = (),
        entities: Sequence[str] = (),
    ) -> tuple[Sequence[int], Iterator[int]]:
        """Load these entities, turns and mails into `_known`; return a number for each record, and numbers for mail."""

    @abstractmethod
    def _find_holder(self, db: Any, entity: str) -> Holder | None:
        """Return the lease on an entity, locked against changes."""

    @abstractmethod
    def _grant(self, db: Any, entity: str, owner: str | None, deaths: int, ttl: float) -> tuple[int, float]:
        """Add a lease, or without an owner a quarantine; return its token, and its end in seconds since 1970."""

    @abstractmethod
    def _drop(self, db: Any, entity: str, token: int) -> None:
        """Remove the lease on an entity if it has that token."""

    def _is_live(self, owner: str, left: float) -> bool:
        """Return whether a lease of another owner is valid."""
        return is_alive(owner) or (left > 0 and not is_gone(owner))

"""The leases of a store: which holder may write for a tree. Each kind of store keeps them in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from cantrip_actors.loom.stores.lease import (
    DEATHS,
    QUARANTINE_FOR,
    Held,
    Holder,
    Lease,
    Quarantined,
    QuarantineRow,
    compute_length,
    count_deaths,
    is_alive,
    is_gone,
)
from cantrip_actors.loom.stores.nodes import NodeRow
from cantrip_actors.loom.stores.rules import Known, has_work
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")


class LeaseStore(ABC):
    """A store with leases."""

    shared: bool = True
    """Whether other processes may write to it meanwhile, so that running an entity requires a claim (`lease`)."""
    expires: bool = False
    """Whether time alone ends a lease, even of a living process: then a thread must renew it."""
    quarantine_for: float | None = QUARANTINE_FOR
    """Seconds that the first quarantine of an entity lasts; None if a person has to lift it."""
    _known: Known
    _contended: tuple[type[Exception], ...] = ()
    """The driver's error for a claim at the same moment as another one."""

    def claim(self, entity_id: str, owner: str, ttl: float, *, lift: bool = False, now: float | None = None) -> Lease:
        """Claim the right to write for a root entity and all below it, for `ttl` seconds; it may be about to begin.

        `owner` is a name from `this_process`, one per runtime. Claiming again what one holds gives a new token and ends
        the old one. Raises Held while another holder has it, and Quarantined while the entity is in quarantine, or if
        three holders in a row did not release it, because it may have killed their processes; `lift` ends the
        quarantine. `now` is the time of day, by default that of the store.
        """
        time = self.clock() if now is None else now
        lease = self._transact(lambda db: self._claim(db, entity_id, owner, ttl, time, lift=lift), *self._contended)
        if isinstance(lease, QuarantineRow):
            raise Quarantined(*lease)
        return lease

    def _claim(self, db: Any, entity: str, owner: str, ttl: float, now: float, *, lift: bool) -> Lease | QuarantineRow:
        self._look_up(db, roots=[entity])
        place = self._known.find_place(entity)
        if place is not None and place.tree.root != entity:
            raise LoomError(f"entity {entity} runs below entity {place.tree.root}: claim that one, for both")
        held, deaths, is_quarantined = self._find_holder(db, entity), 0, False
        head = "" if place is None else place.tree.head.decode()
        if held is not None:
            if held.owner is not None and held.owner != owner and self._is_live(held.owner, held.left):
                raise Held.by(entity, held.owner, held.left)
            if held.owner is None and not lift and (held.until is None or now < held.until):
                return QuarantineRow(entity, held.why, held.until)
            # by its token: a newer lease, granted while this claim waited for another one, must not be removed
            self._drop(db, entity, held.token)
            deaths = count_deaths(held.deaths, held.owner, owner)
            if deaths > held.deaths:
                deaths = 0 if held.head and held.head != head else deaths
                is_quarantined = deaths >= DEATHS
        if place is None or lift or not has_work(place):
            deaths, is_quarantined = 0, False
        if is_quarantined:
            why = f"{deaths} processes in a row died, or were out of reach, while they ran it"
            return self._isolate(db, entity, deaths, why, now)
        token, until = self._grant(db, entity, owner, deaths, ttl, head)
        if place is not None:
            place.tree.token = token
        return Lease(entity, owner, token, until)

    def quarantine(self, entity_id: str, why: str, now: float, *, is_repeated: bool = False) -> QuarantineRow:
        """Let no process run a root entity for a time, and return the quarantine. It ends the lease on the entity.

        Args:
            entity_id: the entity.
            why: the exception of its crash.
            now: the time of day.
            is_repeated: whether nothing was recorded since its last quarantine, so that this one lasts twice as long.
        """

        def work(db: Any) -> QuarantineRow:
            self._look_up(db, roots=[entity_id])
            holder, deaths = self._find_holder(db, entity_id), DEATHS
            if holder is not None:
                self._drop(db, entity_id, holder.token)
                if is_repeated:
                    deaths = max(DEATHS, holder.deaths + 1)
            return self._isolate(db, entity_id, deaths, why, now)

        return self._transact(work)

    def _isolate(self, db: Any, entity: str, deaths: int, why: str, now: float) -> QuarantineRow:
        """Add a quarantine, which lasts the longer the more of them there were."""
        length = compute_length(self.quarantine_for, deaths - DEATHS)
        row = QuarantineRow(entity, why, None if length is None else now + length)
        token, _ = self._grant(db, entity, None, deaths, 0.0, why, row.until)
        place = self._known.find_place(entity)
        if place is not None:
            place.tree.token = token
        return row

    def can_join(self) -> str:
        """Return why no node can join this loom; "" if one can."""
        return "it has one writer: nodes share a loom in Postgres or, on one machine, in SQLite"

    def nodes(self) -> list[NodeRow]:
        """Return the nodes that have joined."""
        return []

    def place(self, entity_id: str) -> str | None:  # noqa: ARG002  # no node can join
        """Return the living holder of the lease on a root entity; None if no other process can hold it."""
        return None

    def quarantined(self) -> list[str]:
        """Return the entities that are quarantined, because they crashed again and again, or their holders died."""
        return [row.entity_id for row in self.quarantines()]

    @abstractmethod
    def quarantines(self) -> list[QuarantineRow]:
        """Return the quarantines, in the order of the entities' ids. One that is over stays until a claim ends it."""

    @abstractmethod
    def clock(self) -> float:
        """Return the seconds since 1970 by the clock of the loom."""

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

    def is_held(self, entity_id: str) -> bool:
        """Return whether a lease on the entity's tree is valid that was not claimed through this store object."""
        return self.find_held(entity_id) is not None

    @abstractmethod
    def find_held(self, entity_id: str) -> Held | None:
        """Return the error of a claim if a lease on the entity's tree is valid that another store object claimed."""

    @abstractmethod
    def _transact(self, work: Callable[[Any], T], *expected: type[Exception]) -> T:
        """Do `work` in one transaction, with a connection. Raises LoomError if that fails, and `expected` as it is."""

    @abstractmethod
    def _look_up(
        self,
        db: Any,
        records: Sequence[Record] = (),
        *,
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
    def _grant(
        self, db: Any, entity: str, owner: str | None, deaths: int, ttl: float, note: str, until: float | None = None
    ) -> tuple[int, float]:
        """Add a lease, or a quarantine; return its token, and its end (seconds since 1970).

        `note` is the head of the tree; for a quarantine, which has no owner, why it is one. That lasts to `until`.
        """

    @abstractmethod
    def _drop(self, db: Any, entity: str, token: int) -> None:
        """Remove the lease on an entity if it has that token."""

    def _is_live(self, owner: str, left: float) -> bool:
        """Return whether a lease of another owner is valid."""
        return is_alive(owner) or (left > 0 and not is_gone(owner))

"""The store interface: what keeps a loom's records.

A store appends and reads; there is no call that changes or removes (LOOM-3). It knows records and which turn belongs
to whom, not what they mean: that is `tree`. Readers read without awaiting, while another thread may be appending.

A memory loom and a JSONL file have one writer. An SQLite file may have several, in several processes, and a Postgres
database as many as there are machines: which of them may write for an entity is what leases decide (`lease`).
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar

from cantrip_actors.loom.blobs import attached, blobs_of
from cantrip_actors.loom.checkpoints import StoredCheckpoint, Tip, decode_checkpoint, encode_checkpoint
from cantrip_actors.loom.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.erasure import Erasure
from cantrip_actors.loom.inbox import InboxFull, MailPlan, Refusal
from cantrip_actors.loom.lease import (
    DEATHS,
    NO_LEASES,
    Held,
    Holder,
    Lease,
    Quarantined,
    count_deaths,
    gone,
    is_alive,
    not_root,
)
from cantrip_actors.loom.nodes import NodeRow
from cantrip_actors.loom.rules import Known, Plan, Tree, Waiting, has_work, plan, plan_timers, seal_lines
from cantrip_actors.loom.seal_key import UNSEALED, Head, Seal
from cantrip_actors.machine.project import Life, as_forgotten
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.mail import Mail, MailRow, Pending, decode_mail
from cantrip_actors.records.records import Header, Record
from cantrip_actors.records.seal import NOTHING, link_of, sealed_with
from cantrip_actors.records.timers import FIRST, Due, Timer, decode_timer
from cantrip_actors.records.tombstone import is_tombstone
from cantrip_actors.terms.deprecated import Renamed
from cantrip_actors.terms.errors import CantripError, LoomError

__all__ = ["Durability", "Store", "Unsure"]

T = TypeVar("T")

NO_LINKS: Mapping[int, bytes] = MappingProxyType({})

Durability = Literal["process", "power", "none"]
"""What an acknowledged record survives: a kill of the process, a power cut, or nothing for sure."""


class Unsure(LoomError):
    """The answer to an append was lost: all of it is recorded, or nothing. Read again before you append the same."""


class Store(ABC):
    """An append-only log of records, in order for each entity.

    `blocking` says whether `append` waits for a disk or a network, and so belongs into a thread. Where it is False, an
    append only reaches memory or the page cache and may be called from the event loop.
    """

    blocking: bool = False
    shared: bool = True
    """Whether other processes may write to it meanwhile, so that who runs an entity has to claim it (`lease`)."""
    expires: bool = False
    """Whether time alone ends a lease, also that of a process which is there: then a thread has to renew it."""
    sealed: bool = True
    """Whether its lines have the links of a hash chain (`seal`)."""
    seal: Seal = UNSEALED
    """The keys that links are made with, in a loom that was opened with `seal_key`."""
    connections: int = 0
    """How often it has connected to a server: after each time the loom may be another one's copy of it."""
    max_waiting: int = 1000
    """How much mail may wait in each lane of an inbox."""
    _known: Known
    _conflicts: tuple[type[Exception], ...] = ()
    """What a driver raises for a row that is there already."""
    _contended: tuple[type[Exception], ...] = ()
    """What a driver raises for a claim in the same moment as another one."""

    def append(
        self,
        records: Sequence[Record],
        leases: Mapping[str, int] = NO_LEASES,
        *,
        taken: Sequence[tuple[int, int]] = (),
        post: Sequence[tuple[int, Mail]] = (),
        timers: Sequence[tuple[int, Timer]] = (),
    ) -> None:
        """Keep `records`, all of them in this order or none; they are as durable as the store says when this returns.

        `leases` maps root entities to the tokens under which the caller runs them, and may hold more than it takes.
        Blobs that records bring with them, images and snapshots (`Snapshot.blob`), are kept before those records, each
        once.

        What the records do with mail is kept in the same transaction. Each is given with the index of its record in
        `records`: `taken` is the number of a mail that the record takes, `post` a mail of another entity that is posted
        with the record, also to a full inbox (`check_room` before). A record that takes mail carries its key. One that
        ends a root entity for good takes all of its mail.

        `timers` are set in the same transaction, in place of those with the same entity and id; one with `due` None is
        cancelled. A record that ends an entity removes the timers of that entity.

        A process that is killed before that may leave the first few of them behind, never a gap and never half of one.
        Raises LoomError where they cannot be kept (a full disk) or may not come next (a turn that is there already),
        Fenced where somebody else runs one of the entities, Taken for mail that a record took before, KeyUsed for a
        `post` whose key has other content, EntityEnded, and Unsure where it cannot know whether they are kept.
        """
        lines = [encode(record) for record in records]
        mails = [mail for _, mail in post] if post else ()

        def work(db: Any) -> None:
            if not lines:
                return
            end = self._lock_head(db)
            numbers, mail_numbers = self._look_up(
                db,
                records,
                lines,
                mails,
                [no for _, no in taken] if taken else (),
                entities=[timer.entity_id for _, timer in timers] if timers else (),
            )
            made = plan(records, numbers, self._known, leases)
            if taken or post or made.over:
                MailPlan(made, self._known, self.max_waiting, mail_numbers).follow(taken=taken, post=post)
            if timers or Life.OVER in made.lives.values():
                plan_timers(made, self._known, timers)
            made.blobs = blobs_of(records, [*mails, *_mails_of(timer for _, timer in timers)] if timers else mails)
            self._seal_lines(made, lines, end)
            self._write(db, made)
            self._known.apply(made)

        try:
            self._transact(work, *self._conflicts)
        except self._conflicts as error:
            self._refuse(records, error)

    def append_copied(self, records: Sequence[Record], tombstones: Mapping[int, bytes]) -> None:
        """Append what another store holds. `tombstones` are lines that stay as they are, by the index of the record."""
        plain = {at: sealed_with(line) for at, line in tombstones.items()}
        kept = {at: line for at, (line, _) in plain.items()} if self.sealed else tombstones
        lines = [kept[at] if at in kept else encode(record) for at, record in enumerate(records)]
        links = {at: link for at, (_, link) in plain.items() if link is not None}

        def work(db: Any) -> None:
            if not records:
                return
            end = self._lock_head(db)
            numbers, _ = self._look_up(db, records, lines)
            self._write_planned(db, self._plan_lines(records, lines, numbers, end, links=links))

        self._transact(work)

    def _plan_lines(
        self,
        records: Sequence[Record],
        lines: Sequence[bytes],
        numbers: Sequence[int],
        end: Head | None,
        leases: Mapping[str, int] = NO_LEASES,
        links: Mapping[int, bytes] = NO_LINKS,
    ) -> Plan:
        """Return the plan of a batch that neither takes nor posts mail; `end` is the head before it."""
        made = plan(records, numbers, self._known, leases)
        made.blobs = blobs_of(records)
        self._seal_lines(made, lines, end, links)
        return made

    def _seal_lines(
        self, made: Plan, lines: Sequence[bytes], end: Head | None, links: Mapping[int, bytes] = NO_LINKS
    ) -> None:
        """Add the lines of a batch to its plan, with their links, and the head that they lead to."""
        if not self.sealed:
            made.lines = lines
            return
        seal_lines(made, lines, self._find_head, links, self.seal.chain)
        if end is not None:
            made.end = self.seal.follow(end, made.lines)

    def _lock_head(self, db: Any) -> Head | None:  # noqa: ARG002  # a store with one writer has nothing to lock
        """Return the head of a sealed loom, which nobody else changes until the transaction ends; else None."""
        return self.head() if self.seal.chain else None

    def head(self) -> Head | None:
        """Return the head that a sealed loom keeps beside its lines; None where it is missing or cannot be read."""
        return None

    def _write_planned(self, db: Any, made: Plan) -> None:
        self._write(db, made)
        self._known.apply(made)

    @abstractmethod
    def prepare_forget(self, wanted: Erasure, leases: Mapping[str, int] = NO_LEASES) -> Callable[[], int]:
        """Replace the records of entities that have ended by tombstones; `loom/forget.py` decides which.

        This may take long, and may run in a thread while nothing is written. What it returns has to be called in the
        store's own thread, does the rest, and returns how many blobs were removed. Repeating it finishes what a killed
        process left. Raises LoomError for an entity that has not ended, Fenced where somebody else runs its tree.
        """

    @abstractmethod
    def scrub(self) -> None:
        """Leave nothing of what was deleted in the store's free space, as far as it can; it may take long."""

    def snapshot(self) -> AbstractContextManager[object]:
        """Have all that is read meanwhile be of one moment. A JSONL file that is open read-only always is."""
        return nullcontext()

    @abstractmethod
    def drop_unused_blobs(self) -> int:
        """Delete the blobs that neither a record nor waiting mail refers to; return how many."""

    @abstractmethod
    def ended_roots(self, after: str | None = None, limit: int = 100) -> list[str]:
        """Return root entities that have ended and are not forgotten, in order of creation, after that entity."""

    def post(self, mails: Sequence[Mail]) -> list[MailRow | Refusal]:
        """Post mail, all in one transaction; it is as durable as the store says when this returns.

        Returns for each mail its row, or why it is not accepted: KeyUsed, InboxFull, EntityEnded, or another LoomError
        (there is no such entity). A mail with a key and content that were posted before gets the row that is there.
        Raises LoomError where nothing can be kept, and Unsure where it cannot know: then post the same again.
        """

        def work(db: Any) -> list[MailRow | Refusal]:
            _, numbers = self._look_up(db, mails=mails)
            made = Plan()
            mail_plan = MailPlan(made, self._known, self.max_waiting, numbers)
            results = [mail_plan.post(one) for one in mails]
            if made.posted:
                made.blobs = blobs_of((), (one for one in mails if (one.entity_id, one.key) in made.posted))
                self._write(db, made)
                self._known.apply(made)
            return results

        return self._transact(work)

    @abstractmethod
    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the first mails that wait for an entity: control mail, then intents, each in the order of posting."""

    @abstractmethod
    def waiting(self, *, loads: bool = True) -> list[str]:
        """Return the root entities for which mail waits; with `loads` only mail for which an entity is loaded."""

    @abstractmethod
    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key; None for one that was never posted, or is forgotten."""

    @abstractmethod
    def expire_mail(self, before: str) -> None:
        """Forget mail that records took before that time (ISO 8601, UTC); its keys can be used again.

        The latest mail of a store is kept, so that no number is used twice.
        """

    @abstractmethod
    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """Return the mail that waits with a number above `after`, in all inboxes, and what to ask after next time.

        It is for mail of other processes: what this one has posted may be among it. The first time ask after 0. Of very
        much mail it may return the first only, and the rest when it is asked next. Asking costs next to nothing while
        no other process has posted.
        """

    def replace_timer(self, old: Timer | None, new: Timer | None, post: Sequence[Mail] = ()) -> list[MailRow] | None:
        """Put a timer in the place of another one, and post mail, all in one transaction.

        With `old` None the timer is new, with `new` None it is removed. Returns None, and changes nothing, if the timer
        in the store is not `old`: then somebody else was faster. Else returns the rows of the mail. Raises KeyUsed,
        InboxFull, EntityEnded or another LoomError, without any change.
        """
        (result,) = self.replace_timers([(old, new, post)])
        if isinstance(result, CantripError):
            raise result
        return result

    def replace_timers(
        self, changes: Sequence[tuple[Timer | None, Timer | None, Sequence[Mail]]]
    ) -> list[list[MailRow] | Refusal | None]:
        """Make several changes as `replace_timer` does, all in one transaction; return for each its result or error.

        No timer may be among them twice. One change alone may post several mails, several changes one mail each.
        Raises LoomError where nothing can be kept.
        """
        which = [(one.entity_id, one.id) for one in (old or new for old, new, _ in changes) if one is not None]
        mails = [mail for _, _, post in changes for mail in post]

        def work(db: Any) -> list[list[MailRow] | Refusal | None]:
            _, numbers = self._look_up(db, mails=mails, entities=[owner for owner, _ in which if owner])
            made = Plan()
            mail_plan = MailPlan(made, self._known, self.max_waiting, numbers)
            found: dict[int, list[MailRow] | Refusal | None] = {}
            for at in sorted(range(len(changes)), key=which.__getitem__):  # all writers lock rows in one order
                found[at] = self._check_timer(db, *which[at], changes[at][0])
            done, timers = [], []
            for at, (_, new, post) in enumerate(changes):
                if isinstance(found[at], list):
                    found[at] = _plan_mails(mail_plan, post)
                if isinstance(found[at], list):
                    owner, id = which[at]
                    timers.append((None, new or Timer(id=id, due=None, entity_id=owner)))
                    done.append(new)
            if timers:
                plan_timers(made, self._known, timers)
                posted = [mail for mail in mails if (mail.entity_id, mail.key) in made.posted]
                made.blobs = blobs_of((), [*posted, *_mails_of(one for one in done if one is not None)])
                self._write(db, made)
                self._known.apply(made)
            return [found[at] for at in range(len(changes))]

        return self._transact(work)

    def _check_timer(self, db: Any, entity_id: str, id: str, old: Timer | None) -> list[MailRow] | Refusal | None:
        """Return an empty list if a timer may be replaced, an error if its entity is unknown, else None."""
        if entity_id and self._known.place(entity_id) is None:
            return LoomError(f"timer {id!r} belongs to entity {entity_id}, which is not in this loom")
        return [] if self._is_timer(db, id, entity_id, old) else None

    @abstractmethod
    def timers(self, entity_id: str = "") -> list[Timer]:
        """Return the timers of an entity, or without one the schedules, by their ids."""

    @abstractmethod
    def find_timer(self, entity_id: str, id: str) -> Timer | None:
        """Return a timer of an entity, or for "" a schedule; None if it is not there."""

    @abstractmethod
    def timers_due(self, until: float, *, after: Due = FIRST, limit: int = 100) -> list[Timer]:
        """Return the first timers after a position that are due at `until` (seconds since 1970), in order.

        The time that this takes does not depend on how many timers are not due.
        """

    @abstractmethod
    def has_due(self, until: float, count: int) -> bool:
        """Return whether at least so many timers are due at `until` (seconds since 1970)."""

    @abstractmethod
    def _is_timer(self, db: Any, id: str, entity_id: str, expected: Timer | None) -> bool:
        """Return whether a timer is as expected, None for one that is not there; keep others from changing it."""

    def risks(self) -> list[str]:
        """Return what an administrator should know: what may lose records that were acknowledged (N-70)."""
        return []

    def can_hint(self) -> bool:
        """Return whether processes of this loom tell each other to look (`hint`, `listen`)."""
        return False

    def hint(self) -> None:  # noqa: B027  # most stores have nobody to tell
        """Tell the other processes of the loom to look. May block for a moment."""

    def listen(self, heard: Callable[[], object], stopped: threading.Event) -> None:  # noqa: B027  # likewise
        """Call `heard` for each hint, and once at the beginning, until `stopped`; blocks. Raises LoomError."""

    def clock(self) -> float:
        """Return the seconds since 1970 by the clock of the loom: of its server, or else of this machine."""
        return time.time()

    @abstractmethod
    def change_account(self, name: str, change: Callable[[str | None, float], tuple[str, T]], now: float) -> T:
        """Change an account that all processes of the loom share, a text, and return what `change` returns beside it.

        `change` is given the account, None for a new one, and the time in seconds: that of the server, or `now` where
        one process alone writes.
        """

    def check_room(self, mail: Mail) -> None:
        """Raise InboxFull if this mail would not be accepted because too much waits."""
        waits = self.count_mail(mail.entity_id)[mail.lane]
        if waits >= self.max_waiting and self.find_mail(mail.entity_id, mail.key) is None:
            raise InboxFull.at(self.max_waiting, mail.entity_id)

    @abstractmethod
    def count_mail(self, entity_id: str) -> Waiting:
        """Return how much mail waits for an entity."""

    def claim(self, entity_id: str, owner: str, ttl: float, *, lift: bool = False) -> Lease:
        """The right to write for a root entity and all that it spawns, for `ttl` seconds; it may be about to begin.

        `owner` is a name from `this_process`, one a runtime. Claiming again what one holds gives a new token, and the
        old one is over. Raises Held while somebody else has it, and Quarantined, unless `lift` ends that, where three
        holders in a row did not release it: it may be what their processes died of.
        """
        lease = self._transact(lambda db: self._claim(db, entity_id, owner, ttl, lift=lift), *self._contended)
        if isinstance(lease, Quarantined):
            raise lease
        return lease

    def _claim(self, db: Any, entity: str, owner: str, ttl: float, *, lift: bool) -> Lease | Quarantined:
        """Claim an entity, or put it into quarantine."""
        self._look_up(db, roots=[entity])
        place = self._known.place(entity)
        if place is not None and place.tree.root != entity:
            raise not_root(entity, place.tree.root)
        held, deaths = self._holder(db, entity), 0
        if held is not None:
            if held.owner is not None and held.owner != owner and self._is_live(held.owner, held.left):
                raise Held.by(entity, held.owner, held.left)
            if held.owner is None and not lift:
                return Quarantined.after(held.deaths, entity)
            # by its token: a lease that came since, while this claim waited for another one, is nobody's to take
            self._drop(db, entity, held.token)
            deaths = count_deaths(held.deaths, held.owner, owner)
            if deaths > held.deaths and place is not None:
                deaths = self._deaths_since_progress(db, place.tree, deaths)
        if place is None or lift or not has_work(place):
            deaths = 0
        is_quarantined = deaths >= DEATHS
        token, until = self._grant(db, entity, None if is_quarantined else owner, deaths, ttl)
        if place is not None:
            place.tree.token = token
        return Quarantined.after(deaths, entity) if is_quarantined else Lease(entity, owner, token, until)

    def _deaths_since_progress(self, db: Any, tree: Tree, deaths: int) -> int:  # noqa: ARG002  # without nodes all count
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
        """Return the entities that nobody may claim, because three holders in a row died."""

    def leases_of(self, owner: str) -> list[Lease]:  # noqa: ARG002  # only those of a server can come back
        """Return the leases that a holder has, as the store says; `until` is 0."""
        return []

    @abstractmethod
    def renew(self, owner: str, ttl: float) -> None:
        """Let all that `owner` holds last until `ttl` seconds from now. What it has lost stays lost."""

    def release(self, *leases: Lease) -> None:
        """Release leases, all in one transaction; nothing happens to one that is over already."""
        self._transact(lambda db: self._release(db, leases))

    def release_if_empty(self, *leases: Lease) -> list[Lease]:
        """Release the leases of entities for which no mail waits that would load them; return the others.

        Looking and releasing is one transaction. So whoever posts and finds no lease knows that nobody will look.
        """

        def work(db: Any) -> list[Lease]:
            self._look_up(db, roots=[lease.entity_id for lease in leases])
            places = {lease: self._known.place(lease.entity_id) for lease in leases}
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
    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """Return what is recorded of an entity, in order; nothing for an entity that is not here.

        `after` leaves out the records up to that position (`tip`), at no cost; `limit` is how many are read at most.
        The bytes of their images are read when they are first wanted.
        """

    @abstractmethod
    def newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        """Return the last records of an entity, at most `limit`, in order."""

    @abstractmethod
    def tip(self, entity_id: str) -> Tip | None:
        """Return the place of an entity's last record; None for an entity that is not here."""

    @abstractmethod
    def life(self, entity_id: str) -> Life | None:
        """Return where an entity stands in its life; None for an entity that is not here."""

    def keep_checkpoint(self, entity_id: str, tip: Tip, data: bytes, leases: Mapping[str, int] | None = None) -> None:
        """Keep the state that an entity has after its record at `tip`, in place of the one kept before.

        `leases` are the tokens of whoever runs the entity, as for `append`. Raises Fenced where somebody else runs it,
        whose records this state does not have, and LoomError where it cannot be written; the entity does without.
        """
        self._keep_checkpoint(entity_id, encode_checkpoint(tip, data, self.seal.state), leases)

    def checkpoint(self, entity_id: str) -> StoredCheckpoint | None:
        """Return the state that was kept last, if the log still has the record that it belongs to."""
        kept = self._find_checkpoint(entity_id)
        found = None if kept is None or self.seal.is_locked else decode_checkpoint(kept, self.seal.state)
        if found is None or self._link(entity_id, found[0].position) != found[0].link:
            return None
        return StoredCheckpoint(found[0].position, found[1])

    @abstractmethod
    def _keep_checkpoint(self, entity_id: str, kept: bytes, leases: Mapping[str, int] | None) -> None:
        """Keep bytes for an entity. Raises Fenced."""

    @abstractmethod
    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        """Return the bytes that are kept for an entity."""

    @abstractmethod
    def _link(self, entity_id: str, position: int) -> bytes | None:
        """Return the link in the line at a position; None if that is no record of the entity."""

    def check_chain(self, root: str, after: int = -1) -> None:
        """Raise DamagedLoom if a record of a tree was changed, moved or taken out; only from position `after` on."""
        before: bytes | None = None if after >= 0 else NOTHING
        key = self.seal.chain
        erased: set[str] = set()
        for number, line in self._tree_lines(root, after) if self.sealed and not self.seal.is_locked else ():
            plain, link = sealed_with(line)
            is_erased = is_tombstone(plain)
            is_forged = link is None if key else False
            if before is not None and link is not None and not is_erased:
                is_forged = link != link_of(plain, before, key)
            if is_forged:
                raise DamagedLoom(
                    f"entity {root} cannot be continued: record {number} is not what was written after the one before "
                    f"it, so one of them was changed or taken out. {REPAIR}"
                )
            if key and is_erased:
                erased.add(decode(plain).entity_id)
            elif erased and as_forgotten(record := decode(plain)) is not None:
                erased.discard(record.entity_id)
            before = link_of(plain, before or NOTHING) if link is None else link
        if erased:  # only a record that has its link says that an entity was forgotten
            raise DamagedLoom(
                f"entity {root} cannot be continued: records of entity {min(erased)} are gone, and no record says that "
                f"it was forgotten. {REPAIR}"
            )

    @abstractmethod
    def _tree_lines(self, root: str, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a tree with their numbers, in order, from that number on."""

    @abstractmethod
    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every record as its number and its line, in the order in which they were recorded, up to the call."""

    def indexed_lines(self) -> Iterator[tuple[int, bytes, tuple[str | None, str | None] | None]]:
        """Every line with its number, and the entity and the turn that its row names; None in a store without rows."""
        return ((number, line, None) for number, line in self.lines())

    @abstractmethod
    def blob(self, digest: str) -> Blob | None:
        """Return the blob of that digest as it is stored, or None. Check a snapshot's seal before you load it."""

    @abstractmethod
    def blobs(self) -> Iterator[str]:
        """Return the digests of all blobs."""

    image = Renamed("blob")
    picture = Renamed("blob")

    def images(self) -> Iterator[str]:
        """Deprecated: use `blobs`."""
        warnings.warn("Store.images is now Store.blobs", DeprecationWarning, stacklevel=2)
        return (digest for digest in self.blobs() if (blob := self.blob(digest)) is not None and blob.is_snapshot)

    def pictures(self) -> Iterator[str]:
        """Deprecated: use `blobs`."""
        warnings.warn("Store.pictures is now Store.blobs", DeprecationWarning, stacklevel=2)
        return (digest for digest in self.blobs() if (blob := self.blob(digest)) is not None and not blob.is_snapshot)

    def key(self) -> bytes | None:
        """Return the key that seals this store's snapshots, made now if need be; None for a store without one.

        It lies beside the store, and works where it was made (`key_file`).
        """
        return None

    def heads(self) -> Mapping[str, bytes] | None:
        """The last link of each root's tree, where a store keeps them beside its lines (`verify`)."""
        return None

    def _pending(self, no: int, line: bytes) -> Pending:
        """Return the mail of its line; the bytes of its images are read when they are first wanted."""
        mail = decode_mail(line)
        return Pending(no, replace(mail, images=attached(mail.images, self.blob)) if mail.images else mail)

    def _timer(self, line: str | bytes) -> Timer:
        """Return the timer of its line; the bytes of its mail's images are read when they are first wanted."""
        timer = decode_timer(line)
        mail = timer.mail
        if mail is None or not mail.images:
            return timer
        return replace(timer, mail=replace(mail, images=attached(mail.images, self.blob)))

    def faults(self) -> Iterator[str]:
        """What is wrong with how records are kept, as far as the lines do not tell (`verify`)."""
        yield from ()

    @abstractmethod
    def header(self, entity_id: str) -> Header | None:
        """How an entity began; None for one that is not here."""

    @abstractmethod
    def headers(self) -> Iterator[Header]:
        """Every entity's header, in order of creation."""

    @abstractmethod
    def owner(self, turn_id: str) -> str | None:
        """The entity that a committed turn belongs to; None for a turn that is not here."""

    @abstractmethod
    def children(self, turn_id: str) -> Sequence[str]:
        """The entities that a turn spawned, in order of creation."""

    @abstractmethod
    def forks(self, turn_id: str) -> Sequence[str]:
        """The entities that were forked from a turn, in order of creation."""

    @abstractmethod
    def below(self, entity_id: str) -> Sequence[str]:
        """The entities that an entity spawned, at whichever turn, in order of creation."""

    @abstractmethod
    def named(self, name: str) -> str | None:
        """The latest long-lived entity with that name in its header, over or not; None where there is none."""

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """The entities whose logs do not say that they are over, in order of creation.

        Without `idle` only those at work: not the idle ones, and not those that wait for a person themselves.
        """
        return self.entities_at(Life.WAITING, Life.IDLE) if idle else self.entities_at(Life.BUSY, Life.BUSY)

    @abstractmethod
    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """The entities whose lives are at a point from `first` to `last`, in order of creation; not for OVER."""

    @abstractmethod
    def close(self) -> None:
        """Give up what the store holds (its file, its lock). Closing twice is fine; appending afterwards is a
        LoomError.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # ----------------------------------------------------------------------------------- what each kind of store does

    @abstractmethod
    def _transact(self, work: Callable[[Any], T], *expected: type[Exception]) -> T:
        """Do `work` in one transaction, with a connection. Raises LoomError where that fails; `expected` as it is."""

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
        """Make `_known` know what these ask for; return a number for each record, and numbers for mail."""

    @abstractmethod
    def _write(self, db: Any, made: Plan) -> None:
        """Write lines, blobs, mail and what follows from them; all or none of the lines and the mail."""

    def _find_head(self, tree: Tree) -> bytes:
        """Return the last link of a tree whose head is not known."""
        raise AssertionError(f"the head of tree {tree.root} is looked up with it")

    def _refuse(self, records: Sequence[Record], error: Exception) -> NoReturn:  # noqa: ARG002  # tables say which
        """Raise LoomError for records that one of `_conflicts` kept from being written."""
        raise error

    @abstractmethod
    def _holder(self, db: Any, entity: str) -> Holder | None:
        """Return the lease on an entity, and keep others from changing it."""

    @abstractmethod
    def _grant(self, db: Any, entity: str, owner: str | None, deaths: int, ttl: float) -> tuple[int, float]:
        """Add a lease, or without an owner a quarantine; return its token, and until when, in seconds since 1970."""

    @abstractmethod
    def _drop(self, db: Any, entity: str, token: int) -> None:
        """Remove the lease on an entity if it has that token."""

    def _is_live(self, owner: str, left: float) -> bool:
        """Return whether a lease of that owner, who is not this one, is valid."""
        return is_alive(owner) or (left > 0 and not gone(owner))


def _plan_mails(mail_plan: MailPlan, post: Sequence[Mail]) -> list[MailRow] | Refusal:
    """Plan mail; return its rows, or why one is refused."""
    rows = []
    for mail in post:
        row = mail_plan.post(mail)
        if not isinstance(row, MailRow):
            return row
        rows.append(row)
    return rows


def _mails_of(timers: Iterable[Timer]) -> list[Mail]:
    return [timer.mail for timer in timers if timer.mail is not None]

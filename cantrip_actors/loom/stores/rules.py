"""The rules for the next records of a loom, and the changes that follow from them. No I/O; every store uses it.

An entity begins once and with a header. The id of a turn is used once (D-008). A record that names a turn or a parent
names a recorded one (LOOM-2). Records for a tree carry the token of the tree's lease.

`plan` goes through a batch record by record, asks `Known` what the store already holds, and changes nothing. It returns
a `Plan`: the sealed lines, the entities that begin, the new turns, the standings of entities, the blobs. `MailPlan`
(`inbox.py`) adds the changes of mail. A store writes the plan, and then `Known` applies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct

from cantrip_actors.loom.seal.seal_key import Head
from cantrip_actors.loom.stores.blobs import add_images, add_snapshot
from cantrip_actors.loom.stores.lease import NO_LEASES, Fenced, name_lease
from cantrip_actors.machine.project import (
    ASIDES,
    NOTED,
    EntityStanding,
    Life,
    advance,
    as_header,
    begin_standing,
    get_committed_turn,
    get_named_turn,
    is_for_lease_holder,
)
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.records import WITH_IMAGES, WITH_SNAPSHOT, Header, Record
from cantrip_actors.records.seal import NOTHING, seal_copied, seal_lines
from cantrip_actors.records.timers import Timer, encode_timer
from cantrip_actors.terms.errors import LoomError, UnknownEntity


class Waiting(NamedTuple):
    """How much mail waits in an inbox: in each lane, and how much of it loads an unloaded entity."""

    control: int = 0
    intents: int = 0
    loads: int = 0


NONE_WAITS = Waiting()


class Tree(Struct, eq=False):
    """A root entity and everything it spawned: one hash chain, one lease, one inbox."""

    no: int
    root: str
    head: bytes
    """The last link of the chain."""
    token: int | None = None
    """The token of the lease, while there is one."""
    waiting: Waiting = NONE_WAITS


class Place(Struct, eq=False):
    """The facts about an entity that a store needs to append to it."""

    no: int
    tree: Tree
    lasting: bool
    standing: EntityStanding
    tip: str | None = None
    """The last committed turn, if known: the next one's parent."""
    has_timers: bool = False
    """Whether it may have timers."""

    @property
    def life(self) -> Life:
        """The phase of its life."""
        return self.standing.life


def has_work(place: Place) -> bool:
    """Return whether this root entity has work for its holder: an episode, or mail to take."""
    return place.life is Life.BUSY or any(place.tree.waiting)


class EntityRow(NamedTuple):
    """An entity's origin, and how it stands: what a store has in its index. `no` is the number of its header.

    `at` is when it began, as in its header; `state` and `cantrip` are the current ones.
    """

    no: int
    id: str
    tree: int
    parent_entity: str | None
    parent_turn: str | None
    forked: bool
    name: str | None
    lasting: bool
    tenant: str
    at: str
    life: int
    state: str
    cantrip: str | None


_NONE: Mapping[Any, Any] = MappingProxyType({})


class Plan(Struct, eq=False):
    """The changes of one transaction: a batch of records, their consequences, and mail."""

    records: Sequence[Record] = ()
    numbers: Sequence[int] = ()
    """The number of each record."""
    lines: list[bytes] = []
    """The lines of the records, sealed."""
    heads: dict[Tree, bytes] = {}
    """The new last links of trees."""
    blobs: dict[str, Blob] = {}
    """The blobs that records, mail and timers bring along, by digest."""
    places: list[Place] = []
    """The place of each record's entity."""
    runs: list[tuple[Tree, list[bytes]]] = []
    """The lines of the records, not sealed, in runs that belong to one tree."""
    entities: list[EntityRow] = []
    """The entities that begin."""
    new: dict[str, Place] = {}
    """The places of the entities that begin, by id."""
    turns: dict[str, str] = {}
    """New turns, and the entities that they belong to."""
    standings: dict[str, EntityStanding] = {}
    """The new standing of each entity whose standing changes."""
    over: list[tuple[Tree, int]] = []
    """Root entities that end while mail waits for them, and the numbers of the records that end them."""
    timed_out: list[str] = []
    """Entities that end, and lose all of their timers."""
    asides: list[tuple[str, int]] = []
    """Entities, and the numbers of their records of a kind in `ASIDES`."""
    end: Head | None = None
    """The new head of a sealed loom."""
    posted: Mapping[tuple[str, str], tuple[MailRow, bytes, int | None]] = _NONE
    """New mail by entity and key: its row, its line, and the number of the record that it was posted with."""
    taken: Mapping[int, tuple[MailRow, int]] = _NONE
    """Taken mail by its number: its row, and the number of the record that takes it."""
    emptied: Sequence[tuple[Tree, int]] = ()
    """Roots that end with waiting mail, and the numbers of the records that end them."""
    waiting: Mapping[Tree, Waiting] = _NONE
    """The new counts of waiting mail."""
    timers: Mapping[tuple[str, str], tuple[Timer, bytes, int | None]] = _NONE
    """Changed timers by entity and id: the new timer, without a line if it is removed, and the number of the record
    that changes it."""


class Known(ABC):
    """The facts that a batch asks a store about."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.owners: dict[str, str] = {}
        """Turn to entity."""

    def find_place(self, entity: str) -> Place | None:
        """Return the place of an entity, or None if it has not begun."""
        return self.places.get(entity)

    def find_owner(self, turn: str) -> str | None:
        """Return the entity that a committed turn belongs to."""
        return self.owners.get(turn)

    @abstractmethod
    def find_token(self, root: str) -> int | None:
        """Return the token of a lease that was claimed for an entity before it began."""

    @abstractmethod
    def find_mail(self, entity: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""

    @abstractmethod
    def find_mail_row(self, no: int) -> MailRow | None:
        """Return the mail with that number. One that was taken may be missing."""

    def is_used(self, turn: str) -> bool:  # noqa: ARG002  # an index in memory overrides it
        """Return whether a turn's id is used already. A database checks that with a unique index when it writes."""
        return False

    def apply(self, planned: Plan) -> None:
        """Add the written records."""
        places = self.places
        places.update(planned.new)
        for turn, entity in planned.turns.items():
            places[entity].tip = turn
        for entity, standing in planned.standings.items():
            places[entity].standing = standing
        for tree, head in planned.heads.items():
            tree.head = head
        for tree, waiting in planned.waiting.items():
            tree.waiting = waiting
        for entity, _ in planned.timers:
            if entity:
                places[entity].has_timers = True


def plan(
    records: Sequence[Record],
    lines: Sequence[bytes],
    numbers: Sequence[int],
    known: Known,
    leases: Mapping[str, int] = NO_LEASES,
) -> Plan:
    """Return the plan for records with these lines and numbers. Raises LoomError for one that may not come next."""
    planned = Plan(records, numbers)
    places, blobs = planned.places, planned.blobs
    entity = place = tree = token = None
    run: list[bytes] = []
    for at, record in enumerate(records):
        kind = record.__class__
        if record.entity_id != entity:
            entity = record.entity_id
            place = known.find_place(entity) or planned.new.get(entity)
        if place is None or kind in NOTED:
            header = as_header(record)
            if place is None or header is not None:
                header = _check_header(header, record.entity_id, place, planned, known)
                _check_name(header, leases, known)
                place = begin(header, numbers[at], planned, known)
            else:
                _check(record, place, planned, known)
                follow(record, numbers[at], place, planned)
        if place.tree is not tree:
            tree = place.tree
            token = leases.get(tree.root) if leases else None
            run = []
            planned.runs.append((tree, run))
        if token != tree.token and (token is not None or is_for_lease_holder(record)):
            raise Fenced.out(record.entity_id, tree.root, token, tree.token)
        if kind in WITH_SNAPSHOT and record.snapshot is not None:  # type: ignore[union-attr]  # its type says so
            add_snapshot(record.snapshot, blobs)  # type: ignore[union-attr]  # likewise
        if kind in WITH_IMAGES and record.images:  # type: ignore[union-attr]  # likewise
            add_images(record.images, blobs)  # type: ignore[union-attr]  # likewise
        places.append(place)
        run.append(lines[at])
    return planned


def seal_plan(planned: Plan, key: bytes, links: Sequence[bytes | None]) -> None:
    """Seal each line of a plan after the one before it in its tree; add the new last link of each tree.

    For lines of another store `links` has the links of tombstones, and None for each other line.
    """
    heads, links_left = planned.heads, iter(links)
    for tree, lines in planned.runs:
        head = heads.get(tree, tree.head)
        sealed, heads[tree] = seal_copied(lines, links_left, head, key) if links else seal_lines(lines, head, key)
        planned.lines += sealed


def lease_of_name(header: Header) -> str | None:
    """Return the text on which a lease claims the name of an entity that begins; None if it has no unique name."""
    name = header.scoped_name
    return None if name is None or not header.lasting else name_lease(name)


def _check_name(header: Header, leases: Mapping[str, int], known: Known) -> None:
    """Raise Fenced if the writer has claimed the name of an entity that begins, and another one has it now."""
    name = lease_of_name(header)
    token = None if name is None else leases.get(name)
    if name is not None and token is not None and token != known.find_token(name):
        raise Fenced.out(header.entity_id, name, token, known.find_token(name))


def check_lease(entity_id: str, tree: Tree, leases: Mapping[str, int]) -> None:
    """Raise Fenced unless one of `leases` is the valid one of the tree, or the tree has none."""
    token = leases.get(tree.root)
    if token != tree.token:
        raise Fenced.out(entity_id, tree.root, token, tree.token)


def follow(record: Record, number: int, place: Place, planned: Plan) -> None:
    """Add the consequences of a record of a begun entity to a plan. Nothing is checked."""
    entity = record.entity_id
    if (turn := get_committed_turn(record)) is not None:
        planned.turns[turn] = entity
    elif type(record) in ASIDES:
        planned.asides.append((entity, number))
    before = planned.standings.get(entity, place.standing)
    after = advance(record, before, lasting=place.lasting)
    if after is not before:
        planned.standings[entity] = after
        if after.life is Life.OVER and before.life is not Life.OVER:
            if place.has_timers:
                planned.timed_out.append(entity)
            if entity == place.tree.root:
                planned.over.append((place.tree, number))


def begin(header: Header, number: int, planned: Plan, known: Known) -> Place:
    """Add an entity to a plan, and return its place. Nothing is checked."""
    entity, parent = header.entity_id, header.parent_entity
    above = None if parent is None or header.forked else planned.new.get(parent) or known.find_place(parent)
    tree = Tree(number, entity, NOTHING, known.find_token(entity)) if above is None else above.tree
    standing = begin_standing(header)
    row = EntityRow(number, entity, tree.no, *read_header_facts(header), standing.life.value, *standing[1:])
    planned.entities.append(row)
    place = planned.new[entity] = Place(number, tree, header.lasting, standing)
    return place


def plan_timers(planned: Plan, known: Known, timers: Sequence[tuple[int | None, Timer]]) -> None:
    """Add timers to a plan, each with the index of its record; an entity that ends with the batch loses them again.

    A timer that is never due is removed, unless it is a schedule. Raises LoomError.
    """
    changed: dict[tuple[str, str], tuple[Timer, bytes, int | None]] = {}
    for at, timer in timers:
        entity = timer.entity_id
        place = planned.new.get(entity) or known.find_place(entity)
        if entity and place is None:
            raise UnknownEntity(entity, f"timer {timer.id!r} is set for entity {entity}, which is not in this loom")
        line = b"" if timer.due is None and timer.schedule is None else encode_timer(timer)
        if line and timer.mail is not None:
            add_images(timer.mail.images, planned.blobs)
        changed[entity, timer.id] = timer, line, None if at is None else planned.numbers[at]
    planned.timers = changed
    standings = planned.standings
    ended = {entity for entity, _ in changed if entity in standings and standings[entity].life is Life.OVER}
    planned.timed_out += sorted(ended.difference(planned.timed_out))


def read_header_facts(header: Header) -> tuple[str | None, str | None, bool, str | None, bool, str, str]:
    """Return the facts of a header that an entity's row repeats, in the order of `EntityRow`."""
    origin = header.parent_entity, header.parent_turn, header.forked
    return *origin, header.name, header.lasting, header.tenant, header.at


def _check_header(header: Header | None, entity: str, place: Place | None, planned: Plan, known: Known) -> Header:
    if header is None:
        raise LoomError(f"entity {entity} has no header: its first record must be one")
    if place is not None:
        raise LoomError(f"loom is append-only: entity {entity} has begun already and cannot begin again")
    turn, parent = get_named_turn(header), header.parent_entity
    if turn is not None and _find_owner(turn, planned, known) is None:
        raise LoomError(f"entity {entity} cannot begin below turn {turn}: no such turn is recorded")
    if parent is not None and not header.forked and parent not in planned.new and known.find_place(parent) is None:
        raise LoomError(f"entity {entity} cannot begin below entity {parent}: no such entity is recorded")
    return header


def _check(record: Record, place: Place, planned: Plan, known: Known) -> None:
    turn, named = get_committed_turn(record), get_named_turn(record)
    if turn is not None and (turn in planned.turns or known.is_used(turn)):
        raise LoomError(f"loom is append-only: turn {turn} is recorded already and cannot be changed")
    if named is None or named == place.tip:
        return
    owner = _find_owner(named, planned, known)
    if turn is None and owner != record.entity_id:
        raise LoomError(f"turn {named} cannot be rewarded: entity {record.entity_id} has no such turn")
    if owner is None:
        raise LoomError(f"turn {turn} cannot follow turn {named}: no such turn is recorded")


def _find_owner(turn: str, planned: Plan, known: Known) -> str | None:
    return planned.turns.get(turn) or known.find_owner(turn)

"""Where things are in a loom, for a store that keeps this in memory: entities, who owns a turn, what hangs below it.

It also says what may be appended at all: an entity begins once and with a header, a turn's id is used once (D-008), and
whatever names a turn names one that is there (LOOM-2). A store asks `check` before it writes and `add` once it has.

Where the number of turns decides, text maps to text, so that the garbage collector has nothing to walk.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from cantrip_actors.loom.lease import Lease, LeasesHere, not_root
from cantrip_actors.loom.life import Life, life_after
from cantrip_actors.loom.store import Store
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Committed, Ended, Header, IntentGiven, Record, Rewarded

__all__ = ["Index", "IndexedStore"]

P = TypeVar("P")


class Index(Generic[P]):
    """`places` maps entities, in order of creation, to where their records lie: whatever `make` makes."""

    __slots__ = ("_lasting", "_make", "_roots", "below", "children", "forks", "names", "owners", "places", "unfinished")

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self.places: dict[str, P] = {}
        self.owners: dict[str, str] = {}
        """Turn to entity."""
        self.children: dict[str, list[str]] = {}
        """Turn to the entities that it spawned."""
        self.forks: dict[str, list[str]] = {}
        """Turn to the entities that go on from it."""
        self.below: dict[str, list[str]] = {}
        """Entity to the entities that it spawned."""
        self.names: dict[str, str] = {}
        """Name to the latest lasting entity that has it."""
        self.unfinished: dict[str, Life] = {}
        """The entities that are not over, in order of creation, to where they stand."""
        self._lasting: set[str] = set()
        self._roots: dict[str, str] = {}

    def told(self) -> dict[str, Any]:
        """All of it but the places, for JSON."""
        turns: dict[str, list[str]] = {}
        for turn, entity in self.owners.items():
            turns.setdefault(entity, []).append(turn)
        return {
            "entities": list(self.places),
            "turns": turns,
            "children": self.children,
            "forks": self.forks,
            "below": self.below,
            "names": self.names,
            "unfinished": {entity: life.value for entity, life in self.unfinished.items()},
            "lasting": list(self._lasting),
            "roots": self._roots,
        }

    def take(self, told: Mapping[str, Any], places: Iterable[P]) -> None:
        """The other way round, into an index that is empty."""
        self.places = dict(zip(told["entities"], places, strict=True))
        for entity, turns in told["turns"].items():
            self.owners.update(dict.fromkeys(turns, entity))
        self.children, self.forks, self.below = told["children"], told["forks"], told["below"]
        self.names, self._roots = told["names"], told["roots"]
        self.unfinished = {entity: Life(number) for entity, number in told["unfinished"].items()}
        self._lasting = set(told["lasting"])

    def root(self, entity: str) -> str:
        """The entity that the tree of `entity` began with: itself, unless another one spawned it."""
        return self._roots.get(entity, entity)

    def roots(self, records: Iterable[Record]) -> list[str]:
        """The root of each record's entity, where they come next; some of those may begin with them."""
        begun: dict[str, str] = {}
        roots: list[str] = []
        for record in records:
            entity = record.entity_id
            if isinstance(record, Header) and record.parent_entity is not None and not record.forked:
                begun[entity] = begun.get(record.parent_entity) or self.root(record.parent_entity)
            roots.append(begun.get(entity) or self.root(entity))
        return roots

    def check(self, records: Iterable[Record]) -> None:
        """Raise LoomError if `records` may not come next, in this order. Nothing is changed."""
        places, owners = self.places, self.owners
        begun: set[str] = set()
        made: dict[str, str] = {}
        for record in records:
            entity = record.entity_id
            if isinstance(record, Header):
                if entity in places or entity in begun:
                    raise LoomError(f"loom is append-only: entity {entity} has begun already and cannot begin again")
                self._there(record.parent_turn, made, f"entity {entity} cannot begin below turn")
                parent = record.parent_entity
                if parent is not None and not record.forked and parent not in places and parent not in begun:
                    raise LoomError(f"entity {entity} cannot begin below entity {parent}: no such entity is recorded")
                begun.add(entity)
            elif entity not in places and entity not in begun:
                raise LoomError(f"entity {entity} has no header: its first record must be one")
            elif isinstance(record, Committed):
                turn = record.turn_id
                if turn in owners or turn in made:
                    raise LoomError(f"loom is append-only: turn {turn} is recorded already and cannot be changed")
                self._there(record.parent_id, made, f"turn {turn} cannot follow turn")
                made[turn] = entity
            elif isinstance(record, Rewarded):
                turn = record.turn_id
                if owners.get(turn, made.get(turn)) != entity:
                    raise LoomError(f"turn {turn} cannot be rewarded: entity {entity} has no such turn")

    def _there(self, turn: str | None, made: Collection[str], what: str) -> None:
        if turn is not None and turn not in self.owners and turn not in made:
            raise LoomError(f"{what} {turn}: no such turn is recorded")

    def add(self, record: Record) -> P:
        """Take note of a record that is kept now; the place of its entity."""
        if isinstance(record, Header):
            return self.begin(record)
        if isinstance(record, Committed):
            self.owners[record.turn_id] = record.entity_id
            if record.terminated or record.truncated:
                self._live(record)
        elif isinstance(record, (IntentGiven, Ended)):
            self._live(record)
        return self.places[record.entity_id]

    def _live(self, record: Record) -> None:
        entity = record.entity_id
        before = self.unfinished.get(entity, Life.OVER)
        after = life_after(record, before, lasting=entity in self._lasting)
        if after is before:
            return
        if after is Life.OVER:
            del self.unfinished[entity]
            return
        self.unfinished[entity] = after
        if before is Life.OVER:  # nothing writes that, but a log that says it is believed: back to where it began
            again = self.unfinished
            self.unfinished = {one: again[one] for one in self.places if one in again}

    def begin(self, header: Header) -> P:
        """Take note of an entity; its place."""
        entity = header.entity_id
        if header.parent_turn is not None:
            kin = self.forks if header.forked else self.children
            kin.setdefault(header.parent_turn, []).append(entity)
        if header.parent_entity is not None and not header.forked:
            self.below.setdefault(header.parent_entity, []).append(entity)
            self._roots[entity] = self.root(header.parent_entity)
        if header.lasting:
            self._lasting.add(entity)
            if header.name is not None:
                self.names[header.name] = entity
        self.unfinished[entity] = Life.BUSY
        place = self.places[entity] = self._make()
        return place


class IndexedStore(Store, Generic[P]):
    """A store that answers from an index in memory and keeps only the lines elsewhere."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._index: Index[P] = Index(make)
        self._leases = LeasesHere()

    @abstractmethod
    def _first(self, place: P) -> Record:
        """The first record at `place`."""

    def _check(self, records: Sequence[Record], tokens: Mapping[str, int]) -> None:
        """Raise LoomError if `records` may not come next, under these leases."""
        self._index.check(records)
        if self._leases or tokens:
            self._leases.check(records, self._index.roots(records), tokens)

    def claim(self, entity_id: str, owner: str, ttl: float) -> Lease:
        """The right to write for the tree of a root entity, which may be about to begin."""
        root = self._index.root(entity_id)
        if root != entity_id:
            raise not_root(entity_id, root)
        return self._leases.claim(entity_id, owner, ttl)

    def renew(self, owner: str, ttl: float) -> None:
        """Let all that `owner` holds last until `ttl` seconds from now."""
        self._leases.renew(owner, ttl)

    def release(self, *leases: Lease) -> None:
        """Let go of leases; fine where one is over already."""
        for lease in leases:
            self._leases.release(lease)

    def header(self, entity_id: str) -> Header | None:
        """How an entity began; None for one that is not here."""
        place = self._index.places.get(entity_id)
        if place is None:
            return None
        first = self._first(place)
        assert isinstance(first, Header)  # the index lets no entity begin otherwise
        return first

    def headers(self) -> Iterator[Header]:
        """Every entity's header, in order of creation, up to the moment of the call."""
        for entity_id in list(self._index.places):
            header = self.header(entity_id)
            assert header is not None  # nothing leaves an index
            yield header

    def owner(self, turn_id: str) -> str | None:
        """The entity that a committed turn belongs to."""
        return self._index.owners.get(turn_id)

    def children(self, turn_id: str) -> Sequence[str]:
        """The entities that a turn spawned."""
        return tuple(self._index.children.get(turn_id, ()))

    def forks(self, turn_id: str) -> Sequence[str]:
        """The entities that were forked from a turn."""
        return tuple(self._index.forks.get(turn_id, ()))

    def below(self, entity_id: str) -> Sequence[str]:
        """The entities that an entity spawned."""
        return tuple(self._index.below.get(entity_id, ()))

    def named(self, name: str) -> str | None:
        """The latest lasting entity of that name."""
        return self._index.names.get(name)

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """The entities that are not over, in order of creation."""
        found = self._index.unfinished
        return tuple(found) if idle else tuple(one for one, life in found.items() if life is Life.BUSY)

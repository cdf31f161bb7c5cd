"""A batch of records as rows of a database: what may be appended, and what is then written where. No I/O.

Both SQL stores keep the same six tables:

    records     seq, entity, turn, body     a line each, in order; `turn` for committed turns only, and unique
    entities    no, id, tree, …             one an entity: what it hangs from, its name, where it stands in its life
    trees       no, head                    one a root: the last link of its hash chain
    leases      token, entity, holder       who may write for a tree, while anyone has claimed it
    images      digest, engine, seal, data  of sandboxes: those that lines refer to, each once (`images`)
    pictures    digest, type, data          of messages and gate results: likewise (`pictures`)

An entity's `no` is the `seq` of its header. `plan` follows a batch record by record, asks `Known` for what the database
holds already, and refuses what may not come next with the same words as `index` does for the stores that keep
everything in memory. That a turn's id is new it leaves to the database's own unique index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cantrip_actors.loom.chain import NOTHING, seal
from cantrip_actors.loom.images import brought
from cantrip_actors.loom.lease import Fenced
from cantrip_actors.loom.life import Life, life_after
from cantrip_actors.loom.pictures import Picture, brought_pictures
from cantrip_actors.loom.record import encode
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Committed, Ended, Header, IntentGiven, Record, Rewarded

__all__ = ["EntityRow", "Known", "Place", "RecordRow", "Rows", "Tree", "plan"]


class RecordRow(NamedTuple):
    """A line."""

    seq: int
    entity: int
    turn: str | None
    body: str


class EntityRow(NamedTuple):
    """An entity that begins."""

    no: int
    id: str
    tree: int
    parent_entity: str | None
    parent_turn: str | None
    forked: bool
    name: str | None
    lasting: bool
    life: int


@dataclass(slots=True)
class Tree:
    """A root entity and everything it spawned: one chain, one lease."""

    no: int
    root: str
    head: bytes
    token: int | None = None
    """Of the lease that somebody has on it."""


@dataclass(slots=True)
class Place:
    """What has to be known of an entity to append to it."""

    no: int
    tree: Tree
    lasting: bool
    life: Life
    tip: str | None = None
    """Its last committed turn, where that is known: the next one's parent."""


class Known(ABC):
    """What the database holds, as far as a batch asks. `plan` keeps it up to date with what it plans.

    So it is right once the batch is written. Where that fails it has to be forgotten (`forget`).
    """

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.trees: dict[int, Tree] = {}

    def forget(self) -> None:
        """Look everything up again."""
        self.places.clear()
        self.trees.clear()

    def place(self, entity: str) -> Place | None:
        """An entity, if it is there."""
        found = self.places.get(entity)
        if found is None:
            found = self.find(entity)
            if found is not None:
                self.places[entity] = found
        return found

    @abstractmethod
    def find(self, entity: str) -> Place | None:
        """Look an entity up. Those of one tree share one `Tree`, which is in `trees`."""

    @abstractmethod
    def owner(self, turn: str) -> str | None:
        """The entity that a committed turn belongs to."""

    @abstractmethod
    def token(self, root: str) -> int | None:
        """Of the lease on a tree that is about to begin, if somebody claimed it ahead."""


@dataclass(slots=True)
class Rows:
    """What to write."""

    records: list[RecordRow] = field(default_factory=list)
    entities: list[EntityRow] = field(default_factory=list)
    lives: dict[int, Life] = field(default_factory=dict)
    """Entities that were there already, to where they stand from now on."""
    trees: dict[int, Tree] = field(default_factory=dict)
    """Those that are new, and those whose head is another one now."""
    images: list[SandboxImage] = field(default_factory=list)
    """In the order of their digests: two that write the same ones do not wait for each other in a circle."""
    pictures: list[Picture] = field(default_factory=list)
    """Likewise."""


def plan(records: Sequence[Record], numbers: Iterable[int], known: Known, leases: Mapping[str, int]) -> Rows:
    """The rows of `records`, with these numbers, which rise. Raises LoomError for what may not come next."""
    rows = Rows(images=brought(records), pictures=brought_pictures(records))
    made: dict[str, str] = {}
    lines = rows.records
    for seq, record in zip(numbers, records, strict=True):
        entity = record.entity_id
        place = known.place(entity)
        turn: str | None = None
        if isinstance(record, Header):
            if place is not None:
                raise LoomError(f"loom is append-only: entity {entity} has begun already and cannot begin again")
            _there(record.parent_turn, made, known, f"entity {entity} cannot begin below turn")
            place = known.places[entity] = _begin(record, seq, known, rows)
        elif place is None:
            raise LoomError(f"entity {entity} has no header: its first record must be one")
        elif isinstance(record, Committed):
            turn = _commit(record, place, made, known)
            if record.terminated or record.truncated:
                _live(record, place, rows)
        elif isinstance(record, Rewarded):
            if made.get(record.turn_id) != entity and known.owner(record.turn_id) != entity:
                raise LoomError(f"turn {record.turn_id} cannot be rewarded: entity {entity} has no such turn")
        elif isinstance(record, (IntentGiven, Ended)):
            _live(record, place, rows)
        tree = place.tree
        token = leases.get(tree.root) if leases else None
        if tree.token != token and not (token is None and isinstance(record, Rewarded)):
            raise Fenced.out(entity, tree.root, token, tree.token)
        line, tree.head = seal(encode(record), tree.head)
        rows.trees[tree.no] = tree
        lines.append(RecordRow(seq, place.no, turn, line.decode()))
    return rows


def _there(turn: str | None, made: Mapping[str, str], known: Known, what: str) -> None:
    if turn is not None and turn not in made and known.owner(turn) is None:
        raise LoomError(f"{what} {turn}: no such turn is recorded")


def _begin(header: Header, seq: int, known: Known, rows: Rows) -> Place:
    entity = header.entity_id
    if header.parent_entity is not None and not header.forked:
        parent = known.place(header.parent_entity)
        if parent is None:
            raise LoomError(
                f"entity {entity} cannot begin below entity {header.parent_entity}: no such entity is recorded"
            )
        tree = parent.tree
    else:
        tree = known.trees[seq] = Tree(seq, entity, NOTHING, known.token(entity))
    rows.entities.append(
        EntityRow(
            seq,
            entity,
            tree.no,
            header.parent_entity,
            header.parent_turn,
            header.forked,
            header.name,
            header.lasting,
            Life.BUSY.value,
        )
    )
    return Place(seq, tree, header.lasting, Life.BUSY)


def _commit(record: Committed, place: Place, made: dict[str, str], known: Known) -> str:
    turn = record.turn_id
    if turn in made:
        raise LoomError(f"loom is append-only: turn {turn} is recorded already and cannot be changed")
    if record.parent_id != place.tip:
        _there(record.parent_id, made, known, f"turn {turn} cannot follow turn")
    made[turn] = record.entity_id
    place.tip = turn
    return turn


def _live(record: Record, place: Place, rows: Rows) -> None:
    after = life_after(record, place.life, lasting=place.lasting)
    if after is not place.life:
        place.life = after
        rows.lives[place.no] = after

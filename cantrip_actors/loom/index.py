"""The index of a loom in memory: entities, the owners of turns, and the entities below each turn.

If the size depends on the number of turns, it maps text to text, which the garbage collector need not traverse.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from cantrip_actors.loom.lease import Holder
from cantrip_actors.loom.line_inbox import Inboxes
from cantrip_actors.loom.line_timers import Timers
from cantrip_actors.loom.rules import EntityRow, Known, Place, Plan, Tree, begin, follow
from cantrip_actors.machine.project import Life, as_header
from cantrip_actors.records.mail import MailRow, decode_mail
from cantrip_actors.records.records import Record
from cantrip_actors.terms.errors import LoomError


class Index(Known):
    """The facts that `rules` asks for, and the answers to a store's questions. `places` is in order of creation."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[str, Holder] = {}
        """Each entity's lease, whose time `left` counts from the start of the machine (`read_boot_clock`)."""
        self.inboxes = Inboxes()
        self.timers = Timers()
        self.spots: list[array[int]] = []
        """For each entity, by the number of its place: offset and length of each of its lines, alternating."""
        self.owners: dict[str, str] = {}
        """Turn to entity."""
        self.children: dict[str, list[str]] = {}
        """Each turn's spawned entities."""
        self.forks: dict[str, list[str]] = {}
        """Each turn's forks."""
        self.below: dict[str, list[str]] = {}
        """Each entity's spawned entities."""
        self.asides: dict[str, list[int]] = {}
        """For each entity, the numbers of its records of a kind in `ASIDES`."""
        self.names: dict[str, str] = {}
        """The latest long-lived entity of each name."""
        self.keys: dict[str, dict[str, int]] = {}
        """For each root entity, the keys of taken mail, and the numbers of the records that took it."""
        self.unfinished: dict[str, Life] = {}
        """The entities that have not ended for good, in order of creation."""

    def find_owner(self, turn: str) -> str | None:
        """Return the entity that a committed turn belongs to."""
        return self.owners.get(turn)

    def is_used(self, turn: str) -> bool:
        """Return whether a turn has that id."""
        return turn in self.owners

    def find_token(self, root: str) -> int | None:
        """Return the token of the lease on an entity."""
        lease = self.leases.get(root)
        return None if lease is None else lease.token

    def find_mail(self, entity: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        return self.inboxes.rows.get((entity, key))

    def find_mail_row(self, no: int) -> MailRow | None:
        """Return the mail with that number, if it waits."""
        return self.inboxes.find_mail_row(no)

    def follow(self, record: Record, number: int) -> Place:
        """Add a record that was read to the index, and return the place of its entity.

        Raises LoomError for a second header of an entity, and for another record before the header.
        """
        entity, header, made = record.entity_id, as_header(record), Plan()
        place = self.places.get(entity)
        if header is not None:
            if place is not None:
                raise LoomError(f"entity {entity} begins a second time")
            begin(header, number, made, self).tree.head = None  # the tree's last line has it
        elif place is None:
            raise LoomError(f"entity {entity} has no header before it")
        else:
            follow(record, number, place, made)
        self.apply(made)
        return self.places[entity]

    def apply(self, made: Plan) -> None:
        """Add written records to the index."""
        if made.entities:
            for row in made.entities:
                self._begin(row, made.new[row.id])
        Known.apply(self, made)
        if made.turns:
            self.owners.update(made.turns)
        if made.lives:
            for entity, life in made.lives.items():
                self._set_life(entity, life)
        for entity, number in made.asides:
            self.asides.setdefault(entity, []).append(number)
        if made.keys:
            for tree, key, number in made.keys:
                self.keys.setdefault(tree.root, {})[key] = number
        if made.waiting:
            self.inboxes.apply(made)
        if made.timers or made.timed_out:
            self.timers.apply(made)
        numbers, lines = made.numbers, made.lines
        for at, place in enumerate(made.places):
            spots = self.spots[place.no]
            spots.append(numbers[at])
            spots.append(len(lines[at]) + 1)

    def _begin(self, row: EntityRow, place: Place) -> None:
        place.no = len(self.spots)
        self.spots.append(array("Q"))
        if row.parent_turn is not None:
            kin = self.forks if row.forked else self.children
            kin.setdefault(row.parent_turn, []).append(row.id)
        if row.parent_entity is not None and not row.forked:
            self.below.setdefault(row.parent_entity, []).append(row.id)
        if row.lasting and row.name is not None:
            self.names[row.name] = row.id
        self.unfinished[row.id] = Life.BUSY

    def _set_life(self, entity: str, life: Life) -> None:
        if life >= Life.OVER:
            self.unfinished.pop(entity, None)
        elif entity in self.unfinished:
            self.unfinished[entity] = life
        else:  # no store writes a record after the end, but such a log is accepted: the entity lives again
            again = {**self.unfinished, entity: life}
            self.unfinished = {one: again[one] for one in self.places if one in again}

    def forget_mail(self, entity: str) -> None:
        """Remove everything about a forgotten entity's mail except its numbers."""
        place = self.places[entity]
        root, spots = place.tree.root, self.spots[place.no]
        numbers = frozenset(spots[::2])
        is_root = root == entity
        keys = {} if is_root else self.keys.get(root, {})
        self.keys[root] = {key: number for key, number in keys.items() if number not in numbers}
        for row, line in list(self.inboxes.read_lines()):
            if row.entity_id == root and (
                is_root or row.taken in numbers or (line and decode_mail(line).child == entity)
            ):
                self.inboxes.forget_content(row, spots[-2])
        place.tree.waiting = self.inboxes.count(root)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the spots as JSON."""
        turns: dict[str, list[str]] = {}
        for turn, entity in self.owners.items():
            turns.setdefault(entity, []).append(turn)
        return {
            "entities": [[one, place.tree.root, place.lasting, place.life.value] for one, place in self.places.items()],
            "turns": turns,
            "children": self.children,
            "forks": self.forks,
            "below": self.below,
            "asides": self.asides,
            "names": self.names,
            "keys": self.keys,
        }

    def load(self, kept: Mapping[str, Any], spots: Iterable[array[int]]) -> None:
        """Fill an empty index with the result of `as_json`."""
        self.spots = list(spots)
        for no, (entity, root, lasting, life) in enumerate(kept["entities"]):
            tree = Tree(no, entity, None) if root == entity else self.places[root].tree
            place = self.places[entity] = Place(no, tree, lasting, Life(life))
            if place.life < Life.OVER:
                self.unfinished[entity] = place.life
        for entity, turns in kept["turns"].items():
            self.owners.update(dict.fromkeys(turns, entity))
        self.children, self.forks, self.below, self.asides, self.names, self.keys = (
            kept[name] for name in ("children", "forks", "below", "asides", "names", "keys")
        )

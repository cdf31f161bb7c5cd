"""The index of a loom in memory: entities, their records, the owners of turns, and the entities below each turn.

If the size depends on the number of turns, it maps text to text, which the garbage collector need not traverse.
"""

from __future__ import annotations

from array import array

from cantrip_actors.loom.memory.memory_listing import EntityListing
from cantrip_actors.loom.memory.memory_mail import MailIndex
from cantrip_actors.loom.memory.memory_submissions import SubmissionIndex
from cantrip_actors.loom.memory.memory_timers import TimerIndex
from cantrip_actors.loom.stores.lease import Holder
from cantrip_actors.loom.stores.rules import EntityRow, Known, Place, Plan, begin, follow
from cantrip_actors.machine.project import Life, as_header
from cantrip_actors.records.mail import MailRow, get_key
from cantrip_actors.records.records import Record
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.terms.errors import LoomError


class MemoryIndex(Known):
    """The facts that `rules` asks for, and the answers to a store's questions. `places` is in order of creation."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[str, Holder] = {}
        """Each entity's lease, whose time `left` counts from the start of the machine (`read_boot_clock`)."""
        self.mail = MailIndex()
        self.timers = TimerIndex()
        self.submissions = SubmissionIndex()
        self.listing = EntityListing()
        self.numbers: list[array[int]] = []
        """For each entity, by the number of its place: the numbers of its records."""
        self.children: dict[str, list[str]] = {}
        """Each turn's spawned entities."""
        self.forks: dict[str, list[str]] = {}
        """Each turn's forks."""
        self.branches: dict[str, list[str]] = {}
        """The forks from any turn of each entity."""
        self.below: dict[str, list[str]] = {}
        """Each entity's spawned entities."""
        self.asides: dict[str, list[int]] = {}
        """For each entity, the numbers of its records of a kind in `ASIDES`."""
        self.names: dict[str, str] = {}
        """The latest long-lived entity of each name."""
        self.unfinished: dict[str, Life] = {}
        """The entities that have not ended for good, in order of creation."""

    def is_used(self, turn: str) -> bool:
        """Return whether a turn has that id."""
        return turn in self.owners

    def find_token(self, root: str) -> int | None:
        """Return the token of the lease on an entity."""
        lease = self.leases.get(root)
        return None if lease is None else lease.token

    def find_mail(self, entity: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        return self.mail.rows.get((entity, key))

    def find_mail_row(self, no: int) -> MailRow | None:
        """Return the mail with that number, if it waits."""
        return self.mail.find_waiting(no)

    def list_numbers(self, entity: str) -> array[int]:
        """Return the numbers of an entity's records, in order; none for an unknown entity."""
        place = self.places.get(entity)
        return _NO_NUMBERS if place is None else self.numbers[place.no]

    def follow(self, record: Record, number: int) -> Place:
        """Add the consequences of a record that was read to the index, and return the place of its entity.

        Mail with the record's key was taken by it. Raises LoomError for a second header of an entity, for another
        record before the header, and for a fork from a turn that no record has.
        """
        entity, header, plan = record.entity_id, as_header(record), Plan()
        place = self.places.get(entity)
        if header is not None:
            if place is not None:
                raise LoomError(f"entity {entity} begins a second time")
            if header.forked and header.parent_turn not in self.owners:
                raise LoomError(f"entity {entity} forks turn {header.parent_turn}, which no record before it has")
            begin(header, number, plan, self)
        elif place is None:
            raise LoomError(f"entity {entity} has no header before it")
        else:
            follow(record, number, place, plan)
        self.apply(plan)
        place = self.places[entity]
        row = None if (key := get_key(record)) is None else self.find_mail(place.tree.root, key)
        if row is not None and row.taken is None:
            self.mail.take(row, number)
        if place.life >= Life.OVER and place.tree.root == entity:
            self.mail.take_all(entity, number)
        return place

    def apply(self, plan: Plan) -> None:
        """Add written records to the index."""
        self.owners.update(plan.turns)
        for row in plan.entities:
            self._begin(row, plan.new[row.id])
        Known.apply(self, plan)
        for entity, standing in plan.standings.items():
            self._set_life(entity, standing.life)
            self.listing.move(entity, standing)
        for entity, number in plan.asides:
            self.asides.setdefault(entity, []).append(number)
        self.mail.apply(plan)
        self.timers.apply(plan)
        numbers = self.numbers
        for place, number in zip(plan.places, plan.numbers, strict=True):
            numbers[place.no].append(number)

    def _begin(self, row: EntityRow, place: Place) -> None:
        place.no = len(self.numbers)
        self.numbers.append(array("Q"))
        if row.parent_turn is not None:
            kin = self.forks if row.forked else self.children
            kin.setdefault(row.parent_turn, []).append(row.id)
            if row.forked:
                self.branches.setdefault(self.owners[row.parent_turn], []).append(row.id)
        if row.parent_entity is not None and not row.forked:
            self.below.setdefault(row.parent_entity, []).append(row.id)
        if row.lasting and row.name is not None:
            self.names[scope_name(row.tenant, row.name)] = row.id
        self.unfinished[row.id] = Life(row.life)
        self.listing.add(row)

    def _set_life(self, entity: str, life: Life) -> None:
        if life >= Life.OVER:
            self.unfinished.pop(entity, None)
        elif entity in self.unfinished:
            self.unfinished[entity] = life
        else:  # no store writes a record after the end, but such a log is accepted: the entity lives again
            lives = {**self.unfinished, entity: life}
            self.unfinished = {id: lives[id] for id in self.places if id in lives}


_NO_NUMBERS: array[int] = array("Q")

"""The loom as its users see it, `runtime.loom`: turns, threads, subtrees, endings of entities, and rewards.

Everything here is derived from the records on each call; no other data could differ from them. Users can add only
rewards, which are records of their own (LOOM-3). Records reach the store through `append`, which the runtime passes in,
because a store has one writer; `open_loom` is for code outside of any runtime.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeVar

from cantrip_actors.loom.maintenance.forget import Forgotten, Wanted, find_root, forget_entities
from cantrip_actors.loom.maintenance.retention import Duration, Pruned, prune_loom
from cantrip_actors.loom.opening import open_store
from cantrip_actors.loom.seal.seal_key import GivenKey
from cantrip_actors.loom.stores.blobs import bind_images
from cantrip_actors.loom.stores.checkpoints import StoredCheckpoint
from cantrip_actors.loom.stores.facts import EntityFacts, WithRecords
from cantrip_actors.loom.stores.inbox import KeyUsed
from cantrip_actors.loom.stores.lease import QuarantineRow
from cantrip_actors.loom.stores.selection import EVERYTHING, ListedEntity, Page, Selection, check_page_limit
from cantrip_actors.loom.stores.settled import count_settled
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.machine.checkpoint import decode_checkpoint
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.mail import list_waiting_intents
from cantrip_actors.machine.project import (
    ClientCall,
    Life,
    Round,
    Status,
    begins_inside,
    collect_rewards,
    collect_texts,
    cut_round,
    find_client_call,
    find_first_intent,
    find_header_at,
    find_header_in_force,
    find_last_metadata,
    find_open_request,
    find_turn_in_force,
    fold_log,
    get_committed_turn,
    get_outcome,
    get_time,
    get_turn_number,
    has_undone,
    list_first_turns,
    list_intents,
    read_round,
    read_turns,
    split_asides,
)
from cantrip_actors.machine.state import Shape
from cantrip_actors.machine.state import State as MachineState
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.mail import make_decision_key
from cantrip_actors.records.records import Header, IntentGiven, Record, Requested, Rewarded
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.turn import Turn
from cantrip_actors.terms.arguments import check, check_kind, check_texts, is_finite, is_whole
from cantrip_actors.terms.errors import LoomError, UnknownEntity
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.outcome import Outcome

State = Status

R = TypeVar("R")
T = TypeVar("T")

InStore = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Returns what a function reads in the store, without blocking the event loop if the store is on a server."""


async def _read_at_once(work: Callable[[], Any]) -> Any:
    return work()


class Loom:
    """The tree of all turns, for reading, and for rewards (LOOM-2, LOOM-3, LOOM-7, LOOM-8, LOOM-10).

    `loom[turn_id]` is a turn; an unknown id raises LoomError. Reading is synchronous and costs as much as the entity's
    records, so ask for `turns` once rather than for each turn by its id.

    With a `tenant` it contains only that tenant's entities; any other id is unknown.

    With `checks` it compares the records, turns, threads and outcomes that it returns with the hash chain, and
    raises DamagedLoom for those that are not what was written (0171). It does not compare listings, states and feeds.
    The looms of `open_loom` and of a runtime check.
    """

    def __init__(
        self,
        store: Store,
        append: Callable[[Sequence[Record]], Awaitable[None]],
        now: Callable[[], str] | None = None,
        tenant: str | None = None,
        in_store: InStore | None = None,
        *,
        checks: bool = False,
    ) -> None:
        self.tenant = tenant
        self._checks = checks
        self._in_store = in_store or _read_at_once
        self._store = store
        self._append = append
        self._now = now or partial(_read_time, store)

    # ------------------------------------------------------------------------------------------------------- one entity

    def entities(self) -> list[str]:
        """Return the ids of all entities, in order of creation."""
        return [header.entity_id for header in self.headers()]

    def headers(self) -> Iterator[Header]:
        """Yield each entity's header, in order of creation."""
        return (header for header in self._store.headers() if self.tenant is None or header.tenant == self.tenant)

    def page(
        self,
        selection: Selection = EVERYTHING,
        *,
        cursor: str | None = None,
        limit: int = 50,
        oldest_first: bool = False,
    ) -> Page[ListedEntity]:
        """Return a page of the entities of a selection, newest first; `cursor` is the `next` of an earlier page.

        With `oldest_first` the order is reversed, and `cursor` is of such a page. A page costs what it
        returns, however many entities the loom has. Raises LoomError for an unknown cursor.
        """
        check_page_limit(limit)
        if cursor is not None and not self.has(cursor):
            raise LoomError(f"cursor: expected the `next` of an earlier page, got {cursor!r}")
        if self.tenant is not None:
            selection = replace(selection, tenant=self.tenant)
        listed = self._store.select(selection, cursor, limit + 1, oldest_first=oldest_first)
        return Page(listed[:limit], listed[limit - 1].id if len(listed) > limit else None)

    def count_states(self) -> dict[State, int]:
        """Return how many entities are in each state."""
        return self._store.count_states(self.tenant)

    def _find(self, entity_id: str) -> Header | None:
        check_texts(LoomError, entity=entity_id)  # a database answers with an error about its types
        header = self._store.header(entity_id)
        return None if header is None or self.tenant not in (None, header.tenant) else header

    def _is_here(self, entity_id: str) -> bool:
        check_texts(LoomError, entity=entity_id)
        return self.tenant is None or self._find(entity_id) is not None

    def header(self, entity_id: str) -> Header:
        """Return an entity's header: its cantrip, call and circle (CALL-4), and its parent or original."""
        header = self._find(entity_id)
        if header is None:
            raise UnknownEntity(entity_id)
        return header

    def header_in_force(self, entity_id: str) -> Header:
        """Return the header of an entity with its current cantrip, call, circle and crystal. Raises LoomError."""
        header = self.header(entity_id)
        return find_header_in_force(header, [record for _, record in self._store.asides(entity_id)])

    def header_at(self, turn_id: str) -> Header:
        """Return the header of a turn's entity with the cantrip, call, circle and crystal in force as the turn began.

        An entity may move to another cantrip between two turns, or while a turn waits. Raises LoomError for an unknown
        turn.
        """
        return find_header_at(self.records(self.owner(turn_id)), turn_id)

    def has(self, entity_id: str) -> bool:
        """Return whether the entity is in this loom: its header is recorded."""
        return self._find(entity_id) is not None

    def has_begun(self, entity_id: str) -> bool:
        """Return whether an entity is ready for work: its first intent is recorded, or it was made without one."""
        records = self._read(entity_id, limit=2)
        return bool(records) and (self.header(entity_id).waits or find_first_intent(records) is not None)

    def records(self, entity_id: str, *, after: int = -1) -> Sequence[Record]:
        """Return an entity's records, in order; with `after` only those after that position."""
        records = self._read(entity_id, after=after)
        if not records and not self.has(entity_id):
            raise UnknownEntity(entity_id)
        if records:
            self._check(entity_id, after)
        return records

    def _check(self, entity_id: str, after: int, count: int = sys.maxsize) -> None:
        if self._checks:
            self._store.check_records(entity_id, after, count)

    def records_since(self, entity_id: str, position: int = -1) -> tuple[Sequence[Record], int]:
        """Return an entity's records after a position, and the position of the last one, for the next call.

        Raises LoomError for an entity that is not in this loom.
        """
        while True:
            before = self._store.tip(entity_id) if self._is_here(entity_id) else None
            if before is None:
                raise UnknownEntity(entity_id)
            records = self._read(entity_id, after=position) if before.position != position else ()
            if self._store.tip(entity_id) == before:  # otherwise another process wrote meanwhile
                return records, before.position

    def read_since(
        self, number: int, limit: int = 500, *, settled: bool = False
    ) -> tuple[list[tuple[int, Record]], int]:
        """Return the next records of all entities after a number, with their numbers; and the last number read.

        Images have no bytes. With a tenant, the records of other tenants are read and left out. Only those that are
        `settled` are followed by none with a lower number: with it, the last ones may come a few seconds later.
        """
        records = self._store.records_after(number, limit)
        if settled and not self.numbers_in_order:
            records = records[: count_settled(number, records, self._store.clock())]
        own = {record.entity_id: self._is_here(record.entity_id) for _, record in records} if self.tenant else {}
        last = records[-1][0] if records else number
        return [pair for pair in records if own.get(pair[1].entity_id, True)], last

    def find_number(self, time: str) -> int:
        """Return a number of a record: those after it were recorded at that time (ISO 8601, UTC) or later.

        It looks at a few records only, and expects their times to be in order.
        """
        low, high = 0, self._store.last_number()
        while low < high:
            middle = (low + high) // 2
            found = self._search(
                lambda many, middle=middle: self._store.records_after(middle, many),  # type: ignore[misc]
                lambda records: next(filter(None, (get_time(record) for _, record in records)), None),
            )
            if found is None or found >= time:
                high = middle
            else:
                low = middle + 1
        return low

    def last_number(self) -> int:
        """Return the number of the last record of the loom; 0 for an empty one."""
        return self._store.last_number()

    @property
    def numbers_in_order(self) -> bool:
        """Whether a record never appears before one that was read already (`read_since`)."""
        return self._store.numbers_in_order

    def _read(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        check(is_whole(after, -1), "after", "a position, or -1 for the beginning", after, LoomError)
        return self._store.records(entity_id, after=after, limit=limit) if self._is_here(entity_id) else ()

    def _read_newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        return self._store.newest(entity_id, limit)

    def check_chain(self, root: str, *, after: int = -1) -> None:
        """Raise DamagedLoom if a record of a root entity's tree was changed, moved or removed since a position."""
        check(is_whole(after, -1), "after", "a position, or -1 for the beginning", after, LoomError)
        if self._is_here(root):
            self._store.check_chain(root, after)

    def checkpoint(self, entity_id: str) -> StoredCheckpoint | None:
        """Return the last checkpoint of an entity; the records after its position continue it."""
        return self._store.checkpoint(entity_id) if self._is_here(entity_id) else None

    def facts(self, entity_id: str, with_records: WithRecords = "always") -> EntityFacts:
        """Return the facts that a process needs before it runs an entity. Raises LoomError."""
        check_texts(LoomError, entity=entity_id)
        facts = self._store.facts(entity_id, with_records)
        if facts is None or self.tenant not in (None, facts.header.tenant):
            raise UnknownEntity(entity_id)
        return facts

    def attach(self, image: File) -> File:
        """Return an image whose bytes are read from the loom on first use."""
        check_kind("image", image, File, "an Image or a File", LoomError)
        return bind_images((image,), self._store.blob)[0]

    def turns(self, entity_id: str) -> list[Turn]:
        """Return an entity's committed turns, in order, with their latest rewards.

        Turns of a forgotten entity have ids, links and token counts, no content, and are marked `forgotten`.
        """
        return list(read_turns(self.records(entity_id)))

    def last_turn(self, entity_id: str) -> Turn | None:
        """Return the last turn of an entity that was not undone; None if it has none."""
        return find_turn_in_force(self.turns(entity_id))

    def list_turns(self, entity_id: str, *, after: int = 0, limit: int = 50) -> list[Turn]:
        """Return the next turns of an entity after that sequence, as in `turns`.

        It costs as much as these turns, and the entity's rewards. Raises LoomError for an unknown entity.
        """
        check(is_whole(after, 0), "after", "the sequence of a turn, or 0 for the beginning", after, LoomError)
        check(is_whole(limit, 1), "limit", "a number of turns, from 1", limit, LoomError)
        header, skipped = self.header(entity_id), 0
        while True:
            start = self._find_turn_end(entity_id, after - skipped)
            records = self._read_page(entity_id, start, limit + skipped)
            if skipped >= after or not begins_inside(records):
                break
            skipped = min(after, 2 * skipped + 1)  # the utterance that the first of these turns continues is earlier
        before, after_all = split_asides(self._store.asides(entity_id), start)
        last = self._read_newest(entity_id, 1) if self.is_forgotten(entity_id) else ()
        self._check(entity_id, start, len(records))
        found = read_turns([header, *before, *records, *after_all, *last])
        return [turn for turn in found if turn.sequence > after][:limit]

    def _find_turn_end(self, entity_id: str, number: int) -> int:
        """Return the position of the record that commits the turn with that sequence; -1 before the first turn."""
        tip = self._store.tip(entity_id)
        low, high = -1, -1 if tip is None or number <= 0 else tip.position
        while low < high:
            middle = (low + high) // 2
            following = self._find_next_turn(entity_id, middle)
            if following is None or following > number:
                high = middle
            else:
                low = middle + 1
        return low

    def _find_next_turn(self, entity_id: str, position: int) -> int | None:
        """Return the sequence of the first turn that is committed after a position."""
        return self._search(
            lambda many: self._store.records(entity_id, after=position, limit=many),
            lambda found: next((n for one in found if (n := get_turn_number(one)) is not None), None),
        )

    def _read_page(self, entity_id: str, position: int, turns: int) -> Sequence[Record]:
        """Return the records after a position up to the end of that many turns, and those between it and the next."""

        def cut(records: Sequence[Record]) -> Sequence[Record] | None:
            ends = [at for at, one in enumerate(records) if get_turn_number(one) is not None]
            return records[: ends[turns]] if len(ends) > turns else None

        read = partial(self._read, entity_id, after=position)
        found = self._search(lambda many: read(limit=many), cut, 8 * turns)
        return read() if found is None else found

    def _search(
        self, read: Callable[[int], Sequence[R]], find: Callable[[Sequence[R]], T | None], many: int = 8
    ) -> T | None:
        """Return what `find` finds in as few records as possible; None if it finds nothing in all of them."""
        while True:
            records = read(many)
            found = find(records)
            if found is not None or len(records) < many:
                return found
            many *= 8

    def _search_back(self, entity_id: str, find: Callable[[Sequence[Record]], T | None]) -> T | None:
        """Return what `find` finds in as few of an entity's newest records as possible."""
        if not self.has(entity_id):
            raise UnknownEntity(entity_id)
        return self._search(partial(self._read_newest, entity_id), find)

    def _find_last(self, entity_id: str, get: Callable[[Record], T | None]) -> T | None:
        """Return what `get` returns for the last of an entity's records for which it returns something."""
        return self._search_back(entity_id, lambda records: next(filter(None, map(get, reversed(records))), None))

    def newest_records(self, entity_id: str, cut: Callable[[Sequence[Record]], Sequence[Record]]) -> Sequence[Record]:
        """Return what `cut` leaves of an entity's records; it takes some away at the front, or none.

        Only as many of the newest records are read as `cut` needs to find the place. Raises LoomError.
        """

        def find(records: Sequence[Record]) -> Sequence[Record] | None:
            newest = cut(records)
            return newest if len(newest) < len(records) else None

        newest = self._search_back(entity_id, find)
        return cut(self.records(entity_id)) if newest is None else newest

    def newest_round(self, entity_id: str) -> Round:
        """Return the newest part of an entity's work: the key of its intent, the newest answer, the usage.

        It reads the records since the newest intent. Raises LoomError.
        """
        return read_round(self.newest_records(entity_id, cut_round))

    def find_call(self, entity_id: str, call_id: str) -> ClientCall | None:
        """Return a call of a gate that an entity made, with its result; None if it made none with this id.

        Raises LoomError.
        """
        return find_client_call(self.records(entity_id), call_id)

    def texts_since(self, entity_id: str, position: int = -1) -> tuple[set[str], int]:
        """Return the texts that an entity was given after a position: intents, messages and replies of users and
        systems; and the position of the last record, for the next call. Raises LoomError.
        """
        records, last = self.records_since(entity_id, position)
        return collect_texts(records), last

    def texts_before(self, entity_id: str, key: str) -> set[str]:
        """Return the texts that an entity was given before its intent with this key. Raises LoomError."""
        return collect_texts(self.records(entity_id), key)

    def count_turns(self, entity_id: str) -> int:
        """Return the number of an entity's committed turns, without those that a fork has inherited."""
        first = self._find_next_turn(entity_id, -1)
        last = self._find_last(entity_id, get_turn_number)
        return 0 if first is None or last is None else last - first + 1

    def outcome(self, entity_id: str) -> Outcome | None:
        """Return how an entity's last episode ended; None while it is under way. Raises LoomError."""
        return get_outcome(fold_entity(self, entity_id), self.usage_below(entity_id))

    def first_intent(self, entity_id: str) -> IntentGiven | None:
        """Return an entity's first intent; None if a crash came before it, or a long-lived entity waits for it.

        It is the second record, except for a long-lived entity that was made without it.
        """
        first = find_first_intent(self._read(entity_id, limit=2))
        is_elsewhere = first is None and self.has(entity_id) and self.header(entity_id).waits
        return find_first_intent(self._read(entity_id)) if is_elsewhere else first

    def intents(self, entity_id: str) -> list[IntentGiven]:
        """Return the intents that an entity has taken, in order."""
        return list_intents(self.records(entity_id))

    def waiting_intents(self, entity_id: str) -> list[IntentGiven]:
        """Return the intents that wait in an entity's inbox, in order. Raises UnknownEntity."""
        self.header(entity_id)
        return list_waiting_intents(mail for _, mail in self._store.pending(entity_id, sys.maxsize))

    def last_metadata(self, entity_id: str) -> Mapping[str, Any]:
        """Return what the provider says of an entity's newest answer, such as its `stop_reason`."""
        return find_last_metadata(self.records(entity_id))

    def state(self, entity_id: str) -> State:
        """Return "active", "waiting" for a person, "idle" for a long-lived entity that waits for an intent, or how the
        entity ended (LOOM-7, reading 3). `outcome` says how the last episode of an idle one ended.

        A timeout and a budget are wards: an entity that exceeds one between turns is truncated too. Its `Ended` record
        says which.
        """
        standing = self._store.standing(entity_id) if self._is_here(entity_id) else None
        if standing is None:
            raise UnknownEntity(entity_id)
        return standing.status

    def open_request(self, entity_id: str) -> Requested | None:
        """Return the request that an entity waits with for a person; None if it does not wait, or if it was decided.

        Raises LoomError.
        """
        if self.state(entity_id) != "waiting":
            return None
        requested = self._search_back(entity_id, find_open_request)
        if requested is None:
            return None
        key = make_decision_key(requested.id)
        if self._store.find_mail(find_root(self._store, entity_id), key) is not None:
            return None
        return requested if self.state(entity_id) == "waiting" else None  # its episode may have ended meanwhile

    def last_time(self, entity_id: str) -> str:
        """Return the time of an entity's last record that has one, ISO 8601 in UTC. Raises LoomError."""
        return self._find_last(entity_id, get_time) or ""

    def quarantines(self) -> dict[str, QuarantineRow]:
        """Return the quarantines of root entities, by their ids: why each does not run, and until when."""
        return {row.entity_id: row for row in self._store.quarantines() if self._is_here(row.entity_id)}

    def is_over(self, entity_id: str) -> bool:
        """Return whether the entity has ended for good by its log; a long-lived one outlives its episodes."""
        life = self._store.life(entity_id) if self._is_here(entity_id) else None
        if life is None:
            raise UnknownEntity(entity_id)
        return life >= Life.OVER

    def is_forgotten(self, entity_id: str) -> bool:
        """Return whether the content of an entity is gone; False for one that is not in this loom."""
        return self._is_here(entity_id) and self._store.life(entity_id) is Life.FORGOTTEN

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """Return the entities that have not ended for good, in order of creation: running, or interrupted by a crash.

        With `idle` also those that are idle or wait for a person.
        """
        found = self._store.unfinished(idle=idle)
        return found if self.tenant is None else [one for one in found if self._is_here(one)]

    def named(self, name: str) -> str | None:
        """Return the entity that was last invoked under that name, ended or not."""
        check_texts(LoomError, name=name)
        return self._store.named(scope_name(self.tenant or "", name))

    def below(self, entity_id: str) -> Sequence[str]:
        """Return the entities that an entity spawned, in order of creation."""
        return self._store.below(entity_id) if self._is_here(entity_id) else ()

    def usage(self, entity_id: str) -> Usage:
        """Return the tokens that an entity has used itself, also those of an utterance without its turn (PROD-3).

        Summaries that were written for folds count, and answers that broke the crystal's contract.
        """
        return fold_entity(self, entity_id).usage

    # --------------------------------------------------------------------------------------------------------- one turn

    def turn(self, turn_id: str) -> Turn:
        """Return the turn with this id."""
        return next(turn for turn in self.turns(self.owner(turn_id)) if turn.id == turn_id)

    def owner(self, turn_id: str) -> str:
        """Return the entity that a turn belongs to."""
        check_kind("turn", turn_id, str, "the id of a turn, such as turn.id", LoomError)
        check_texts(LoomError, turn=turn_id)
        entity_id = self._store.owner(turn_id)
        if entity_id is None or not self._is_here(entity_id):
            raise LoomError(f"turn {turn_id} is not in this loom")
        return entity_id

    def children(self, turn_id: str) -> Sequence[str]:
        """Return the entities that a turn spawned (COMP-5)."""
        self.owner(turn_id)
        return self._store.children(turn_id)

    def forks(self, turn_id: str) -> Sequence[str]:
        """Return the entities that were forked from a turn (LOOM-4)."""
        self.owner(turn_id)
        return self._store.forks(turn_id)

    def branches(self, entity_id: str) -> Sequence[str]:
        """Return the entities that were forked from any turn of an entity, in order of creation."""
        return self._store.branches(entity_id) if self._is_here(entity_id) else ()

    async def reward(self, turn_id: str, value: float, *, by: str = "", key: str = "") -> bool:
        """Reward a turn at any time; the latest reward counts, the earlier ones stay recorded (LOOM-3).

        `by` says who gives the reward, for the record. A reward with a `key` is given once: return False if this one
        was given before. Raises KeyUsed if another reward of the entity has that key.
        """
        check(is_finite(value), "reward", "a finite number", value, LoomError)
        check_texts(LoomError, by=by, key=key)
        owner = await self._in_store(partial(self._find_rewarded, turn_id, float(value), by, key))
        if owner is None:
            return False
        try:
            await self._append([Rewarded(owner, turn_id, float(value), self._now(), by, key)])
        except KeyUsed:  # a reward with this key was recorded since it was looked for: was it the same one?
            await self._in_store(partial(self._find_rewarded, turn_id, float(value), by, key))
            return False
        return True

    def _find_rewarded(self, turn_id: str, value: float, by: str, key: str) -> str | None:
        """Return the entity of the turn that a reward is for; None if the reward was given before.

        Raises LoomError, KeyUsed.
        """
        owner = self.owner(turn_id)
        if self.is_forgotten(owner):
            raise LoomError(f"turn {turn_id} is forgotten: it takes no reward")
        rewards = collect_rewards(self.records(owner)) if key else {}
        for earlier in chain.from_iterable(rewards.values()):
            if earlier.key == key:
                if (earlier.turn_id, earlier.reward, earlier.by) != (turn_id, value, by):
                    raise KeyUsed(f"the key {key!r} was used for another reward: give this one another key")
                return None
        return owner

    # --------------------------------------------------------------------------------------------------------- the tree

    def thread(self, turn_id: str, *, own: bool = False) -> list[Turn]:
        """Return the path from the root to a turn, oldest first (LOOM-10).

        It follows `parent_id` through all ancestors of the turn: the original of a fork, and the turns of a parent up
        to the one that spawned a child. With `own` it begins with the entity's (or its original's) first turn.
        """
        path: list[Turn] = []
        here: str | None = turn_id
        while here is not None:
            entity_id = self.owner(here)
            if path and own and not self.header(path[-1].entity_id).forked:
                break
            by_id = {turn.id: turn for turn in self.turns(entity_id)}
            while here in by_id:
                path.append(by_id.pop(here))  # popped: a path that visits a turn twice is a cycle
                here = path[-1].parent_id
            if here is not None and self._store.owner(here) == entity_id:
                raise LoomError(f"turn {here} is its own ancestor: the records of entity {entity_id} are corrupt")
        path.reverse()
        return path

    def intents_before(self, turn_id: str) -> list[IntentGiven]:
        """Return the intents that led to a turn, in order; those of the originals come first, for a fork."""
        return list_intents(self.lineage(turn_id))

    def first_turns(self, turn_id: str) -> list[str]:
        """Return the first turn of each intent that led to a turn, in order; those of the originals come first, for a
        fork. A conversation without its last intents continues from the turn before one of them.
        """
        path = {turn.id for turn in self.thread(turn_id, own=True)}  # without undone turns
        return [first for first in list_first_turns(self.lineage(turn_id)) if first in path]

    def originals(self, entity_id: str) -> list[str]:
        """Return the originals from which an entity was forked, oldest first, and the entity itself."""
        line = [entity_id]
        header = self.header(entity_id)
        while header.forked and header.parent_turn is not None:
            line.append(self.owner(header.parent_turn))
            header = self.header(line[-1])
        return line[::-1]

    def lineage(self, turn_id: str) -> list[Record]:
        """Return the records that led to a turn, up to its `Committed`: a fork from it begins with them (LOOM-4).

        For a fork these are the original's records up to the forked turn, then its own; never those of a parent. They
        include rewards given meanwhile. A forgotten original contributes its empty records and the last one, after
        which the fork begins with its own intent.
        """
        parts: list[list[Record]] = []
        here: str | None = turn_id
        while here is not None:
            entity_id = self.owner(here)
            part: list[Record] = []
            records = self.records(entity_id)
            for record in records:
                part.append(record)
                if get_committed_turn(record) == here:
                    break
            if self.is_forgotten(entity_id):
                part.append(records[-1])
            parts.append(part)
            header = self.header(entity_id)
            here = header.parent_turn if header.forked else None
        return [record for part in reversed(parts) for record in part]

    def leaves(self) -> Iterator[str]:
        """Yield the last turn of every entity that has turns: the end of each thread."""
        for header in self.headers():
            last = self._find_last(header.entity_id, get_committed_turn)
            if last is not None:
                yield last

    def threads(self, *, own: bool = False) -> Iterator[list[Turn]]:
        """Yield the thread of every entity that has turns, in order of creation."""
        for turn_id in self.leaves():
            yield self.thread(turn_id, own=own)

    def subtree(self, entity_id: str) -> list[str]:
        """Return an entity and everything it spawned, parents first; forks are trees of their own."""
        self.header(entity_id)
        found: list[str] = []
        todo = [entity_id]
        while todo:
            one = todo.pop()
            found.append(one)
            todo.extend(reversed(self._store.below(one)))
        return found

    def ancestry(self, entity_id: str) -> list[str]:
        """Return an entity and everything above it, the root of its tree last."""
        found = [entity_id]
        while (above := self.header(found[-1]).parent_entity) is not None:
            found.append(above)
        return found

    def subtree_usage(self, entity_id: str) -> Usage:
        """Return the tokens of an entity and of everything it spawned (PROD-3)."""
        return self.usage(entity_id) + self.usage_below(entity_id)

    def usage_below(self, entity_id: str) -> Usage:
        """Return the tokens of everything that an entity spawned, without its own."""
        total = NO_USAGE
        for one in self.subtree(entity_id)[1:]:
            total = total + self.usage(one)
        return total

    # ----------------------------------------------------------------------------------------------------- as a mapping

    def __getitem__(self, turn_id: str) -> Turn:
        return self.turn(turn_id)

    def __contains__(self, turn_id: object) -> bool:
        owner = self._store.owner(turn_id) if isinstance(turn_id, str) else None
        return owner is not None and self._is_here(owner)

    def prune(self, older_than: Duration, *, dry_run: bool = False) -> Pruned:
        """Forget the entities that ended longer ago than "90d", "12h", seconds or a timedelta; see `prune_loom`.

        For a loom of `open_loom`; on the loom of a runtime that is open use `await runtime.prune(…)`.
        """
        return prune_loom(self._store, older_than, now=self._store.clock(), dry_run=dry_run, tenant=self.tenant)

    def forget(
        self, entity_id: str, *, by: str = "", why: str = "", forks: bool = False, parents: bool = False
    ) -> Forgotten:
        """Delete the content of an entity that has ended and of all below it; see `Runtime.forget`.

        For a loom of `open_loom`; on the loom of a runtime that is open use `await runtime.forget(…)`.
        """
        self.header(entity_id)
        return forget_entities(self._store, Wanted([entity_id], by, why, forks, parents=parents))

    def __setitem__(self, turn_id: str, turn: object) -> NoReturn:
        raise LoomError("loom is append-only: turns cannot be changed; a reward is given with `await loom.reward(…)`")

    def __delitem__(self, turn_id: str) -> NoReturn:
        raise LoomError("loom is append-only: turns cannot be deleted")

    def __repr__(self) -> str:
        return f"<Loom in {self._store!r}>"


@contextmanager
def open_loom(
    url: str | os.PathLike[str],
    *,
    read_only: bool = True,
    tenant: str | None = None,
    seal_key: GivenKey = None,
    create: bool = False,
) -> Iterator[Loom]:
    """Return the loom that `url` names (as for `open_store`), outside of a runtime; with a `tenant`, only its entities.

    Opened read-only it works next to a running writer. Otherwise it is the only writer, and rewards are written at
    once. A sealed loom needs its `seal_key`. `create` is as for `Runtime.open`.
    """
    with open_store(url, read_only=read_only, seal_key=seal_key, create=create) as store:

        async def append(records: Sequence[Record]) -> None:  # a coroutine like the runtime's, but it never waits
            store.append(records)

        yield Loom(store, append, tenant=tenant, checks=True)


def make_checked(loom: Loom) -> Loom:
    """Return the same loom, which checks what it reads, for answers that a caller acts on."""
    return _copy_loom(loom, checks=True)


def make_unchecked(loom: Loom) -> Loom:
    """Return the same loom, which does not check what it reads, for overviews that show damaged entities, too."""
    return _copy_loom(loom, checks=False)


def _copy_loom(loom: Loom, *, checks: bool) -> Loom:
    twin = copy(loom)
    twin._checks = checks  # noqa: SLF001  # of this module
    return twin


def fold_entity(loom: Loom, entity_id: str) -> MachineState:
    """Return the state of an entity: its newest checkpoint, and the records after it.

    Without a usable checkpoint the whole log is folded. The context in it has the call of the checkpoint, which may
    be an earlier one. Raises LoomError for an unknown entity.
    """
    shape, kept = Shape.of_header(loom.header(entity_id)), loom.checkpoint(entity_id)
    checkpoint = None if kept is None else decode_checkpoint(kept.data, loom.attach)
    if kept is not None and checkpoint is not None:
        records = loom.records(entity_id, after=kept.position)
        if not has_undone(records):
            return fold(shape, records, checkpoint.state)
    return fold_log(shape, loom.records(entity_id))


def _read_time(store: Store) -> str:
    return format_instant(store.clock())

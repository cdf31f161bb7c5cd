"""Nodes, programs and senders over the model of a server, what may happen to them, and what must be true all the time.

A node here is the product's: `machine/node.py` and `machine/placement.py` decide, `Store` carries it out, in the order
in which the runtime's actors do that. Only what an entity does between its records is made up: it sleeps for a moment.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.policy.shared import AccountRequest, draw
from cantrip_actors.loom import DamagedLoom, Fenced, Held, Lease, Quarantined, Unsure, mark_gone
from cantrip_actors.loom.postgres import postgres
from cantrip_actors.loom.postgres.postgres import SILENCE
from cantrip_actors.loom.stores import lease
from cantrip_actors.loom.stores.lease import is_gone
from cantrip_actors.loom.stores.nodes import NodeInfo
from cantrip_actors.machine.node import (
    Checked,
    DrainBegan,
    Event,
    Found,
    Joined,
    LoadEnded,
    NodeAction,
    Renewed,
    State,
    advance,
    begin,
    is_steady,
    may_look_for,
    may_sweep,
)
from cantrip_actors.machine.placement import Candidate, Take, UnloadIdle, can_run, may_load
from cantrip_actors.machine.project import Life
from cantrip_actors.machine.queues import PREFIX, Account, declare, decode_account, free, take
from cantrip_actors.machine.schedule import find_next, make_firing_key, plan_step
from cantrip_actors.records.codec import decode
from cantrip_actors.records.mail import Mail, get_key
from cantrip_actors.records.records import Adopted, Committed, Ended, Header, IntentGiven, Record
from cantrip_actors.records.submissions import SubmissionRow
from cantrip_actors.records.timers import Rule, Scheduled, Timer
from cantrip_actors.runtime.loom.leases import claim_lease, release_leases, release_strays
from cantrip_actors.runtime.loom.outages import Outages
from cantrip_actors.runtime.mail.inboxes import FULL_POLL_EVERY, POLL_INTERVAL
from cantrip_actors.runtime.nodes.placing import make_member
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.queue import Queue
from tests.loom.histories import AT, turn
from tests.simulation.server import Change, Server, Transaction
from tests.simulation.store import SimStore
from tests.simulation.world import Mutex, Process, Task, World

__all__ = ["Simulation", "Violation"]

BEAT, TTL = 1.0, 4.0
TROUBLE = 8.0
"""Seconds in which faults begin."""
SETTLES = 60.0
"""Seconds in which everything has to come to rest after that."""
PROGRAM = 6.0
"""Seconds for which the leases of a program without a node last."""
_LIFE: Final = 10
"""The column of an entity's row that has its phase of life."""
RATE = Limits(requests_per_minute=90)
NAME = "desk"
QUEUE = Queue("bulk", max_running=2)
ACCOUNT = PREFIX + QUEUE.name
SWEEP = 2.0
"""Seconds between two searches for places that can be freed."""


class Violation(AssertionError):
    """Something that must be true was not."""


class Cell:
    """An entity that is loaded."""

    def __init__(self, held: Lease) -> None:
        self.lease = held
        self.is_busy = False
        self.is_leaving = False
        self.wakes: Task | None = None


class Loader(Process):
    """What runs entities: a node, or a program without one."""

    is_member = False
    serves = "c1"
    """The content id of the cantrip that it offers."""

    def __init__(self, sim: Simulation, name: str) -> None:
        super().__init__(sim.world, name)
        self.sim = sim
        self.skew = sim.chance.choice((0, 0, 3600, -3600, 86_400))
        self.unsure = sim.unsure
        self.owner = f"{name}#{sim.seed}.{sim.chance.getrandbits(40)}"
        self.cells: dict[str, Cell] = {}
        self.tokens: dict[str, int] = {}
        self.unreleased: dict[str, Lease] = {}
        self.state: State = begin(TTL, self.world.now)
        self.members: list[Any] = []
        self.capacity = 100
        self._group: list[tuple[Sequence[Record], Sequence[tuple[int, int]], list[Any], Task]] = []
        self._is_writing = False
        self._turns = 0
        self._seen = 0
        self._connections = 0
        self.is_tidying = False
        self._leasing = Mutex(sim.world)
        self.outages = Outages(lambda: None)
        self._look_soon: Task | None = None
        self.queued: set[str] = set()
        """Entities of the queue that run here or are about to begin here."""
        self.left: set[str] = set()
        """Entities of the queue that do not run here any more."""
        self._sweeps_at = 0.0

    @property
    def busy(self) -> int:
        """How many entities are at work here, or about to be."""
        return sum(cell.is_busy for cell in self.cells.values()) + len(self.state.loading)

    def do(self, event: Event) -> list[NodeAction]:
        """Take note of an event."""
        self.state, actions = advance(self.state, self.world.now, event)
        return actions

    # What an entity does

    def run_entity(self, entity: str, *, is_placed: bool = False) -> None:
        """Load an entity, work as long as it has something to do, and unload it."""
        is_loaded = False
        try:
            cell = self.load(entity, is_placed=is_placed)
            is_loaded = cell is not None
        except (Held, Quarantined):
            cell = None
        except LoomError as error:
            cell = None
            self.outages.suspend(entity, error, self.world.now)
        finally:
            self.do(LoadEnded(entity, is_loaded))
        if cell is None:
            return
        self._run_begun(entity, cell)

    def _run_begun(self, entity: str, cell: Cell) -> None:
        try:
            self.work(entity, cell)
        except Fenced:
            pass
        except LoomError as error:
            self.outages.suspend(entity, error, self.world.now)
        finally:
            if self.cells.get(entity) is cell:
                del self.cells[entity]
            self.leave(entity)
        self.release(cell.lease)

    def load(self, entity: str, *, is_placed: bool) -> Cell | None:
        """Claim an entity, if it may be loaded here."""
        if entity in self.cells or self.store.is_held(entity):
            return None
        if self.state.is_draining or not (is_placed or self.admits(entity)):
            return None
        with self._leasing:
            if entity in self.cells:  # it was loaded while this task waited: a runtime loads an entity once
                return None
            claimed = claim_lease(self.store, entity, self.owner, TTL if self.is_member else PROGRAM)
            self.tokens[entity] = claimed.token
            self.unreleased.pop(entity, None)
            cell = self.cells[entity] = Cell(claimed)
            if is_submitted(entity):
                self.queued.add(entity)
        return cell

    def admits(self, entity: str) -> bool:
        """Return whether an entity that is wanted here is loaded here."""
        me = next((one for one in self.members if one.owner == self.owner), None)
        if me is None:
            return True
        return may_load(me._replace(busy=self.busy), self.candidate(entity), self.members)

    def candidate(self, entity: str) -> Candidate:
        """Return what placement has to know of an entity."""
        cantrip = in_force(self.store.records(entity))
        return Candidate(entity, cantrip, NAME, self.store.life(entity) is Life.IDLE)

    def work(self, entity: str, cell: Cell) -> None:
        """Take mail and record turns until there is nothing more to do."""
        log = list(self.store.records(entity))
        cantrip = in_force(log)
        tip = next((one.turn_id for one in reversed(log) if isinstance(one, Committed)), None)
        number = sum(isinstance(one, Committed) for one in log)
        cell.is_busy = self.store.life(entity) is Life.BUSY
        if cell.is_busy and cantrip != self.serves:  # it has begun to work since it was looked at
            return
        idle_since = self.world.now
        while True:
            if cell.is_busy:
                for last in (False, True):
                    if self.sim.chance.random() < 0.5 and not last:
                        continue
                    self.pause(0.05)
                    if self.state.is_draining:  # at a border between two turns
                        return
                    number += 1
                    self._turns += 1
                    made = f"{entity}/{number}/{self.owner}/{self._turns}"
                    first, second = (records := turn(entity, made, tip, number, terminated=last))[:2], records[2:]
                    self.append(first)
                    self.pause(0.02)
                    is_end = last and is_submitted(entity)
                    self.append([*second, Ended(entity, "terminated", AT)] if is_end else second)
                    tip = made
                cell.is_busy, idle_since = False, self.world.now
            if self.state.is_draining or is_submitted(entity):
                return
            waiting = self.store.pending(entity, 5)
            if waiting:
                one = waiting[0]
                records: list[Record] = []
                if cantrip != self.serves:
                    records.append(Adopted(entity, self.serves, cantrip, AT, "scripted", {}, {}, NAME))
                    cantrip = self.serves
                records.append(IntentGiven(entity, "go", AT, key=one.mail.key))
                self.append(records, [(len(records) - 1, one.no)])
                cell.is_busy = True
                continue
            if cell.is_leaving or self.world.now - idle_since >= self.sim.idles:
                return
            cell.wakes = self.world.current
            self.world.pause(self.sim.idles)
            cell.wakes = None

    def pause(self, seconds: float) -> None:
        """Work on something for about so long."""
        self.world.sleep(self.sim.chance.random() * 2 * seconds * min(self.slowness, 20))

    def release(self, held: Lease) -> None:
        """Release a lease; if the store cannot be reached, try again every beat."""
        try:
            kept = release_leases(self.store, [held], is_member=self.is_member)
        except LoomError:
            self.unreleased[held.entity_id] = held
            return
        self.unreleased.pop(held.entity_id, None)
        if kept and held.entity_id not in self.cells:
            cell = self.cells[held.entity_id] = Cell(held)
            self.spawn(self._work_on, held.entity_id, cell)

    def tidy_leases(self) -> None:
        """Release what could not be released before, and what came back with a server that failed over."""
        for held in list(self.unreleased.values()):
            self.release(held)
        connections = self.store.connections
        if connections == self._connections:
            return
        with self._leasing:
            known = {one.token for one in (*(cell.lease for cell in self.cells.values()), *self.unreleased.values())}
            self.is_tidying = True
            try:
                released = release_strays(self.store, self.owner, known)
            except LoomError:
                return
            finally:
                self.is_tidying = False
            self._connections = connections
        for entity in released:
            self.wake_entity(entity)

    def _work_on(self, entity: str, cell: Cell) -> None:
        try:
            self.work(entity, cell)
        except LoomError:
            pass
        finally:
            self.cells.pop(entity, None)
            self.leave(entity)
        self.release(cell.lease)

    # Writing: what comes while a group is written is the next group

    def append(self, records: Sequence[Record], taken: Sequence[tuple[int, int]] = ()) -> None:
        """Append records, together with those of other entities."""
        answer: list[Any] = []
        self._group.append((records, taken, answer, self.world.current))
        if not self._is_writing:
            self._is_writing = True
            self.spawn(self._write)
        while not answer:
            self.world.pause()
        if answer[0] is not None:
            raise answer[0]

    def _write(self) -> None:
        try:
            while self._group:
                group, self._group = self._group, []
                self._write_group(group)
        finally:
            self._is_writing = False

    def _write_group(self, group: list[Any]) -> None:
        records: list[Record] = []
        taken: list[tuple[int, int]] = []
        for one, own, _, _ in group:
            taken += [(len(records) + at, no) for at, no in own]
            records += one
        error: LoomError | None = None
        try:
            self.store.append(records, dict(self.tokens), taken=taken)
        except LoomError as failed:
            if len(group) > 1 and not isinstance(failed, Unsure):
                for one in group:
                    self._write_group([one])
                return
            error = failed
        for *_, answer, task in group:
            answer.append(error)
            self.world.wake(task)

    # What a process looks for

    def look_for_mail(self) -> None:
        """Look every half second, and at every hint; sometimes at all mail."""
        looks = 0
        while True:
            self._look_soon = self.world.current
            self.world.pause(POLL_INTERVAL)
            self._look_soon = None
            looks += 1
            try:
                self._seen, rows = self.store.new_mail(self._seen)
                wanted = {row.entity_id for row in rows}
                if looks % FULL_POLL_EVERY == 0:
                    wanted.update(self.store.waiting())
            except LoomError:
                continue
            for entity in sorted(wanted):
                self.wake_entity(entity)

    def hint(self) -> None:
        """Look soon."""
        if self._look_soon is not None:
            self.world.wake(self._look_soon)

    def wake_entity(self, entity: str) -> None:
        """Give an entity its mail, or load it."""
        cell = self.cells.get(entity)
        if cell is None:
            self.spawn(self.run_entity, entity)
        elif cell.wakes is not None:
            self.world.wake(cell.wakes)

    def fire_schedules(self) -> None:
        """Carry out what is due."""
        while True:
            self.world.sleep(2 * POLL_INTERVAL)
            try:
                now = self.store.clock()
                for timer in self.store.timers_due(now):
                    self._fire(timer, now)
            except LoomError:
                continue

    def _fire(self, timer: Timer, now: float) -> None:
        schedule = timer.schedule
        assert schedule is not None
        what = plan_step(timer, now, is_busy=False)
        if what.fires is None:
            return
        mail = mail_to(schedule.name, make_firing_key(timer.id, what.fires), kind="timer")
        if self.store.replace_timer(timer, what.becomes, [mail]) is not None:
            self.sim.hint()

    # The queue of submissions

    def leave(self, entity: str) -> None:
        """Take note that an entity of the queue does not run here any more."""
        if is_submitted(entity) and entity not in self.cells:
            self.queued.discard(entity)
            self.left.add(entity)

    def serve_queue(self) -> None:
        """Free places, and begin what waits as far as there is room (N-50)."""
        while True:
            self.world.sleep(POLL_INTERVAL)
            with suppress(LoomError):
                self._free_left()
                self._begin_some()

    def _free_left(self) -> None:
        left = self.left - self.queued
        over = [one for one in sorted(left) if self.store.frees_left(self.store.life(one), one)]
        if over:
            self._change_places(partial(free, over, []))
        self.left -= left

    def _begin_some(self) -> None:
        if self.state.is_draining:
            return
        account = decode_account(self.store.accounts(PREFIX)[ACCOUNT])
        waiting = self.store.submissions(QUEUE.name)
        if not waiting:
            return
        if account.count_room(len(self.queued)) <= 0:
            self._sweep(account, list(account.places))
            return
        ids = [one.id for one in waiting]
        taken = self._change_places(partial(take, ids, self.owner, len(ids)))
        self.queued.update(taken)
        for row in waiting:
            if row.id in taken:
                self.spawn(partial(self._begin_submitted, row))
        self._sweep(account, [one for one in ids if one in account.places and one not in taken])

    def _sweep(self, account: Account, entities: Sequence[str]) -> None:
        """Free the places of entities that are over, or that a dead process took and did not begin."""
        if self.world.now < self._sweeps_at or not entities:
            return
        self._sweeps_at = self.world.now + SWEEP
        over, absent = [], []
        for one in entities:
            if one in self.queued:
                continue
            life = self.store.life(one)
            if is_gone(account.places[one].owner) if life is None else life >= Life.OVER:
                over.append(one)
            elif life is None and not self.store.is_held(one):
                absent.append(one)
        self._change_places(partial(free, over, absent))

    def _change_places(self, change: Callable[[str | None, float], tuple[str, Any]]) -> Any:
        return self.store.change_account(ACCOUNT, change, 0.0)

    def _begin_submitted(self, row: SubmissionRow) -> None:
        """Begin the entity of a submission, unless it has begun, and remove the submission."""
        entity = row.id
        try:
            if self.store.life(entity) is None:
                self._begin_entity(entity)
            if self.store.life(entity) is not None:
                self.store.drop_submission(row)
        except LoomError:  # it is tried again with the same place
            pass
        finally:
            self.leave(entity)

    def _begin_entity(self, entity: str) -> None:
        cell = self.load(entity, is_placed=True)
        if cell is None:
            return
        try:
            if self.store.life(entity) is None:
                self.append([_header(entity, self.serves, lasting=False), IntentGiven(entity, "go", AT)])
        except BaseException:
            self.cells.pop(entity, None)
            self.release(cell.lease)
            raise
        self.spawn(self._run_begun, entity, cell)

    def draw_slices(self) -> None:
        """Draw slices of a shared limit, and use them."""
        while True:
            self.world.sleep(self.sim.chance.random())
            ask = AccountRequest(self.owner, requests=self.sim.chance.randrange(1, 20))
            try:
                self.sim.granted.append(self.store.change_account("shared", partial(_draw, ask), 0.0))
            except LoomError:
                continue

    def restart_later(self) -> None:
        """Start another one in the place of this one, which has ended."""
        self.sim.restart(self)


class SimNode(Loader):
    """A node."""

    is_member = True

    def start(self) -> None:
        """Join, and begin to work."""
        self.store = self.sim.open(self)
        self.spawn(self._join)

    def _join(self) -> None:
        info = NodeInfo(self.name, self.capacity, self.serves, serves={self.serves: NAME})
        self._info = info
        while True:
            try:
                self.store.join(self.owner, TTL, info)
                break
            except LoomError:
                self.world.sleep(BEAT)
        self.do(Joined(self.owner))
        for work in (self._renew, self._look, self.look_for_mail, self.fire_schedules, self.serve_queue):
            self.spawn(work)
        if self.sim.chance.random() < 0.5:
            self.spawn(self.draw_slices)

    def _renew(self) -> None:
        while True:
            self.world.sleep(BEAT)
            try:
                asked = self.store.beat(self.owner, TTL, self._info, busy=self.busy, is_draining=self.state.is_draining)
                self.do(Renewed(asked))
            except LoomError:
                pass
            self.tidy_leases()

    def _look(self) -> None:
        self.world.sleep(self.sim.chance.random() * BEAT)
        while True:
            if self.state.is_asked and not self.state.is_draining:
                self.spawn(self._drain)
            self.do(Checked())
            for entity in self.outages.take_due(self.world.now).entities:
                self.spawn(partial(self.run_entity, entity, is_placed=True))
            with suppress(LoomError):
                self._find()
            self.world.sleep(BEAT)

    def _find(self) -> None:
        unowned = []
        if self.state.is_draining:
            rows = self.store.nodes()
        else:
            seen = self.store.survey(1000)
            rows = seen.nodes
            if may_sweep(self.state, self.world.now):
                self.store.sweep(seen.dead)
            found = self.store.unowned(1000, seen)
            wanted = [one for one in found if may_look_for(self.state, self.world.now, one.entity_id, one.why)]
            unowned = [self.candidate(one.entity_id) for one in wanted]
        members = [make_member(row) for row in rows if row.is_living]
        self.members = [
            one._replace(busy=self.busy, is_draining=self.state.is_draining) if one.owner == self.owner else one
            for one in members
        ]
        idle = sum(not cell.is_busy for cell in self.cells.values())
        self._carry_out(self.do(Found(self.members, unowned, idle=idle)))

    def _carry_out(self, actions: Sequence[NodeAction]) -> None:
        for one in actions:
            if isinstance(one, Take):
                self.spawn(partial(self.run_entity, one.entity_id, is_placed=True))
            else:
                assert isinstance(one, UnloadIdle)
                for cell in [cell for cell in self.cells.values() if not cell.is_busy][: one.many]:
                    cell.is_leaving = True

    def _drain(self) -> None:
        self.do(DrainBegan())
        for cell in self.cells.values():
            if cell.wakes is not None:
                self.world.wake(cell.wakes)
        while self.cells or self.unreleased or self.state.loading:
            self.world.sleep(BEAT / 4)
        while True:
            try:
                self.store.leave(self.owner)
                break
            except LoomError:
                self.world.sleep(BEAT)
        self.restart_later()


class Program(Loader):
    """A runtime without a node: it runs what mail is posted for, and renews its leases."""

    def start(self) -> None:
        """Begin to work."""
        self.store = self.sim.open(self)
        for work in (self._renew, self.look_for_mail):
            self.spawn(work)
        self.spawn(self.fire_schedules)
        self.spawn(self.serve_queue)

    def _renew(self) -> None:
        while True:
            self.world.sleep(PROGRAM / 3)
            try:
                if self.cells:
                    self.store.renew(self.owner, PROGRAM)
            except LoomError:
                pass
            self.tidy_leases()
            try:
                for entity in self.store.waiting():
                    self.wake_entity(entity)
                for entity in self.store.unfinished(idle=False):
                    if entity not in self.cells:
                        self.spawn(self.run_entity, entity)
            except LoomError:
                pass


class Sender(Process):
    """A program that only sends. It sends the same again until it is told that it is kept."""

    def __init__(self, sim: Simulation, name: str, mails: int) -> None:
        super().__init__(sim.world, name)
        self.sim, self.mails = sim, mails
        self.unsure = sim.unsure
        self.is_done = False

    def start(self) -> None:
        """Begin to send."""
        self.store = self.sim.open(self)
        self.spawn(self._send)

    def _send(self) -> None:
        chance, sim = self.sim.chance, self.sim
        for number in range(self.mails):
            if sim.is_clustered and chance.random() < 0.7:  # all send at once
                self.world.sleep(1 - (self.world.now - sim.began) % 1 + chance.random() * 0.05)
            else:
                self.world.sleep(chance.random() * TROUBLE / self.mails)
            some = chance.sample(sim.entities, min(len(sim.entities), chance.choice((1, 2, 4))))
            mails = [mail_to(one, f"{self.name}-{number:03}", self.name) for one in some]
            for again in range(1 + (chance.random() < 0.2)):  # repeated after it was acknowledged
                self._post(mails, is_first=not again)
        self.is_done = True

    def _post(self, mails: list[Mail], *, is_first: bool) -> None:
        while True:
            try:
                rows = self.store.post(mails)
                break
            except LoomError:
                self.world.sleep(self.sim.chance.random())
        for mail, row in zip(mails, rows, strict=True):
            if isinstance(row, Exception):
                raise Violation(f"{mail.key} for {mail.entity_id} was refused: {row}")
            if is_first:
                self.sim.sent[mail.entity_id].append(mail.key)
        self.sim.hint()


class Fault(NamedTuple):
    """What happens at some time."""

    at: float
    what: str


class Simulation:
    """One run of a cluster, all of it decided by its seed."""

    def __init__(self, seed: int, store: type[SimStore] = SimStore) -> None:
        self.seed = seed
        self.world = World(seed)
        self.chance: Random = self.world.chance
        chance = self.chance
        self._store = store
        self.unsure = chance.choice((0.0, 0.0, 0.02, 0.1))
        self.is_clustered = chance.random() < store.clustered
        self.idles = chance.choice((0.02, 0.5)) if self.is_clustered else 0.02
        """Seconds after which an idle entity is unloaded."""
        self.loses_hints = chance.choice((0.0, 0.3, 1.0))
        distance = chance.choice((1, 5, 20)) if self.is_clustered else 20
        self.server = Server(self.world, distance, has_unique_keys=store.has_unique_keys)
        self.server.on_commit = self._check_commit
        self.began = self.world.now
        self.entities = [f"e{n}" for n in range(chance.randrange(2, 6))]
        self.sent: dict[str, list[str]] = defaultdict(list)
        """Of each entity the keys of mail that was acknowledged, in order."""
        self.lost: set[tuple[str, str]] = set()
        """Mail that a failover has forgotten."""
        self.granted: list[tuple[float, int]] = []
        self.claimed: dict[str, tuple[int, str]] = {}
        """Of each entity the newest token, and who has it."""
        self.has_forgotten = False
        self._orphans: dict[str, tuple[float, bool]] = {}
        self._steady: dict[str, float] = {}
        self._numbers = 0
        self.loaders: list[Loader] = []
        mails = (2, 6) if self.is_clustered else (4, 10)
        self.senders = [Sender(self, f"s{n}", chance.randrange(*mails)) for n in range(chance.randrange(1, 4))]
        self.submissions = chance.randrange(3, 9)
        self.has_submitted = False
        self.schedule = Rule(every=chance.choice((2.0, 4.0)), start=self.began)
        self.tests = Process(self.world, "tests")

    def open(self, process: Process) -> SimStore:
        """Open a store for a process, as soon as that is possible."""
        return self._store(process, self.server)

    def hint(self) -> None:
        """Tell all processes to look, if the hint is not lost."""
        for one in self.loaders:
            if not one.is_dead and self.chance.random() >= self.loses_hints:
                one.hint()

    # The course of a run

    def run(self) -> None:
        """Run it. Raises Violation."""
        with set_clocks(self.world):
            try:
                self.tests.spawn(self._course)
                self.world.run(self.began + TROUBLE + SETTLES)
                error = self.world.errors[0] if self.world.errors else None
                if error is None:
                    raise Violation(f"not at rest after {SETTLES} s: {self._unsettled()}")
                if not isinstance(error, _Done):
                    raise error
            finally:
                self.world.close()

    def _course(self) -> None:
        chance = self.chance
        store = self._store(self.tests, self.server)
        for entity in self.entities:
            first = turn(entity, f"first of {entity}", None, terminated=True)
            store.append([_header(entity), IntentGiven(entity, "go", AT), *first])
        to = self.entities[0]
        scheduled = Scheduled(to="entity", name=to, intent="go", rule=self.schedule, created=self.began,
                              catch_up="all", next=self.began + 2)  # fmt: skip
        store.replace_timer(None, Timer(id="tick", due=self.began + 2, schedule=scheduled))
        store.change_account(ACCOUNT, partial(declare, QUEUE, [], "tests"), 0.0)
        self.server.keep()
        self.tests.spawn(self._submit, store)
        for _ in range(chance.randrange(2, 5)):
            self._start(SimNode if self.is_clustered else Program)
        for sender in self.senders:
            sender.start()
        self.tests.spawn(self._watch)
        for fault in sorted(self._faults()):
            self.world.sleep(max(0.0, fault.at - self.world.now))
            self._happen(fault.what)
        self.world.sleep(max(0.0, self.began + TROUBLE - self.world.now))
        self._heal()
        row = store.find_timer("", "tick")
        while not self._is_settled(store):
            self.world.sleep(BEAT)
            self._free(store)
            row = self._find(store, row)
        self._check_end(store)
        raise _Done

    def _submit(self, store: SimStore) -> None:
        """Submit casts to the queue. Each is repeated until it is kept."""
        for number in range(self.submissions):
            self.world.sleep(self.chance.random() * TROUBLE / self.submissions)
            key, at = f"submitted {number}", float(number)
            row = SubmissionRow(key=key, cantrip=NAME, intent="go", at=at, queue=QUEUE.name)
            while True:
                try:
                    store.add_submission(row)
                    break
                except LoomError:
                    self.world.sleep(self.chance.random())
        self.has_submitted = True

    def _find(self, store: SimStore, before: Timer | None) -> Timer | None:
        """Remove the schedule when there was time for its firings."""
        if self.world.now > self.began + TROUBLE + TTL and before is not None:
            row = store.find_timer("", "tick")
            following = None if row is None or row.schedule is None else row.schedule.next
            if following is not None and following > self.world.now and store.replace_timer(row, None) is not None:
                self.last_firing = following
                return None
            return row
        return before

    def _faults(self) -> list[Fault]:
        chance, kinds = self.chance, ["crash", "crash", "freeze", "freeze", "cut", "slow", "drain", "outage", "forget"]
        return [
            Fault(self.began + 1 + chance.random() * (TROUBLE - 2), chance.choice(kinds))
            for _ in range(chance.randrange(0, 7))
        ]

    def _start(self, kind: type[Loader], serves: str = "") -> None:
        self._numbers += 1
        one = kind(self, f"n{self._numbers}")
        is_newer = self.is_clustered and self.chance.random() < 0.3 and self._numbers > 1
        one.serves = serves or ("c2" if is_newer else "c1")
        self.loaders.append(one)
        try:
            one.start()
        except LoomError:  # the server cannot be reached: what starts processes tries again
            self.loaders.remove(one)
            self.tests.spawn(self._start_later, kind, one.serves)

    def _start_later(self, kind: type[Loader], serves: str) -> None:
        self.world.sleep(BEAT)
        self._start(kind, serves)

    def restart(self, gone: Loader) -> None:
        """Start a process in the place of one that is gone."""
        if gone in self.loaders:
            self.loaders.remove(gone)
            self.tests.spawn(self._start_later, type(gone), gone.serves)
            self.tests.spawn(gone.kill)

    def _happen(self, what: str) -> None:
        chance, world = self.chance, self.world
        one = chance.choice([each for each in self.loaders if not each.is_dead] or [None])
        if what == "outage":
            self._fail_over(0)
        elif what == "forget":
            self._fail_over(chance.randrange(1, 30))
        elif one is None:
            pass
        elif what == "crash":
            self._crash(one)
        elif what == "freeze":
            one.thaws_at = world.now + chance.choice((0.3, 0.9, 1.3, 2.5)) * TTL
        elif what == "slow":
            one.slowness = chance.choice((10, 100))
            self._later(chance.random() * 2 * TTL, lambda: setattr(one, "slowness", 1.0))
        elif what == "cut":
            one.is_cut = True
            self._later(chance.choice((0.3, 1.5)) * TTL, lambda: setattr(one, "is_cut", False))
        elif what == "drain" and isinstance(one, SimNode):
            self.tests.spawn(self._ask_to_drain, one)

    def _ask_to_drain(self, one: SimNode) -> None:
        with suppress(LoomError):
            self._store(self.tests, self.server).ask_to_drain(one.owner)

    def _crash(self, one: Loader) -> None:
        is_machine = self.chance.random() < 0.5
        for session in [each for each in self.server.sessions if each.process is one]:
            if is_machine:
                session.closed = True
                self.server.linger(session)
            else:
                session.end()
        if not is_machine:
            mark_gone(one.owner)
        one.kill()
        self.restart(one)

    def _fail_over(self, forgets: int) -> None:
        lost = self.server.fail_over(forgets)
        self.server.is_down = True
        self._later(
            self.chance.random() * (0.5 if forgets else 2 * TTL), lambda: setattr(self.server, "is_down", False)
        )
        if forgets and lost:
            self.has_forgotten = True
            for one in lost:
                if one.table == "mail" and one.before is None and one.after is not None:
                    entity = self._entity_of(one.after[1])
                    self.lost.add((entity, one.after[4]))
                if one.table == "leases":
                    row = one.before or one.after
                    assert row is not None
                    tokens = [lease[0] for lease in self.server.rows["leases"].values() if lease and lease[1] == row[1]]
                    self.claimed[row[1]] = max(tokens, default=0), ""

    def _later(self, delay: float, work: Callable[[], object]) -> None:
        def wait() -> None:
            self.world.sleep(delay)
            work()

        self.tests.spawn(wait)

    def _heal(self) -> None:
        self.server.is_down = False
        for one in self.loaders:
            one.thaws_at, one.is_cut, one.slowness, one.unsure = 0.0, False, 1.0, 0.0
        for sender in self.senders:
            sender.unsure = 0.0
        for cantrip in ("c1", "c2") if self.is_clustered else ():
            self._start(SimNode, cantrip)

    def _free(self, store: SimStore) -> None:
        """Lift quarantines, as a person does."""
        for entity in store.quarantined():
            with suppress(Held):
                store.release(store.claim(entity, f"person {self.seed}", 1.0, lift=True))

    # What must be true

    def _entity_of(self, number: int) -> str:
        row = self.server.rows["entities"].get(number)
        assert row is not None
        return str(row[1])

    def _check_commit(self, who: Transaction, changes: list[Change]) -> None:
        """At most one process appends to a tree: the one whose claim is the newest (N-09)."""
        process = who.session.process
        claimed = {one.after[1] for one in changes if one.table == "leases" and one.after is not None}
        for one in changes:
            if one.table == "leases" and one.before is None and one.after is not None:
                token, entity, *_ = one.after
                owner = getattr(process, "owner", process.name)
                if token <= self.claimed.get(entity, (0, ""))[0]:
                    raise Violation(f"{entity}: token {token} is not greater than {self.claimed[entity]}")
                self.claimed[entity] = token, owner
            if one.table == "leases" and one.after is None and isinstance(process, Program):
                assert one.before is not None
                if one.before[1] not in claimed and not process.is_tidying:
                    self._check_release(process, one.before[1])
        self._check_queue()
        for one in changes:
            if one.table == "records" and one.before is None and isinstance(process, Loader):
                assert one.after is not None
                entity = self._entity_of(one.after[1])
                token, owner = self.claimed.get(entity, (0, ""))
                if owner not in ("", process.owner):
                    raise Violation(f"{entity}: {process.owner} appends, and {owner} has claimed it with {token}")

    def _check_queue(self) -> None:
        """No more entities of a queue have begun and are not over than its bound allows (N-50).

        A server that has forgotten places may have one more for each of them.
        """
        rows = self.server.rows["entities"].values()
        running = [row[1] for row in rows if row and is_submitted(row[1]) and row[_LIFE] < Life.OVER.value]
        assert QUEUE.max_running is not None
        if len(running) > QUEUE.max_running and not self.has_forgotten:
            raise Violation(f"{running} of a queue run at a time: its bound is {QUEUE.max_running}")

    def _check_release(self, process: Program, entity: str) -> None:
        """A program that releases an entity leaves no mail behind that was kept before (N-28)."""
        number = next((at for at, row in self.server.rows["entities"].items() if row and row[1] == entity), None)
        if number is None:  # it has not begun
            return
        tree = self.server.rows["trees"].get(number)
        if tree and tree[4] > 0 and self.claimed.get(entity, (0, ""))[1] == process.owner:
            raise Violation(f"{entity}: {process.name} releases it, and mail waits that nobody was told of")

    def _watch(self) -> None:
        """Look at what has no owner, and at deadlocks, twice a beat."""
        while True:
            self.world.sleep(BEAT / 2)
            if self.server.deadlocks:
                raise Violation(f"deadlock: {self.server.deadlocks[0]}")
            if self.is_clustered:
                self._check_orphans()

    def _check_orphans(self) -> None:
        """No entity with work is without an owner for longer than ttl + 2 beats while a steady node has room (N-10)."""
        now = self.world.now
        steady = {}
        for one in self.loaders:
            well = not (one.is_frozen or one.is_cut or one.slowness > 1 or self.server.is_down or one.is_dead)
            if well and is_steady(one.state, now) and not one.state.is_draining:
                steady[one.owner] = self._steady.get(one.owner, now)
        self._steady = steady
        rows = self.server.rows
        held = {row[1]: row for row in rows["leases"].values() if row}
        ends = {at: row[2] for at, row in rows["holders"].items() if row}
        # a claim waits so long for a locked tree before it ends the session of the one that locked it and says nothing,
        # and the claims of other entities wait behind it: each process has one connection to write with
        is_stuck = any(map(self.server.is_stuck, rows["entities"]))
        orphans = {}
        for number, row in rows["entities"].items():
            assert row is not None
            entity, life, tree = row[1], row[_LIFE], rows["trees"].get(number)
            has_work = life == Life.BUSY.value or (tree is not None and tree[4] > 0)
            owner = held.get(entity)
            is_owned = owner is not None and (owner[2] == 0 or ends.get(owner[2], 0.0) > now)
            if has_work and not is_owned:
                since, is_locked = self._orphans.get(entity, (now, False))
                orphans[entity] = since, is_locked or is_stuck
        self._orphans = orphans
        for entity, (since, is_locked) in orphans.items():
            for one in self.loaders:
                began = max(since, self._steady.get(one.owner, math.inf))
                if now - began > TTL + 2 * BEAT + is_locked * (SILENCE + BEAT) and self._may_run(one, entity):
                    raise Violation(f"{entity} has had no owner for {now - began:.1f} s, and {one.name} has room")

    def _may_run(self, one: Loader, entity: str) -> bool:
        me = next((each for each in one.members if each.owner == one.owner), None)
        if me is None or not me.room or entity in one.state.left_out or entity in one.state.loading:
            return False
        number = next(at for at, row in self.server.rows["entities"].items() if row and row[1] == entity)
        log = self._log(entity)
        is_idle = self.server.rows["entities"][number][_LIFE] == Life.IDLE.value
        return can_run(me, Candidate(entity, in_force(log), NAME, is_idle), one.members)

    def _log(self, entity: str) -> list[Record]:
        number = next(at for at, row in self.server.rows["entities"].items() if row and row[1] == entity)
        found = sorted((at, row[3]) for at, row in self.server.rows["records"].items() if row and row[1] == number)
        return [decode(line.encode()) for _, line in found]

    def _is_settled(self, store: SimStore) -> bool:
        """Whether all is sent, taken and done."""
        rows = self.server.rows
        is_quiet = all(sender.is_done for sender in self.senders) and self.has_submitted
        is_quiet = is_quiet and not rows["timers"] and not rows["submissions"]
        if not is_quiet:
            return False
        if any(row and row[_LIFE] == Life.BUSY.value for row in rows["entities"].values()):
            return False
        return all(row is None or row[7] is not None for row in rows["mail"].values())

    def _unsettled(self) -> str:
        """Return what is not done, in words."""
        rows = self.server.rows
        mail = [(self._entity_of(row[1]), row[4]) for row in rows["mail"].values() if row and row[7] is None]
        busy = [row[1] for row in rows["entities"].values() if row and row[_LIFE] == Life.BUSY.value]
        senders = [one.name for one in self.senders if not one.is_done]
        times = f"timers {len(rows['timers'])}, submissions {len(rows['submissions'])}"
        return f"mail {mail}, at work {busy}, {times}, senders {senders}"

    def _check_end(self, store: SimStore) -> None:
        """Mail is recorded once and in order, each firing happened once, limits were kept, and logs are whole."""
        for entity in self.entities:
            log = self._log(entity)
            keys = [key for one in log if isinstance(one, IntentGiven) and (key := get_key(one))]
            doubled = [key for key, count in Counter(keys).items() if count > 1]
            if doubled:
                raise Violation(f"{entity}: recorded more than once: {doubled}")
            sent = [key for key in self.sent[entity] if (entity, key) not in self.lost]
            missing = set(sent) - set(keys)
            if missing:
                raise Violation(f"{entity}: acknowledged, and not recorded: {sorted(missing)}")
            for sender in self.senders:
                own = [key for key in keys if key.startswith(f"{sender.name}-") and (entity, key) not in self.lost]
                if own != sorted(own):
                    raise Violation(f"{entity}: not in the order of sending: {own}")
            try:
                store.check_chain(entity)
            except DamagedLoom as error:
                raise Violation(f"{entity}: {error}") from error
        self._check_submissions()
        self._check_schedule()
        self._check_limits()
        faults = list(store.faults())
        if faults:
            raise Violation(faults[0])

    def _check_submissions(self) -> None:
        begun = {row[1]: row[_LIFE] for row in self.server.rows["entities"].values() if row and is_submitted(row[1])}
        if len(begun) < self.submissions and not self.has_forgotten:
            raise Violation(f"{self.submissions} casts were submitted, and {sorted(begun)} have begun")
        unfinished = [entity for entity, life in begun.items() if life < Life.OVER.value]
        if unfinished:
            raise Violation(f"submitted, and not over: {unfinished}")

    def _check_schedule(self) -> None:
        keys = {get_key(one) for one in self._log(self.entities[0]) if isinstance(one, IntentGiven)}
        at: float | None = self.began + 2
        while at is not None and at < self.last_firing:
            key = make_firing_key("tick", at)
            if key not in keys and (self.entities[0], key) not in self.lost:
                raise Violation(f"the schedule did not fire at {at - self.began:g} s")
            at = find_next(self.schedule, at)

    def _check_limits(self) -> None:
        if self.has_forgotten:
            return
        self.granted.sort()
        rate = RATE.requests_per_minute
        assert rate is not None
        for at, (began, _) in enumerate(self.granted):
            total = 0
            for now, many in self.granted[at:]:
                total += many
                if total > rate + (now - began) * rate / 60 + 1e-6:
                    raise Violation(f"{total} requests in {now - began:.1f} s: the limit is {rate} a minute")


class _Done(BaseException):
    """The run is over."""


def in_force(log: Sequence[Record]) -> str:
    """Return the content id of the cantrip that an entity works with."""
    return next((one.cantrip_id for one in reversed(log) if isinstance(one, (Adopted, Header))), "")


def mail_to(entity: str, key: str, sender: str = "", kind: Any = "intent") -> Mail:
    """Return an intent."""
    return Mail(entity_id=entity, key=key, kind=kind, body={"intent": "go"}, sender=sender, at=AT)


def is_submitted(entity: str) -> bool:
    """Return whether an entity begins from the queue."""
    return entity.startswith("submitted ")


def _header(entity: str, cantrip: str = "c1", *, lasting: bool = True) -> Header:
    return Header(
        entity_id=entity,
        cantrip_id=cantrip,
        cantrip_name=NAME,
        at=AT,
        call={},
        circle={},
        crystal="scripted",
        lasting=lasting,
        queue="" if lasting else QUEUE.name,
    )


def _draw(ask: AccountRequest, text: str | None, now: float) -> tuple[str, tuple[float, int]]:
    changed, grant = draw(text, RATE, ask, now)
    return changed, (now, grant.requests)


@contextmanager
def set_clocks(world: World) -> Iterator[None]:
    """Give the store's modules the clocks of the process that runs: a wall clock that may be wrong, and one that only
    goes forward.
    """

    def wall() -> float:
        return world.now + world.current.process.skew

    def monotonic() -> float:
        return world.now - 1_000_000.0

    clock = SimpleNamespace(time=wall, monotonic=monotonic)
    modules: list[Any] = [postgres, lease]
    kept = [module.time for module in modules]
    for module in modules:
        module.time = clock
    try:
        yield
    finally:
        for module, one in zip(modules, kept, strict=True):
            module.time = one

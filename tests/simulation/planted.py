"""Twelve bugs that were planted in the runtime, as small patches of the product, and a seed that finds each.

A bug names the program of `scenarios.py` that shows it. `EXHAUSTIVE=1` looks for each of them from seed 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from cantrip_actors.loom import Unsure
from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.machine import accept, loop
from cantrip_actors.runtime.entity import loading
from cantrip_actors.runtime.entity.delegation import Delegation
from cantrip_actors.runtime.loom import loom_writer
from cantrip_actors.runtime.loom.loom_writer import LoomWriter
from cantrip_actors.runtime.mail.inbox import Inbox
from cantrip_actors.runtime.mail.inboxes import Inboxes
from cantrip_actors.terms.messages import NO_USAGE
from cantrip_actors.testing.simulation import simulate
from tests.simulation.scenarios import PROGRAMS

Patch = AbstractContextManager[Any]

_add, _settle, _write = Inbox.add, Inbox.settle, LoomWriter._write
_append, _look_up, _replace_timers = SqliteStore.append, SqliteStore._look_up, SqliteStore.replace_timers


def lose_wake_up() -> Iterable[Patch]:
    """Mail that arrives while the inbox reads the store is forgotten."""

    def add(self: Inbox, mail: Sequence[Any]) -> None:
        if self._arrived is None:
            _add(self, mail)

    yield patch.object(Inbox, "add", add)


def run_gate_twice() -> Iterable[Patch]:
    """A gate that was running at a crash is run again, also if it is not idempotent."""
    for module in (accept, loop):
        yield patch.object(module, "is_unknown", lambda *_: False)


def report_before_commit() -> Iterable[Patch]:
    """An append is reported as done before it is written."""

    async def write(self: LoomWriter, group: list[Any]) -> None:
        for caller in group:
            caller.reply(None)
        records, taken, post, timers = loom_writer._join_group([caller.message for caller in group])
        if records:
            append = loom_writer.partial(
                self._store.append, records, self._tokens, taken=taken, post=post, timers=timers
            )
            await self._access.write(append)
            self._note_written(records, post, timers, 0.0, len(group))

    yield patch.object(LoomWriter, "_write", write)
    yield patch.object(LoomWriter, "write_now", lambda *_: False)


def take_mail_later() -> Iterable[Patch]:
    """The mail that a record takes is marked as taken in a transaction of its own, after the record."""

    def append(self: SqliteStore, records: Any, *leases: Any, taken: Any = (), **more: Any) -> None:
        _append(self, records, *leases, **more)

        def mark(db: Any) -> None:
            (last,) = db.execute("select max(seq) from records").fetchone()
            for _, no in taken:
                lane, loads, entity = db.execute("select lane, loads, entity from mail where no = ?", (no,)).fetchone()
                db.execute("update mail set taken = ?, line = '' where no = ?", (last, no))
                which = "control" if lane == 0 else "intents"
                change = f"update trees set {which} = {which} - 1, loads = loads - ? where no = ?"
                db.execute(change, (int(bool(loads)), entity))
            self._known.forget()

        if taken:
            self._transact(mark)

    yield patch.object(SqliteStore, "append", append)


def check_no_lease() -> Iterable[Patch]:
    """Whoever appends has the right lease."""
    held: list[Any] = [{}]

    def append(self: SqliteStore, records: Any, leases: Any = None, **more: Any) -> None:
        held[0] = leases or {}
        _append(self, records, held[0], **more)

    def look_up(self: SqliteStore, db: Any, *values: Any, **more: Any) -> Any:
        found = _look_up(self, db, *values, **more)
        for place in self._known.places.values():
            place.tree.token = held[0].get(place.tree.root, place.tree.token)
        return found

    yield patch.object(SqliteStore, "append", append)
    yield patch.object(SqliteStore, "_look_up", look_up)


def begin_children_again() -> Iterable[Patch]:
    """After a crash the children of a call begin again, beside those that have begun."""

    async def make_child(self: Delegation, index: int) -> Any:
        action = self._action
        return await self._parent.make_child(action.turn_id, action.children[index], None)

    yield patch.object(Delegation, "_make_child", make_child)


def leave_children() -> Iterable[Patch]:
    """The children of a call that is cancelled continue."""

    async def stop(*_: object) -> None:
        pass

    yield patch.object(Delegation, "stop", stop)


def fire_in_two_transactions() -> Iterable[Patch]:
    """A timer is replaced first, and its mail posted then."""

    def replace_timers(self: SqliteStore, changes: Sequence[Any]) -> Any:
        results: list[Any] = _replace_timers(self, [(old, new, ()) for old, new, _ in changes])
        for at, (_, _, mails) in enumerate(changes):
            if mails and results[at] is not None:
                results[at] = self.post(list(mails))
        return results

    yield patch.object(SqliteStore, "replace_timers", replace_timers)


def forget_tokens() -> Iterable[Patch]:
    """The tokens of the children that ended before a crash are not counted."""
    yield patch.object(loading, "sum_usage_under", lambda *_: NO_USAGE)


def answer_all_callers() -> Iterable[Patch]:
    """The end of an episode answers all callers of the entity."""

    def settle(self: Inbox, key: str, *outcome: Any) -> None:
        for each in {key, *self.expected}:
            _settle(self, each, *outcome)

    yield patch.object(Inbox, "settle", settle)


def lose_answer() -> Iterable[Patch]:
    """The answer to an intent that has ended before its sender asks again is not looked for in the log."""

    async def settle_from_log(*_: object) -> None:
        pass

    yield patch.object(Inboxes, "settle_from_log", settle_from_log)


def trust_unsure_append() -> Iterable[Patch]:
    """An append whose outcome is unknown is taken for done."""

    def append(self: SqliteStore, *args: Any, **more: Any) -> None:
        with suppress(Unsure):
            _append(self, *args, **more)

    yield patch.object(SqliteStore, "append", append)


class PlantedBug(NamedTuple):
    """A bug: its patches, the program that shows it, and a seed that finds it."""

    plant: Callable[[], Iterable[Patch]]
    program: str
    seed: int

    @property
    def name(self) -> str:
        return self.plant.__name__

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug in the product for a `with` block."""
        with ExitStack() as patches:
            for each in self.plant():
                patches.enter_context(each)
            yield


BUGS: Final = [
    PlantedBug(lose_wake_up, "Rush", 2),
    PlantedBug(run_gate_twice, "Orders", 23),
    PlantedBug(report_before_commit, "Orders", 93),
    PlantedBug(take_mail_later, "Orders", 14),
    PlantedBug(check_no_lease, "TakeOver", 5),
    PlantedBug(begin_children_again, "Family", 25),
    PlantedBug(leave_children, "Family", 1),
    PlantedBug(fire_in_two_transactions, "Clock", 30),
    PlantedBug(forget_tokens, "Budget", 23),
    PlantedBug(answer_all_callers, "Orders", 0),
    PlantedBug(lose_answer, "Orders", 1),
    PlantedBug(trust_unsure_append, "Orders", 53),
]


def run(program: str, seed: int | str, **options: Any) -> Any:
    """Simulate a program of `scenarios.py`."""
    made = PROGRAMS[program]()
    return simulate(made.run, seed, check=made.check, reset=made.reset, **{**made.options, **options})

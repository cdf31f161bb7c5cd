"""The connections of an SQLite loom, and how an attempt (`Store.attempt`) keeps off what waits or takes long.

The rules of this file:

- No two threads use a connection at the same time: a thread that reads takes a free connection, or opens another one.
  So no thread waits for the mutex of a connection, and reads beside each other do not wait at all.
- No connection waits for a lock by itself. `wait_for_lock` does, for calls that may wait: those outside an attempt.
- An attempt has a `ReadBudget`. The read that would exceed it raises Postponed, and so does one whose statement looks
  at much more than it returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from cantrip_actors.loom.stores.read_budget import UNIT, ReadBudget
from cantrip_actors.loom.stores.store import Postponed

T = TypeVar("T")

STATEMENT: Final = 4
"""Units of a `ReadBudget` that a statement costs."""
STEPS: Final = 20_000
"""Steps of SQLite's machine after which a statement of an attempt is postponed: about a millisecond."""


class CallState(ReadBudget):
    """The state of the calls of one thread."""

    frozen: sqlite3.Connection | None = None
    """The connection that reads inside `snapshot`."""

    @property
    def is_attempt(self) -> bool:
        """Whether this call is part of an attempt, so that it must not wait."""
        return self.left is not None

    def fetch(self, cursor: sqlite3.Cursor) -> list[Any]:
        """Return all rows. Raises Postponed once they exceed the budget."""
        rows = []
        try:
            self.spend(STATEMENT)
            for row in cursor:
                size = 0
                for value in row:
                    if value.__class__ is bytes:
                        size += len(value)
                self.spend(1 + size // UNIT)
                rows.append(row)
        except Postponed:
            cursor.close()  # ends its read transaction
            raise
        return rows


class Readers:
    """The connections for reading."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], patience: Callable[[], float]) -> None:
        self._connect = connect
        self._patience = patience
        self._free: list[sqlite3.Connection] = []
        self._is_closed = False
        self.state = CallState()

    def fetch(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        """Return the rows of a query. Raises sqlite3.Error, and in an attempt Postponed."""
        state = self.state
        if state.frozen is not None:
            return state.frozen.execute(query, values).fetchall()
        reader = self.take()
        try:
            if not state.is_attempt:
                return wait_for_lock(lambda: reader.execute(query, values).fetchall(), reader, self._patience())
            return state.fetch(reader.execute(query, values))
        except sqlite3.OperationalError as error:
            if state.is_attempt and _get_code(error) in _POSTPONING:
                raise Postponed from error
            raise
        finally:
            self.give_back(reader)

    def take(self) -> sqlite3.Connection:
        """Return a free connection."""
        try:
            return self._free.pop()
        except IndexError:
            reader = self._connect()
            self.prepare(reader)
            return reader

    def give_back(self, reader: sqlite3.Connection) -> None:
        """Let the next thread use a connection."""
        if self._is_closed:  # an episode may be inspected long after its runtime closed
            reader.close()
        else:
            self._free.append(reader)

    def prepare(self, reader: sqlite3.Connection) -> None:
        """Prepare a new connection for reading: texts arrive as bytes."""
        reader.text_factory = bytes
        forbid_waiting(reader)
        reader.set_progress_handler(lambda: self.state.is_attempt, STEPS)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have the reads of this thread inside the block see one state, that of the block's beginning."""
        if self.state.frozen is not None:
            yield
            return
        reader = self.state.frozen = self.take()
        reader.execute("begin")
        try:
            yield
        finally:
            self.state.frozen = None
            try:
                reader.execute("rollback")
            except sqlite3.Error:  # a damaged file
                reader.close()
            else:
                self.give_back(reader)

    def close(self) -> None:
        """Close the connections that are free now, and each other one after its use."""
        self._is_closed = True
        while self._free:
            self._free.pop().close()


def forbid_waiting(connection: sqlite3.Connection) -> None:
    """Let a connection raise SQLITE_BUSY at once in place of waiting for a lock."""
    connection.execute("pragma busy_timeout = 0")


def wait_for_lock(work: Callable[[], T], connection: sqlite3.Connection, patience: float) -> T:
    """Return the result of `work`, which uses a connection; wait for a lock of another one for `patience` seconds."""
    try:
        return work()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    connection.execute(f"pragma busy_timeout = {patience * 1000:.0f}")
    try:
        return work()
    finally:
        forbid_waiting(connection)


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether an error says that another connection holds a lock."""
    return _get_code(error) == sqlite3.SQLITE_BUSY


def _get_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


_POSTPONING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT)

"""The statements of a test: those that are sent to Postgres from the event loop, and those that SQLite reads with."""

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cantrip_actors.loom import SqliteStore
from cantrip_actors.loom.sqlite.sqlite_connections import Readers


class Watched:
    """The statements that make the event loop's thread wait inside `watching`, with the lines that sent them.

    In Postgres that is every statement, in SQLite one outside of an attempt.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.statements: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.thread = threading.get_ident()
        yield
        self.thread = None
        assert not self.statements, "\n".join(self.statements)

    def note(self, query: Any) -> None:
        if threading.get_ident() == self.thread:
            own = [one for one in traceback.extract_stack() if "cantrip_actors" in one.filename]
            path = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(own))
            self.statements.append(f"{' '.join(str(query).split())} [{path}]")


def trace_reads(store: SqliteStore, note: Callable[[str], object] | None) -> None:
    """Call `note` with the statements that a store reads with, as long as one thread reads."""
    reader = store._readers.take()
    reader.set_trace_callback(note)
    store._readers.give_back(reader)


def watch_statements(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Have the statements of the test noted, from now on."""
    kept = Watched()

    def watch(kind: Any, name: str) -> None:
        send = getattr(kind, name)

        def sending(self: Any, query: Any, *values: Any, **more: Any) -> Any:
            kept.note(query)
            return send(self, query, *values, **more)

        monkeypatch.setattr(kind, name, sending)

    watch(psycopg.Connection, "execute")
    watch(psycopg.Cursor, "executemany")
    fetch, transact = Readers.fetch, SqliteStore._transact

    def fetching(self: Readers, query: str, values: tuple[Any, ...]) -> list[Any]:
        if not self.state.is_attempt:
            kept.note(query)
        return fetch(self, query, values)

    def transacting(self: SqliteStore, *given: Any) -> Any:
        if not self._is_attempt:
            kept.note("begin immediate")
        return transact(self, *given)

    monkeypatch.setattr(Readers, "fetch", fetching)
    monkeypatch.setattr(SqliteStore, "_transact", transacting)
    return kept

"""The statements that are sent to Postgres from the thread of a test's event loop: all entities wait for them."""

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest


class Watched:
    """The statements that are sent from the event loop's thread inside `watching`, with the lines that sent them."""

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
    return kept

"""The stores of one measurement: an empty folder, or an empty database of a Postgres server."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg

from conformance.postgres import Server

__all__ = ["NoStoreError", "Place", "Stores", "open_stores"]

_numbers = itertools.count()


class NoStoreError(Exception):
    """A kind of store that this machine does not have; its text is the reason."""


class Place(Protocol):
    """Where one subject writes."""

    store: str
    """The store of the job."""
    folder: Path

    def measure_size(self) -> int:
        """Return the bytes that are there."""


class _Folder:
    def __init__(self, store: str, folder: Path) -> None:
        self.store, self.folder = store, folder

    def measure_size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


class _Database:
    def __init__(self, server: str, name: str, folder: Path) -> None:
        self._server, self._name, self.folder = server, name, folder
        self.store = re.sub(r"(://[^/]*)/[^?]*", rf"\1/{name}", server)

    def measure_size(self) -> int:
        with psycopg.connect(self._server, autocommit=True) as connection:
            row = connection.execute("select pg_database_size(%s)", (self._name,)).fetchone()
        assert row is not None
        return int(row[0])


class Stores:
    """Makes places; with `server`, the URL of a Postgres server, also databases."""

    def __init__(self, server: str | None) -> None:
        self._server = server

    @contextmanager
    def open(self, kind: str) -> Iterator[Place]:
        """Yield an empty place for a kind of store, and remove it at the end; raise NoStoreError without Postgres."""
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            if kind != "postgres":
                yield _Folder(kind, Path(folder))
            elif self._server is None:
                raise NoStoreError("no Postgres on this machine, and no --postgres URL")
            else:
                with self._make_database(self._server, Path(folder)) as place:
                    yield place

    @contextmanager
    def _make_database(self, server: str, folder: Path) -> Iterator[Place]:
        name = f"bench_peers_{next(_numbers)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"drop database if exists {name}".encode())
            connection.execute(f"create database {name}".encode())
        try:
            yield _Database(server, name, folder)
        finally:
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"drop database if exists {name} with (force)".encode())


@contextmanager
def open_stores(url: str | None) -> Iterator[Stores]:
    """Yield stores on this Postgres server, or on one of our own, or without Postgres where it is not installed."""
    if url is not None:
        yield Stores(url)
        return
    try:
        server: AbstractContextManager[Server] = Server()
    except FileNotFoundError:
        yield Stores(None)
        return
    with server as running:
        assert isinstance(running, Server)
        yield Stores(running.url)

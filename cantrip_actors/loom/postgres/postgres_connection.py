"""Connections to a Postgres server: how one is replaced when it is lost, and how a transaction uses it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

Raw = psycopg.Connection[TupleRow]


class Session:
    """A connection that is replaced when it is lost. Its users take turns with `lock`."""

    def __init__(self, connect: Callable[[], Raw], fail: Callable[[str, Exception], NoReturn]) -> None:
        self.lock: AbstractContextManager[Any] = threading.Lock()
        self.connection: Raw | None = None
        self._connect = connect
        self._fail = fail

    def run(self, what: str, work: Callable[[Raw], T], *expected: type[Exception]) -> T:
        """Do `work` on the connection; do it again, once, if the connection was lost before its end.

        `what` begins the error. Exceptions of the types `expected` are raised as they are.
        """
        for again in (True, False):
            if self.connection is None or is_lost(self.connection):
                self.connection = self._connect()
            try:
                return work(self.connection)
            except expected:
                raise
            except (psycopg.Error, UnicodeEncodeError) as error:
                if not (is_lost(self.connection) and again):
                    self._fail(what, error)
        raise AssertionError  # the second time either returns or fails


class Sql:
    """A connection that accepts the SQL of `tables`."""

    def __init__(self, connection: Raw) -> None:
        self.connection = connection

    def execute(self, query: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[TupleRow]:
        """Run a statement and return its cursor."""
        return self.connection.execute(query.replace("?", "%s"), values)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement for each row."""
        with self.connection.cursor() as cursor:
            cursor.executemany(query.replace("?", "%s"), rows)


class Transaction(Sql):
    """A transaction that waits for the server as rarely as it can.

    Its beginning is sent with the first statement, and its end with the last ones: an append waits once for what it
    depends on, and once for its commit. If a statement fails, the server skips the end, and the error is raised.
    """

    def __init__(self, connection: Raw, settings: Sequence[sql.Composed]) -> None:
        super().__init__(connection)
        self._settings = settings
        self._pipelined = ExitStack()
        self._is_at_once = False

    def __enter__(self) -> Self:
        self._pipeline = self._pipelined.enter_context(self.connection.pipeline())
        try:
            self.connection.execute("begin")
            for setting in self._settings:
                self.connection.execute(setting)
        except BaseException as failed:
            self._abandon(failed)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon(error)
            return
        try:
            self.connection.execute("commit")
            self._pipelined.close()  # waits for all answers
        except BaseException as failed:
            self._abandon(failed)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Leave the pipeline, whatever the server says of the statements that it skipped, and roll back."""
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            self.connection.close()  # it was lost: the server may never answer
        with suppress(psycopg.Error):
            if not self.connection.closed and self.connection.info.pipeline_status is not _OFF:
                self._pipeline.sync()
        with suppress(psycopg.Error):
            self._pipelined.close()
        if not self.connection.closed:
            self.connection.rollback()

    def execute(self, query: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[TupleRow]:
        """Run a statement; wait for its answer where that is read."""
        cursor = super().execute(query, values)
        if not self._is_at_once:
            self._pipeline.sync()
        return cursor

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement for each row."""
        super().executemany(query, rows)
        if not self._is_at_once:
            self._pipeline.sync()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Send the statements of the block without waiting: an answer is waited for where it is read."""
        self._is_at_once = True
        try:
            yield
        finally:
            self._is_at_once = False


def is_lost(connection: Raw) -> bool:
    """Return whether an unused connection is dead.

    A connection whose server was killed in the middle of a pipeline does not notice: it waits for answers for good.
    """
    parts = connection.info
    if not connection.closed and (parts.transaction_status, parts.pipeline_status) != (_IDLE, _OFF):
        connection.close()
    return connection.closed


_IDLE, _OFF = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.PipelineStatus.OFF


_PLAIN = re.compile(r"[a-z]+://(?:[^@/?#]*@)?(?:\[[^\]@/?#]*\]|[^@/?#:,]*)(?::[0-9]*)?(?:,[^@/?#]*)?(?:[/?][^@]*)?")
"""A URL whose parts libpq and a reader split in the same way: at most one `@`, and a port of digits."""


def name_database(url: str) -> str:
    """Return the database's name for messages, without a password.

    A password with a raw `@`, `/` or `?` is refused before libpq sees it, because libpq would take a part of it for a
    host and repeat that in its errors. libpq's complaint about a URL quotes pieces of the URL, so it is not shown.
    """
    if "://" in url and not _PLAIN.fullmatch(url):
        raise LoomError(f'"{render_url(url)}": expected %40, %2F, %3F and %23 for "@", "/", "?" and "#" in a password')
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        expected = "postgresql://user@host/database, with % escapes for special characters"
        raise LoomError(f'"{render_url(url)}" is not an address of a Postgres database: expected {expected}') from None
    if "@" in str(parts.get("host") or ""):
        raise LoomError(f'"{render_url(url)}": expected the name of a host, got one with "@": check the % escapes')
    return f"postgresql database {parts.get('dbname') or ''} at {parts.get('host') or 'this machine'}"


def describe_error(error: Exception) -> str:
    """Return the text of an error, on one line and without a full stop, because advice may follow."""
    return " ".join(str(error).split()).rstrip(".")

"""The rows of the tables of `schema.py`: how they are read, and what a transaction has read of them (`KnownRows`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cantrip_actors.loom.stores.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.stores.rules import NONE_WAITS, Known, Place, Plan, Tree, Waiting
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.machine.project import EntityStanding, Life
from cantrip_actors.records.codec import Newer, decode
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.records import Record
from cantrip_actors.records.seal import NOTHING, split_link
from cantrip_actors.terms.errors import LoomError

MANY = 500
"""Rows that are read at once when all are read."""


class Connection(Protocol):
    """A connection in the middle of a transaction. A `?` in a query stands for a value."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement and return its cursor."""

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Run a statement for each row."""


class Tables(Store):
    """A store whose records are rows of SQL tables: how rows are read."""

    @abstractmethod
    def _fetch_rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query. Text arrives as str or as UTF-8."""

    @abstractmethod
    def _pipeline(self, db: Connection) -> AbstractContextManager[object]:
        """Send statements without waiting for the answers."""

    def _fetch_ids(self, query: str, *values: Any) -> list[str]:
        return [decode_text(id) for (id,) in self._fetch_rows(query, *values)]

    def _decode(self, seq: int, body: str | bytes) -> Record:
        try:
            return decode(body.encode() if isinstance(body, str) else body)
        except Newer as error:
            raise Newer(f"{self.where}: record {seq} {error}") from error
        except LoomError as error:
            raise DamagedLoom(f"{self.where}: record {seq} is corrupt: {error}. {REPAIR}") from error


def fetch_pages(
    fetch: Callable[..., list[Any]], query: str, *values: Any, after: Sequence[Any] = (0,)
) -> Iterator[Sequence[Any]]:
    """Yield all rows of a query, which `fetch` reads page by page.

    A query takes a position, then `values`, then a limit. Its first columns are the position of a row.
    """
    while rows := fetch(query, *after, *values, MANY):
        # SQLite's texts arrive as bytes, which are greater than every text
        after = [decode_text(value) if isinstance(value, bytes) else value for value in rows[-1][: len(after)]]
        yield from rows


MAIL_ROWS = (
    "select mail.no, taken, id, key, mail.lane, mail.loads, digest from mail join entities on entities.no = mail.entity"
)


def decode_mail_row(row: Sequence[Any]) -> MailRow:
    """Return a row of `MAIL_ROWS`."""
    no, taken, entity, key, lane, loads, digest = row
    return MailRow(no, taken, decode_text(entity), decode_text(key), lane, bool(loads), bytes(digest))


def read_link(body: str | bytes) -> bytes:
    """Return the link in a line."""
    return split_link(body.encode() if isinstance(body, str) else body)[1] or NOTHING


def decode_text(value: object) -> str:
    """Return the text of a column. Raises DamagedLoom for a value that is not a text in UTF-8."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()  # type: ignore[attr-defined, no-any-return]  # SQLite's reader returns bytes
    except (AttributeError, UnicodeDecodeError) as error:
        raise DamagedLoom(
            f"a row of the loom is damaged: expected text in UTF-8, got other {type(value).__name__}. {REPAIR}"
        ) from error


def decode_optional_text(value: object) -> str | None:
    """Return the text of a column that may be null."""
    return None if value is None else decode_text(value)


class KnownRows(Known):
    """The facts that a store's transactions have read. SQLite keeps them until another connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self._trees: dict[int, Tree] = {}
        self._tokens: dict[str, int] = {}
        self._mail_rows: dict[int, MailRow] = {}
        self._mail: dict[tuple[str, str], MailRow] = {}

    def forget(self) -> None:
        """Forget all entities."""
        self.places.clear()
        self._trees.clear()

    def fill(
        self, places: Iterable[Any], owners: dict[str, str], tokens: dict[str, int], mail: Sequence[MailRow]
    ) -> None:
        """Add entities; replace the known turns, tokens and mails."""
        for entity, no, root_no, lasting, life, state, cantrip, has_timers, root, token, head, *counts in places:
            tree = self._trees.get(root_no)
            if tree is None:
                waiting, link = (NONE_WAITS, NOTHING) if head is None else (Waiting(*counts), head.encode())
                tree = self._trees[root_no] = Tree(root_no, root, link, token, waiting)
            standing = EntityStanding(Life(life), state, cantrip)
            self.places[entity] = Place(no, tree, bool(lasting), standing, has_timers=bool(has_timers))
        self.owners, self._tokens = owners, tokens
        self._mail_rows = {row.no: row for row in mail}
        self._mail = {(row.entity_id, row.key): row for row in mail}

    def find_token(self, root: str) -> int | None:
        """Return the token of the lease on an entity that is about to begin."""
        return self._tokens.get(root)

    def find_mail(self, entity: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        return self._mail.get((entity, key))

    def find_mail_row(self, no: int) -> MailRow | None:
        """Return the mail with that number."""
        return self._mail_rows.get(no)

    def apply(self, plan: Plan) -> None:
        """Add the written records."""
        super().apply(plan)
        for place in plan.new.values():
            self._trees[place.tree.no] = place.tree

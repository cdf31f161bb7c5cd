"""What both SQL stores read from the tables of `rows.py`, in the SQL that both speak; how they ask is theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from cantrip_actors.loom.life import Life
from cantrip_actors.loom.pictures import Picture, with_pictures
from cantrip_actors.loom.record import Newer, decode
from cantrip_actors.loom.store import Store
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Header, Record

__all__ = ["MANY", "TableStore"]

MANY = 500
"""Rows that are read at once where all are."""


class TableStore(Store):
    """A store whose records are rows."""

    _where: str
    """The database, as messages name it."""
    _has_images: bool = True
    """Whether there is a table for them; one that an older version made, opened read-only, has none."""
    _has_pictures: bool = True
    """Likewise."""

    @abstractmethod
    def _rows(self, query: str, *values: Any) -> list[Any]:
        """The answer to a query, with a `?` for each value. Text comes as str or as UTF-8."""

    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, in order."""
        rows = self._rows(
            "select seq, body from records where entity = (select no from entities where id = ?) order by seq",
            entity_id,
        )
        return with_pictures((self._decoded(seq, body) for seq, body in rows), self.picture)

    def header(self, entity_id: str) -> Header | None:
        """How an entity began."""
        rows = self._rows("select seq, body from entities join records on seq = no where id = ?", entity_id)
        return self._header(*rows[0]) if rows else None

    def headers(self) -> Iterator[Header]:
        """Every entity's header, in order of creation, up to the moment of the call."""
        ((last,),) = self._rows("select coalesce(max(no), 0) from entities")
        at = 0
        while rows := self._rows(
            "select seq, body from entities join records on seq = no where no > ? and no <= ? order by no limit ?",
            at,
            last,
            MANY,
        ):
            at = rows[-1][0]
            for seq, body in rows:
                yield self._header(seq, body)

    def owner(self, turn_id: str) -> str | None:
        """The entity that a committed turn belongs to."""
        found = self._ids("select id from records join entities on no = entity where turn = ?", turn_id)
        return found[0] if found else None

    def children(self, turn_id: str) -> Sequence[str]:
        """The entities that a turn spawned."""
        return self._ids("select id from entities where parent_turn = ? and not forked order by no", turn_id)

    def forks(self, turn_id: str) -> Sequence[str]:
        """The entities that were forked from a turn."""
        return self._ids("select id from entities where parent_turn = ? and forked order by no", turn_id)

    def below(self, entity_id: str) -> Sequence[str]:
        """The entities that an entity spawned."""
        return self._ids("select id from entities where parent_entity = ? and not forked order by no", entity_id)

    def named(self, name: str) -> str | None:
        """The latest lasting entity of that name."""
        found = self._ids("select id from entities where lasting and name = ? order by no desc limit 1", name)
        return found[0] if found else None

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """The entities that are not over, in order of creation."""
        most = Life.IDLE if idle else Life.BUSY
        return self._ids("select id from entities where life < 2 and life <= ? order by no", most.value)

    def image(self, digest: str) -> SandboxImage | None:
        """The image of that digest."""
        rows = self._rows("select engine, seal, data from images where digest = ?", digest) if self._has_images else []
        return SandboxImage(digest, _text(rows[0][0]), bytes(rows[0][2]), _text(rows[0][1])) if rows else None

    def images(self) -> Iterator[str]:
        """The digests of all images."""
        at = ""
        while self._has_images and (
            found := self._ids("select digest from images where digest > ? order by digest limit ?", at, MANY)
        ):
            at = found[-1]
            yield from found

    def picture(self, digest: str) -> Picture | None:
        """The picture of that digest."""
        rows = self._rows("select type, data from pictures where digest = ?", digest) if self._has_pictures else []
        return Picture(digest, _text(rows[0][0]), bytes(rows[0][1])) if rows else None

    def pictures(self) -> Iterator[str]:
        """The digests of all pictures."""
        at = ""
        while self._has_pictures and (
            found := self._ids("select digest from pictures where digest > ? order by digest limit ?", at, MANY)
        ):
            at = found[-1]
            yield from found

    def _ids(self, query: str, *values: Any) -> list[str]:
        return [_text(id) for (id,) in self._rows(query, *values)]

    def _decoded(self, seq: int, body: str | bytes) -> Record:
        try:
            return decode(body.encode() if isinstance(body, str) else body)
        except Newer as error:
            raise Newer(f"{self._where}: record {seq} {error}") from error
        except LoomError as error:
            raise LoomError(f"{self._where}: record {seq} is corrupt: {error}") from error

    def _header(self, seq: int, body: str | bytes) -> Header:
        header = self._decoded(seq, body)
        if not isinstance(header, Header):
            raise LoomError(f"{self._where}: record {seq} is corrupt: an entity begins with it, and it is no header")
        return header

    def __repr__(self) -> str:
        ((entities, turns),) = self._rows(
            "select (select count(*) from entities), (select count(*) from records where turn is not null)"
        )
        return f"<{type(self).__name__} {self._where} of {entities} entities, {turns} turns>"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()

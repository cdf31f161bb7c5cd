"""The memory store: a loom that lives as long as its process, for tests, demos and throw-away casts.

It keeps lines, as a file would, and not record objects: a million of those would take several times the memory, and the
garbage collector would traverse them again and again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn

from cantrip_actors.loom.erasure import Erasure
from cantrip_actors.loom.line_store import LineStore
from cantrip_actors.loom.rules import Plan
from cantrip_actors.loom.seal_key import GivenKey, Head, open_seal
from cantrip_actors.records.blob import Blob
from cantrip_actors.terms.errors import LoomError


class MemoryStore(LineStore):
    """A store without a disk. It can still be read after it is closed.

    Its lines have no links, because no other program can edit them, unless it has a `seal_key`.
    """

    sealed = False

    def __init__(self, *, seal_key: GivenKey = None) -> None:
        super().__init__()
        self.seal = open_seal(seal_key, None, "memory:", is_new=True)
        self.sealed = self.seal.mark is not None
        self._head = self.seal.beginning
        self._log = bytearray()
        self._blobs: dict[str, Blob] = {}
        self._checkpoints: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise LoomError("the loom is closed: nothing can be recorded any more")

    @property
    def _end(self) -> int:
        return len(self._log)

    def _write(self, db: None, made: Plan) -> None:  # noqa: ARG002  # there is none
        for digest, blob in made.blobs.items():
            self._blobs.setdefault(digest, blob)
        if made.lines:
            self._log += b"\n".join([*made.lines, b""])
        if made.end is not None:
            self._head = made.end

    def head(self) -> Head | None:
        """Return the head of a sealed loom."""
        return self._head if self.sealed else None

    def _replace_lines(self, changed: Sequence[tuple[int, bytes]], made: Plan) -> Callable[[], None]:
        def finish() -> None:
            for offset, line in changed:
                self._log[offset : offset + len(line)] = line
            self._write(None, made)

        return finish

    def _remove_sidecars(self, wanted: Erasure) -> None:
        for entity in (*wanted.entities, *wanted.forks):
            self._checkpoints.pop(entity, None)

    def _keep_blobs(self, used: AbstractSet[str]) -> int:
        unused = self._blobs.keys() - used
        for digest in unused:
            del self._blobs[digest]
        return len(unused)

    def _read_bytes(self, start: int, length: int) -> bytes:
        return bytes(self._log[start : start + length])

    def _keep_checkpoint(self, entity_id: str, kept: bytes, leases: Mapping[str, int] | None) -> None:  # noqa: ARG002  # one process writes
        self._checkpoints[entity_id] = kept

    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        return self._checkpoints.get(entity_id)

    def _raise_corrupt(self, offset: int, error: LoomError) -> NoReturn:  # noqa: ARG002  # likewise
        raise error

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield every line with its number, in the order of recording, up to the moment of the call."""
        return enumerate(bytes(self._log).splitlines(), 1)

    def blob(self, digest: str) -> Blob | None:
        """Return the blob of that digest."""
        return self._blobs.get(digest)

    def blobs(self) -> Iterator[str]:
        """Return the digests of all blobs."""
        return iter(list(self._blobs))

    def key(self) -> bytes:
        """Return a key that lives as long as the store."""
        return self._key

    def close(self) -> None:
        """Refuse further records."""
        self._closed = True

    def reopen(self) -> None:
        """Accept records again."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._known.places)} entities, {len(self._known.owners)} turns>"

"""Blobs: bytes that records name by their digest. A store keeps each content once.

An *image* is a picture (PNG, JPEG, GIF or WebP) and part of what happened. Its kind is its media type, its digest the
SHA-256 of its bytes.

A *snapshot* is the state of a sandbox, as an engine wrote it (CIRCLE-9, LOOM-4). Its kind names the engine and the
engine's version, and its digest covers both kind and bytes. Loading a snapshot means trusting it, because an engine's
format is not made for hostile input. So a snapshot is sealed (HMAC) with a key that does not travel with it. A snapshot
that is missing, damaged, of another engine or without a good seal is not an error: the programs that made the sandbox
run again.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256

FORMAT = 1
"""The version of the bytes around an engine's own bytes. Raise it when these change, here or in a medium: the seals of
earlier snapshots are then invalid, and programs run again.
"""

_SNAPSHOT = "snapshot/"


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes under their digest. `kind` is the media type of an image, or `snapshot/` and the engine of a snapshot.

    `seal` proves that this loom's owner stored a snapshot; it is "" for an image.
    """

    digest: str
    kind: str
    data: bytes = field(repr=False)
    seal: str = ""

    @classmethod
    def of_image(cls, media_type: str, data: bytes) -> Blob:
        """Return the blob of an image."""
        return cls(sha256(data).hexdigest(), media_type, data)

    @classmethod
    def of_snapshot(cls, engine: str, data: bytes, key: bytes) -> Blob:
        """Return the blob of a snapshot that `engine` wrote, sealed with `key`."""
        digest = _compute_snapshot_digest(engine, data)
        return cls(digest, _SNAPSHOT + engine, data, _seal(digest, key))

    @property
    def is_snapshot(self) -> bool:
        """Whether it is the state of a sandbox; otherwise it is an image."""
        return self.kind.startswith(_SNAPSHOT)

    @property
    def engine(self) -> str:
        """The engine that wrote a snapshot."""
        return self.kind.removeprefix(_SNAPSHOT)

    @property
    def media_type(self) -> str:
        """The media type of an image."""
        return self.kind

    @property
    def is_whole(self) -> bool:
        """Whether the bytes match the digest."""
        digest = _compute_snapshot_digest(self.engine, self.data) if self.is_snapshot else sha256(self.data).hexdigest()
        return digest == self.digest

    def is_sealed_with(self, key: bytes) -> bool:
        """Whether the seal was made with `key`. It does not say that the bytes are whole."""
        return hmac.compare_digest(self.seal.encode(errors="replace"), _seal(self.digest, key).encode())

    def seal_again(self, key: bytes) -> Blob:
        """Return the same snapshot for a store with another key."""
        return replace(self, seal=_seal(self.digest, key))


class Snapshot:
    """A record's reference to a snapshot, by its digest. `blob` is set until the record is written."""

    __slots__ = ("blob", "digest")

    def __init__(self, digest: str, blob: Blob | None = None) -> None:
        self.digest = digest
        self.blob = blob

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Snapshot({self.digest!r})"


def make_reference(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without its bytes, for keeping."""
    return snapshot if snapshot.blob is None else Snapshot(snapshot.digest)


def _compute_snapshot_digest(engine: str, data: bytes) -> str:
    digest = blake2b(engine.encode() + b"\n", digest_size=20)
    digest.update(data)
    return digest.hexdigest()


def _seal(digest: str, key: bytes) -> str:
    sealed = f"cantrip snapshot {FORMAT} {digest}"
    return hmac.digest(key, sealed.encode("utf-8", "replace"), "sha256").hex()

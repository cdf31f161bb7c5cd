"""Snapshots: images of sandboxes, as records refer to them (CIRCLE-9, LOOM-4).

A `SandboxImage` is what an engine wrote of a sandbox: bytes, with the engine's name and version beside them, named by a
digest of both, so that a store keeps the same one once. A record has a `Snapshot`: the digest, and on its way to the
store the image, too. (A picture that somebody is shown is an `Image`, and another thing: `image.py`.)

Who loads an image trusts it: an engine's own format is no place to look for lies in. So images are sealed (HMAC) with a
key that does not travel with them. One without a good seal, of another engine, damaged or missing is no error: whoever
wanted it runs the programs again that made the sandbox.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace
from hashlib import blake2b

__all__ = ["FORMAT", "SandboxImage", "Snapshot", "reference"]

FORMAT = 1
"""Of what we put around an engine's own bytes. Raise it with any change of that, here or in a medium: no earlier image
has a good seal then, and programs are run again.
"""


@dataclass(frozen=True, slots=True)
class SandboxImage:
    """A sandbox as bytes: what `engine` wrote. `digest` names it, `seal` says who kept it."""

    digest: str
    engine: str
    data: bytes = field(repr=False)
    seal: str

    @classmethod
    def of(cls, engine: str, data: bytes, key: bytes) -> SandboxImage:
        """The image of `data`, sealed with `key`."""
        digest = _digest(engine, data)
        return cls(digest, engine, data, _seal(digest, key))

    @property
    def is_whole(self) -> bool:
        """Whether it is what its digest was made of."""
        return self.digest == _digest(self.engine, self.data)

    def is_sealed_with(self, key: bytes) -> bool:
        """Whether somebody who has `key` kept it; whole it has to be, too."""
        return hmac.compare_digest(self.seal, _seal(self.digest, key))

    def sealed_again(self, key: bytes) -> SandboxImage:
        """The same image for another store."""
        return replace(self, seal=_seal(self.digest, key))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A record's reference to an image. `image` is there until the record is written, and is no part of it."""

    digest: str
    image: SandboxImage | None = field(default=None, compare=False, repr=False)


def reference(snapshot: Snapshot) -> Snapshot:
    """The snapshot without its image, for who keeps it long."""
    return snapshot if snapshot.image is None else Snapshot(snapshot.digest)


def _digest(engine: str, data: bytes) -> str:
    said = blake2b(engine.encode() + b"\n", digest_size=20)
    said.update(data)
    return said.hexdigest()


def _seal(digest: str, key: bytes) -> str:
    said = f"cantrip snapshot {FORMAT} {digest}"
    return hmac.digest(key, said.encode("utf-8", "replace"), "sha256").hex()

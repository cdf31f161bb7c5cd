"""Snapshots of Python sandboxes: a line of JSON with the engine and the kind, then the interpreter's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson
from pydantic_monty import __version__

ENGINE: Final = f"monty {__version__}"

SnapshotKind = Literal["idle", "suspended"]


class DamagedSnapshot(ValueError):
    """A snapshot that cannot be restored: it is damaged, or of another engine, or of another kind."""


def pack(kind: SnapshotKind, head: Mapping[str, Any], body: bytes) -> bytes:
    """Return a snapshot with the JSON of `head` in its first line."""
    return orjson.dumps({"engine": ENGINE, "kind": kind, **head}) + b"\n" + body


def unpack(snapshot: bytes, kind: SnapshotKind) -> tuple[dict[str, Any], bytes]:
    """Return the first line of a snapshot, parsed, and the interpreter's bytes. Raises DamagedSnapshot."""
    line, _, body = snapshot.partition(b"\n")
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError:
        head = None
    if not isinstance(head, dict) or "engine" not in head:
        raise DamagedSnapshot("expected a snapshot of a Python sandbox, got other bytes")
    if head["engine"] != ENGINE:
        raise DamagedSnapshot(f"the snapshot is of {head['engine']}, and this is {ENGINE}: replay its programs instead")
    if head.get("kind") != kind:
        raise DamagedSnapshot(f"expected a snapshot of a sandbox that is {kind}, got one that is {head.get('kind')}")
    return head, body

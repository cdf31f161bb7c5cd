"""The nodes of a loom: runtimes that have joined, so that they take over each other's entities (N-01).

A node is a holder of leases (`lease`) with a row that says more about it: its name, its release, what it serves, how
much it may run. The table is made when the first node joins, so a loom without nodes has no trace of them. Which node
runs an entity is what its lease says: there is no directory beside it that could say something else.

The text of `releases` is the order of releases: the one with the highest number is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import orjson

__all__ = ["TABLES", "NodeInfo", "NodeRow", "Unowned", "Why", "decode_info", "encode_info"]

TABLES = (
    """create table if not exists nodes (
      owner text primary key, info text not null, busy integer not null, draining boolean not null,
      asked boolean not null)""",
    "create table if not exists releases (release text primary key, no integer not null)",
    "create table if not exists takeovers (entity text primary key, head text not null)",
)
"""What the first node makes. `takeovers` has the head of a tree when its last dead holder was replaced."""


Why = Literal["free", "gone", "expired"]
"""Why nobody runs an entity: it has no lease, its holder's process is gone, or its holder's lease has expired."""


class NodeInfo(NamedTuple):
    """What a node says of itself when it joins."""

    name: str
    capacity: int
    release: str = ""
    zone: str = ""
    labels: Mapping[str, str] = {}  # a tuple's default, never changed
    serves: Mapping[str, str | None] = {}
    """The names of the cantrips that it offers, by their content ids."""


class NodeRow(NamedTuple):
    """A node as its row says, and whether it lives."""

    owner: str
    info: NodeInfo
    busy: int
    """Root entities at work."""
    is_draining: bool
    is_living: bool
    release_no: int = 0
    """The place of its release in the order of releases."""


class Unowned(NamedTuple):
    """A root entity that has work and that no living holder runs."""

    entity_id: str
    is_busy: bool
    """Whether an episode is under way; else only mail waits."""
    why: Why
    """It has no lease; its holder's process is gone; its holder was not heard of for longer than its lease lasts."""


def encode_info(info: NodeInfo) -> str:
    """Return the text of a row."""
    return orjson.dumps({**info._asdict(), "labels": dict(info.labels), "serves": dict(info.serves)}).decode()


def decode_info(text: str | bytes) -> NodeInfo:
    """Return what a row says; fields of a later version are ignored."""
    known = orjson.loads(text)
    return NodeInfo(**{name: known[name] for name in NodeInfo._fields if name in known})

"""The nodes of a loom: runtimes that have joined, so that they take over each other's entities.

A node is a holder of leases (`lease`) with a row that describes it: its name, its release, what it serves, how much it
may run. The table is made when the first node joins, so a loom without nodes has no trace of them. An entity's lease
says which node runs it: there is no separate directory that could disagree.

The row number in `releases` orders the releases: the highest one is the newest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

import orjson

TABLES = (
    """create table if not exists nodes (
      owner text primary key, info text not null, busy integer not null, draining boolean not null,
      asked boolean not null)""",
    "create table if not exists releases (release text primary key, no integer not null)",
)
"""The tables that the first node makes."""


Why = Literal["free", "gone", "expired"]
"""Why an entity has no living holder: no lease, its holder's process is gone, or its holder's lease has expired."""


class NodeInfo(NamedTuple):
    """A node's description of itself when it joins."""

    name: str
    capacity: int
    release: str = ""
    zone: str = ""
    labels: Mapping[str, str] = {}  # a tuple's default, never changed
    serves: Mapping[str, str | None] = {}
    """The names of the cantrips that it offers, by their content ids."""
    unclear: Mapping[str, Collection[str | None]] = {}
    """Which of these contents it knows with several crystals or dependencies, each with the names under which it knows
    it with only one: it takes over no entity whose cantrip has another name."""
    aliases: Mapping[str, str] = {}
    """The content ids of the cantrips that it offers under further names, by these names."""
    dependencies: Mapping[str, Collection[str]] = {}
    """The marks of the dependencies with which it offers a content; it provides any for a content that is not here."""

    @property
    def names(self) -> set[str]:
        """The names of the cantrips that it offers."""
        return {name for name in self.serves.values() if name is not None} | {*self.aliases}


class NodeRow(NamedTuple):
    """A node as its row describes it, and whether it lives."""

    owner: str
    info: NodeInfo
    busy: int
    """The number of root entities with a running episode."""
    is_draining: bool
    is_living: bool
    release_no: int = 0
    """The position of its release in the order of releases."""


class Unowned(NamedTuple):
    """A root entity that has work and no living holder."""

    entity_id: str
    is_busy: bool
    """Whether an episode is running; otherwise only mail waits."""
    why: Why
    """It has no lease, its holder's process is gone, or its holder was silent for longer than its lease lasts."""


def encode_info(info: NodeInfo) -> str:
    """Return the text of a row."""
    plain = {name: dict(value) for name, value in info._asdict().items() if isinstance(value, Mapping)}
    return orjson.dumps({**info._asdict(), **plain}).decode()


def decode_info(text: str | bytes) -> NodeInfo:
    """Return the description in a row; fields of a later version are ignored."""
    known = orjson.loads(text)
    return NodeInfo(**{name: known[name] for name in NodeInfo._fields if name in known})

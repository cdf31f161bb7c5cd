"""The result of `Runtime.inspect`: the state of a runtime at one moment.

No actor is asked, nothing waits for the event loop, and no server is asked: it can be read in any thread, and in a
signal handler, while the event loop is blocked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cantrip_actors.crystal.policy.traffic import CrystalStatus
from cantrip_actors.redact.urls import render_url
from cantrip_actors.runtime.time.queues import QueueStatus
from supervisors import inspect

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree


class CounterValue(NamedTuple):
    """One series of a counter."""

    name: str
    labels: Mapping[str, str]
    value: float


class LoomStatus(NamedTuple):
    """The state of a loom.

    `url` has no password. `durability` names the failure that an acknowledged record survives: "process", "power" or
    "none". `backlog` messages wait for the writer. `size` is in bytes on this disk; None for a loom in memory or on a
    server.
    """

    url: str
    durability: str
    backlog: int
    size: int | None


NO_LOOM: Final = LoomStatus("", "none", 0, None)


@dataclass(frozen=True, slots=True)
class System:
    """A runtime at one moment. `at` is in seconds since the epoch, `tree` the supervision tree.

    `counters` are those of its `Telemetry`, and empty without one. `requests` is the number of requests that wait
    for a person: of all entities of a loom on this disk or in memory, and of the loaded ones of a loom on a server;
    those of dispatches are not among them. `streams` counts the readers: "events" of entities, "upserts" (watchers),
    "requests", and with an HTTP service "http". `queues` are those of submissions, at the last poll for them.
    """

    at: float
    tree: inspect.Node
    crystals: tuple[CrystalStatus, ...] = ()
    counters: tuple[CounterValue, ...] = ()
    loom: LoomStatus = NO_LOOM
    requests: int = 0
    streams: Mapping[str, int] = field(default_factory=dict)
    queues: tuple[QueueStatus, ...] = ()


def read_system(tree: Tree) -> System:
    """Return the system of a runtime. Raises RuntimeClosed before it is opened."""
    store, instrument = tree.store, tree.instrument
    return System(
        time.time(),
        inspect.build_tree(tree.system),
        tuple(tree.crystals.get_status(tree.system.now())),
        () if instrument is None else tuple(CounterValue(*value) for value in instrument.counted()),
        LoomStatus(render_url(tree.url), store.durability, tree.writer.mailbox_depth, store.size()),
        _count_requests(tree),
        {"events": tree.bus.subscribers, "upserts": tree.watchers.count, "requests": tree.requests.followers},
        tuple(tree.scheduler.queues.status),
    )


def _count_requests(tree: Tree) -> int:
    if tree.store.expires:  # a server: reading may wait for it
        waiting = sum(cell.life.waits_for == "person" for cell in tree.living)
    else:
        waiting = tree.store.count_states().get("waiting", 0)
    return waiting + sum(1 for _ in tree.requests.elicitations)

"""The settings of a node of a cluster, and the state that its parts share."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio

from cantrip_actors.loom.stores.nodes import NodeInfo, Unowned
from cantrip_actors.machine.node import Event, NodeAction, State, advance, begin, is_ready, may_look_for, may_sweep
from cantrip_actors.machine.placement import Member
from cantrip_actors.terms.arguments import (
    check,
    check_count,
    check_seconds,
    check_short_name,
    is_text,
    is_texts_by_name,
)
from supervisors import ActorRef


@dataclass(frozen=True)
class Node:
    """The settings of a cluster member: `Runtime.open("postgresql://…", cantrips=[…], node=Node("w1"))`.

    `name` is for people; two nodes may have the same. `capacity` is how many root entities may be at work here at once.
    `release` names the set of cantrips that it serves, `zone` and `labels` say where it runs.

    Times are in seconds. A node renews its leases and looks for entities without an owner every `beat`; other nodes run
    its entities when it was silent for `ttl`, at least four beats. A node whose event loop is blocked for longer than
    `stall` lets its leases expire. `grace` is how long a node that drains waits for episodes to come to a border
    between two turns. An idle entity is unloaded after `passivate_after`, so that other nodes may load it.

    Raises ValueError for an invalid value.
    """

    name: str
    capacity: int = 200
    release: str = ""
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    grace: float = 60.0
    beat: float = 2.0
    ttl: float = 10.0
    stall: float = 60.0
    passivate_after: float = 30.0

    def __post_init__(self) -> None:
        check_short_name("Node", self.name)
        for what in ("release", "zone"):
            if getattr(self, what) != "":
                check_short_name(f"Node: {what}", getattr(self, what))
        fits = is_texts_by_name(self.labels) and all(map(is_text, self.labels))
        check(fits, "Node: labels", 'texts by name, as in {"disk": "nfs1"}', self.labels)
        check_count("Node: capacity", self.capacity, "entities")
        for what in ("grace", "beat", "ttl", "stall", "passivate_after"):
            check_seconds(f"Node: {what}", getattr(self, what))
        if not 0 < self.beat * 4 <= self.ttl < math.inf:
            raise ValueError(
                f"Node: expected a ttl of at least four beats, got ttl {self.ttl:g} and beat {self.beat:g}: a single "
                "late renewal would cost the node its entities"
            )


class UnownedCount(NamedTuple):
    """How many entities have work and no owner, according to a node's last poll."""

    waiting: int = 0
    stranded: int = 0
    """The number of entities that no living node can run."""
    quarantined: int = 0
    longest: float = 0.0
    """Seconds since this node first saw one of them."""


class Membership:
    """The state of a runtime that has joined, which its loom actor, its node actor and its renewals share."""

    def __init__(self, node: Node, info: NodeInfo) -> None:
        self.node = node
        self.info = info
        self.actor: ActorRef[Any] = ActorRef()
        """The node's actor, which looks for entities without an owner."""
        self.busy = 0
        self.members: list[Member] = []
        """The living nodes at the last poll."""
        self.unowned = UnownedCount()
        self.asked = anyio.Event()
        """Set when this node is asked to drain."""
        self._lock = threading.Lock()
        self._state = begin(node.ttl, time.monotonic())
        self._reported_late = 0

    @property
    def state(self) -> State:
        """The state of the node's decisions (`machine/node.py`)."""
        with self._lock:
            return self._state

    def advance(self, event: Event) -> list[NodeAction]:
        """Handle an event, in any thread; return the node's next actions."""
        with self._lock:
            self._state, actions = advance(self._state, time.monotonic(), event)
            return actions

    @property
    def owner(self) -> str:
        """The name under which this node holds leases; it changes after a crash of the loom actor."""
        return self.state.owner

    @property
    def own(self) -> Member | None:
        """This node's current facts, if its last poll found it among the living nodes."""
        me = next((member for member in self.members if member.owner == self.owner), None)
        return None if me is None else me._replace(busy=self.busy, is_draining=self.is_draining)

    @property
    def is_draining(self) -> bool:
        """Whether this node drains."""
        return self.state.is_draining

    def poll(self) -> None:
        """Set `asked` if a renewal reported a request to drain: only the event loop may set an event."""
        if self.state.is_asked and not self.asked.is_set():
            self.asked.set()

    def take_late(self) -> int:
        """Return how often it has renewed late since the last call."""
        late = self.state.late
        new, self._reported_late = late - self._reported_late, late
        return new

    def may_sweep(self) -> bool:
        """Return whether it now removes leases of holders that look dead."""
        return may_sweep(self.state, time.monotonic())

    def may_look_for(self, entity: Unowned) -> bool:
        """Return whether it considers an entity without an owner now."""
        return may_look_for(self.state, time.monotonic(), entity.entity_id, entity.why)

    @property
    def is_ready(self) -> bool:
        """Whether it has renewed within the ttl, and does not drain."""
        return is_ready(self.state, time.monotonic())

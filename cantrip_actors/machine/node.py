"""The decisions of a node: whether it renews its leases, and which entities it takes or leaves.

Pure: the time is an argument, in seconds of a monotonic clock, and so is the result of a poll of the tables.
`runtime/nodes/node.py` and `runtime/nodes/membership.py` carry these decisions out, and so does the simulation of the
tests. `placement.py` decides which of several nodes takes an entity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from cantrip_actors.machine.placement import Candidate, Member, PollResult, Take, UnloadIdle
from cantrip_actors.machine.placement import State as Seen
from cantrip_actors.machine.placement import advance as place

RETRY_POLLS: Final = 15
"""Polls after which an entity that could not be taken is considered again."""

_NO_POLLS: Mapping[str, int] = MappingProxyType({})


class State(NamedTuple):
    """The state of a node. `owner` is the name under which it holds leases."""

    ttl: float
    """Seconds without renewal after which other nodes run its entities."""
    renewed: float
    """When it last renewed its leases."""
    steady_since: float
    """Since when all renewals were in time."""
    owner: str = ""
    late: int = 0
    """How often it has renewed late."""
    is_asked: bool = False
    """Whether it was asked to drain."""
    is_draining: bool = False
    seen: Mapping[str, int] = _NO_POLLS
    """Entities without an owner, and the number of earlier polls that found them so."""
    left_out: Mapping[str, int] = _NO_POLLS
    """Entities that could not be taken, and the number of polls for which they are still skipped."""
    loading: frozenset[str] = frozenset()
    """Entities that it has begun to load."""


class Joined(NamedTuple):
    """The node has a row in the loom, under this name; another name after its loom actor crashed."""

    owner: str


class Renewed(NamedTuple):
    """Its leases were renewed. `is_asked` says whether its row asks it to drain."""

    is_asked: bool = False


class DrainBegan(NamedTuple):
    """The node drains from now on."""


class Checked(NamedTuple):
    """A poll begins."""


class Found(NamedTuple):
    """A poll has ended: these nodes live, and these entities have work and no owner."""

    members: Sequence[Member]
    unowned: Sequence[Candidate]
    hopeless: Sequence[str] = ()
    """Entities without an owner that cannot be taken now: they wait for people, or cannot be read."""
    idle: int = 0
    """The number of idle entities here."""


class LoadEnded(NamedTuple):
    """Loading an entity has ended; `is_living` says whether it runs here now."""

    entity_id: str
    is_living: bool


Event = Joined | Renewed | DrainBegan | Checked | Found | LoadEnded


NodeAction = Take | UnloadIdle


def begin(ttl: float, now: float) -> State:
    """Return the state of a node that is about to join."""
    return State(ttl, now, now)


def advance(state: State, now: float, event: Event) -> tuple[State, list[NodeAction]]:
    """Return the state of a node after an event, and its actions."""
    match event:
        case Joined(owner):
            return _renew(state, now)._replace(owner=owner), []
        case Renewed(is_asked):
            return _renew(state, now)._replace(is_asked=state.is_asked or is_asked), []
        case DrainBegan():
            return state._replace(is_draining=True), []
        case Checked():
            return state._replace(
                left_out={entity_id: looks - 1 for entity_id, looks in state.left_out.items() if looks > 0}
            ), []
        case Found():
            return _take(state, event)
        case LoadEnded(entity_id, is_living):
            state = state._replace(loading=state.loading - {entity_id})
            # another node was faster, or it cannot be loaded: not at the next poll
            return state if is_living else state._replace(left_out={**state.left_out, entity_id: 1}), []


def _renew(state: State, now: float) -> State:
    is_late = now - state.renewed > state.ttl / 2
    return state._replace(renewed=now, steady_since=now if is_late else state.steady_since, late=state.late + is_late)


def _take(state: State, found: Found) -> tuple[State, list[NodeAction]]:
    """Take the entities that are placed on this node, as far as it has capacity."""
    state = state._replace(left_out={**state.left_out, **dict.fromkeys(found.hopeless, RETRY_POLLS)})
    (_, seen), placed = place(Seen(state.owner, state.seen), PollResult(found.members, found.unowned, found.idle))
    actions: list[NodeAction] = [
        action for action in placed if not (isinstance(action, Take) and action.entity_id in state.loading)
    ]
    entity_ids = {action.entity_id for action in actions if isinstance(action, Take)}
    return state._replace(seen=seen, loading=state.loading | entity_ids), actions


def is_steady(state: State, now: float) -> bool:
    """Return whether a node has renewed in time for a whole ttl.

    After an outage of the store all leases look expired until their nodes have renewed them: no node may take them over
    in that time.
    """
    return now - state.steady_since >= state.ttl and now - state.renewed <= state.ttl / 2


def is_ready(state: State, now: float) -> bool:
    """Return whether a node has renewed within the ttl, and does not drain."""
    return not state.is_draining and now - state.renewed <= state.ttl


def may_renew(ticked: float, now: float, stall: float) -> bool:
    """Return whether leases are renewed: the event loop has ticked within `stall` seconds."""
    return now - ticked <= stall


def may_sweep(state: State, now: float) -> bool:
    """Return whether a node removes leases of holders that look dead."""
    return not state.is_draining and is_steady(state, now)


def may_look_for(state: State, now: float, entity_id: str, why: str) -> bool:
    """Return whether a node considers an entity without an owner. `why` is that of `Unowned`."""
    if state.is_draining or entity_id in state.left_out:
        return False
    return why != "expired" or is_steady(state, now)

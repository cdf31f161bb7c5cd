"""The outcome of an episode, from the state after its log."""

from __future__ import annotations

from typing import Literal

from cantrip_actors.machine.context import summarise
from cantrip_actors.machine.evolve import PER_INTENT
from cantrip_actors.machine.state import Phase, State
from cantrip_actors.records.records import Committed, Ended
from cantrip_actors.terms.image import NO_IMAGES, select_named
from cantrip_actors.terms.messages import NO_USAGE, Usage, as_text
from cantrip_actors.terms.outcome import EndReason, Outcome

_WARDS = {"timeout": "timeout", "budget": "budget"}

Status = Literal["active", "waiting", "idle", "forgotten"] | EndReason
"""Whether an entity is at work, waits for a person, is long-lived and waits for an intent, how it ended, or that its
content is gone."""


def show_status(status: Status) -> Status:
    """Return a status as users see it: a timeout and a budget are wards, so they truncate too."""
    return "truncated" if status in _WARDS else status


def get_status(state: State, *, lasting: bool) -> Status:
    """Return the status of an entity, as users see it, from its state. A forgotten one is "active" here."""
    end, turn = state.episode.end, state.turn
    if lasting and state.phase is Phase.IDLE:
        return "idle"
    if isinstance(end, Committed):
        return "terminated" if end.terminated else "truncated"
    if end is not None:
        return show_status(end.reason)
    return "waiting" if turn.requested is not None and turn.decided is None else "active"


def is_of_life(state: State) -> bool:
    """Return whether the ward that truncated the last turn ends the entity: a budget is for life (reading 27)."""
    end = state.episode.end
    ward = (isinstance(end, Committed) and end.ward) or ""
    is_of_episode = ward.startswith("max_turns") or ward.endswith(f"{PER_INTENT})")
    return isinstance(end, Committed) and end.truncated and not is_of_episode


def is_end_recorded(state: State) -> bool:
    """Return whether an `Ended` record says how the last episode ended, not only its last turn."""
    return state.phase is Phase.OVER or isinstance(state.episode.end, Ended)


def get_outcome(state: State, below: Usage = NO_USAGE) -> Outcome | None:
    """Return how the last episode ended, or None while it is under way.

    `below` is the usage of the subtrees of its children.
    """
    end = state.episode.end
    if end is None:
        return None
    usage, conversation = state.usage, state.conversation
    last = state.parent_id if state.sequence > state.inherited else None
    if isinstance(end, Committed):
        if end.terminated:
            finished = state.turn.finished
            result = state.episode.words if finished is None else finished.result
            images = select_named(as_text(result), conversation.images) if conversation.images and result else NO_IMAGES
            return Outcome(
                result,
                "terminated",
                terminated=True,
                usage=usage,
                subtree_usage=usage + below,
                last_turn=last,
                images=images,
                cut_off=state.episode.cut_off if finished is None else None,
                key=state.episode.key,
            )
        return Outcome(
            None,
            "truncated",
            truncated=True,
            ward=(end.ward or "").partition("(")[0] or None,
            summary=summarise(state, f"truncated by {end.ward}"),
            usage=usage,
            subtree_usage=usage + below,
            last_turn=last,
            key=state.episode.key,
        )
    failed = end.reason in ("failed", "crashed")
    return Outcome(
        None,
        end.reason,
        truncated=not failed,
        error=end.detail if failed else None,
        ward=(end.ward or "").removesuffix(PER_INTENT) or _WARDS.get(end.reason),
        summary=None if failed else end.detail or end.reason,
        usage=usage,
        subtree_usage=usage + below,
        last_turn=last,
        key=state.episode.key,
    )

"""The checkpoint rule: after an effect, progress is written before the next gate runs (F-18, F-19, F-31). Pure.

    what happened                           then
    --------------------------------------  ---------------------------------------------------------------------------
    an effectful gate ran                   a checkpoint is due, also where it failed: nobody knows how far it came
    a gate ran that is not effectful        it is counted; the thirtieth since the last progress makes a checkpoint due
    progress was written                    nothing is due, and counting begins again
    a status was set, the record was read   nothing changes

While one is due, every gate is refused except `progress`, `set_status` and `read_dispatch`, and `done`, whose exit
contract decides (`exits.py`): an entity can always do what is asked of it, and can always end. A gate that is refused,
here or elsewhere, did not run and is not counted. The state is the entity's, not its context's: a fold leaves it as
it is.
"""

from __future__ import annotations

from typing import NamedTuple

from cantrip_actors.dispatch.errors import Refusal

__all__ = ["BACKSTOP", "EXEMPT", "Checkpoint", "may_run", "progress_written", "ran"]

BACKSTOP = 30
"""Gate calls without progress after which a checkpoint is due, whatever they did."""

EXEMPT = frozenset({"progress", "set_status", "read_dispatch"})
"""The gates of the dispatch itself: they are never refused here, and never counted."""

_NEVER_REFUSED = EXEMPT | {"done"}


class Checkpoint(NamedTuple):
    """Where an entity stands: gate calls since its last progress, and what makes a checkpoint due (empty: nothing)."""

    calls: int = 0
    trigger: str = ""


def may_run(state: Checkpoint, gate: str) -> Refusal | None:
    """Why `gate` may not run now, or None. The refusal becomes an error observation, without effect (F-20)."""
    if not state.trigger or gate in _NEVER_REFUSED:
        return None
    return Refusal(
        f"checkpoint required ({state.trigger}): write what was done with `progress` before {gate} can run", "F-18"
    )


def ran(state: Checkpoint, gate: str, *, effectful: bool, backstop: int = BACKSTOP) -> Checkpoint:
    """The state after a gate ran, whether it succeeded or failed."""
    if gate in _NEVER_REFUSED:
        return state
    calls = state.calls + 1
    if state.trigger:
        return Checkpoint(calls, state.trigger)
    if effectful:
        return Checkpoint(calls, f"{gate} had an effect")
    return Checkpoint(calls, f"{calls} gate calls without progress" if calls >= backstop else "")


def progress_written(state: Checkpoint) -> Checkpoint:  # noqa: ARG001  # the same shape as the others
    """The state after a progress entry became durable. Nothing else clears what is due (F-19)."""
    return Checkpoint()

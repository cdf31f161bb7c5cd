"""The checkpoint rule: after an effect, progress is written before the next gate runs. Pure.

    what happened                           then
    --------------------------------------  ---------------------------------------------------------------------------
    an effectful gate ran                   a checkpoint is due, even if it failed: it may have had its effect
    a gate ran that is not effectful        it is counted; the thirtieth since the last progress makes a checkpoint due
    progress was written                    nothing is due, and counting begins again: a new `Checkpoint`
    a status was set, the record was read   nothing changes

While one is due, every gate is refused except `progress`, `set_status`, `read_dispatch` and `done`, whose exit contract
decides (`rules.py`): an entity can always write progress, and can always end. A gate call that is refused, here
or elsewhere, is not counted. The state belongs to the entity, not to its context: a fold does not change it.
"""

from __future__ import annotations

from typing import NamedTuple

from cantrip_actors.dispatch.errors import Refusal

BACKSTOP = 30
"""Gate calls of any kind without progress after which a checkpoint is due."""

EXEMPT = frozenset({"progress", "set_status", "read_dispatch", "done"})
"""The gates of the dispatch itself: they are never refused here, and never counted."""


class Checkpoint(NamedTuple):
    """The state: gate calls since the last progress, and the reason why a checkpoint is due (empty: it is not)."""

    calls: int = 0
    trigger: str = ""


def may_run(state: Checkpoint, gate: str) -> Refusal | None:
    """Return why `gate` may not run now, or None. The refusal becomes an error observation."""
    if not state.trigger or gate in EXEMPT:
        return None
    return Refusal(
        f"checkpoint required ({state.trigger}): write what was done with `progress` before {gate} can run",
        "checkpoint",
    )


def count_gate(state: Checkpoint, gate: str, *, effectful: bool) -> Checkpoint:
    """Return the state after a gate ran, whether it succeeded or failed."""
    if gate in EXEMPT:
        return state
    calls = state.calls + 1
    if state.trigger:
        return Checkpoint(calls, state.trigger)
    if effectful:
        return Checkpoint(calls, f"{gate} had an effect")
    return Checkpoint(calls, f"{calls} gate calls without progress" if calls >= BACKSTOP else "")

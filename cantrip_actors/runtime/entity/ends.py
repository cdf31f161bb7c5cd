"""How an entity that is stopped from outside ends: for good, with a reason in its log, or by leaving its log alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from cantrip_actors.machine.life import Change
from cantrip_actors.machine.state import Plan
from cantrip_actors.records.records import Ended
from cantrip_actors.runtime.entity.cell import Cell, Dismissed, GivenUp, Unloaded
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.outcome import EndReason
from supervisors import ParentEnded, RestartedWith, Shutdown

_REASONS: Final[dict[object, EndReason]] = {
    reason: reason for reason in ("cancelled", "parent_ended", "timeout", "budget", "abandoned")
}


def find_end_reason(detail: object, root: Cell, core: Core) -> EndReason | None:
    """Return why an entity ends that is shut down with this detail; None if it leaves, and continues from its log.

    A tree in which an entity has asked a person does not end because its runtime closes. Nor does work with a key: its
    caller comes back for it with that key.
    """
    is_resumed = outlasts_callers(root.plan, core) or root.is_suspended or core.is_handing_over
    is_resumed = is_resumed or core.living.has_request(root)
    if isinstance(detail, Dismissed):
        return _REASONS.get(detail.reason, "cancelled")
    if isinstance(detail, str) and detail in _REASONS:
        return _REASONS[detail]
    is_for_later = isinstance(detail, (RestartedWith, ParentEnded, Unloaded, GivenUp))
    return None if is_for_later or is_resumed else "cancelled"


def outlasts_callers(plan: Plan, core: Core) -> bool:
    """Return whether an entity's work is kept when its caller has gone, because a caller may come back for it."""
    return plan.lasting or plan.key is not None or (plan.on_close or core.limits.on_close) == "keep"


async def end_below(core: Core, entity_id: str) -> None:
    """Record the ends of an entity's unfinished children that are not loaded, and of theirs."""
    await end_trees(core, await core.in_store(partial(core.loom.below, entity_id)), "its parent ended")


async def end_trees(core: Core, roots: Sequence[str], why: str) -> None:
    """Record the ends of those of these children, and of the entities below them, that are not loaded and not over."""
    at, loom = core.make_moment().at, core.loom

    def find_unfinished() -> list[str]:
        below = [member for child in roots if loom.has(child) for member in loom.subtree(child)]
        return [member for member in below if core.living.get(member) is None and not loom.is_over(member)]

    unfinished = await core.in_store(find_unfinished) if roots else []
    if unfinished:
        await core.append([Ended(member, "parent_ended", at, why) for member in unfinished])


def leave_tree(core: Core, root: Cell) -> None:
    """Have a root entity leave, with its tree: its memory is released, and its log stays as it is."""
    if not root.life.is_final:
        core.living.change(root, Change.LEAVES)
        root.actor.exit(Shutdown(Unloaded()))

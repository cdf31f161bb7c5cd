"""The status machine of a dispatch: its transitions, the capacities that may make them, and their conditions.

    from              to          by                     needs
    ----------------  ----------  ---------------------  --------------------------------------------------------------
    (nothing)         queued      orchestrator           a valid contract; the log begins with it
    queued            active      worker                 the lease; an approval, where the contract needs one
    active            blocked     worker                 a blocker, and progress since the start
    active            blocked     supervisor             a blocker: the exit contract is unmet, rounds are used up
    active            completed   worker                 a result, progress since the start, evidence for each criterion
    active            queued      supervisor             a reason; written as a recovery, which counts the attempt
    active, blocked   failed      supervisor             a reason: too many restarts, or a ward that truncated
    blocked           queued      orchestrator, human    an approval or an unblocking since it was blocked
    queued, blocked   rejected    orchestrator, human    a reason

completed, failed and rejected are the end. Everything else is refused, and the refusal names what may come.

`rules.py` checks what each needs. `ALIASES` has what people write instead of the six words, for parsers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

Status: TypeAlias = Literal["queued", "active", "blocked", "completed", "failed", "rejected"]
STATUSES: tuple[Status, ...] = get_args(Status)
TERMINAL: frozenset[Status] = frozenset({"completed", "failed", "rejected"})

Capacity: TypeAlias = Literal["worker", "supervisor", "orchestrator", "human"]
"""The capacity in which an entry is written. The supervisor is the runtime itself."""

ALIASES: Mapping[str, Status] = {"in-progress": "active", "done": "completed", "complete": "completed"}
"""Other words for statuses in texts. Only a parser may use them."""

WORKER: frozenset[Capacity] = frozenset({"worker"})
RUNTIME: frozenset[Capacity] = frozenset({"supervisor"})
INSIDE = WORKER | RUNTIME
HUMAN: frozenset[Capacity] = frozenset({"human"})
ABOVE: frozenset[Capacity] = frozenset({"orchestrator", "human"})
ANYBODY = INSIDE | ABOVE

TABLE: Mapping[tuple[Status, Status], frozenset[Capacity]] = {
    ("queued", "active"): WORKER,
    ("active", "blocked"): INSIDE,
    ("active", "completed"): WORKER,
    ("active", "queued"): RUNTIME,
    ("active", "failed"): RUNTIME,
    ("blocked", "failed"): RUNTIME,
    ("blocked", "queued"): ABOVE,
    ("queued", "rejected"): ABOVE,
    ("blocked", "rejected"): ABOVE,
}


def legal_next(status: Status, by: Capacity | None = None) -> tuple[Status, ...]:
    """Return the statuses that may come after `status`, in any capacity or in this one."""
    return tuple(to for (before, to), who in TABLE.items() if before == status and (by is None or by in who))

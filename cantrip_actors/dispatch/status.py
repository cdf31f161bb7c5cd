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

completed, failed and rejected are the end. Everything else is refused, and the refusal names what may come (F-13).

Two rules of this file. It knows statuses and facts, no events: a `Standing` has the facts of a log. And it knows the
six words only: `ALIASES` has what people write instead, for parsers (F-17).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

from cantrip_actors.dispatch.errors import Refusal
from cantrip_actors.dispatch.terms import is_placeholder

__all__ = [
    "ALIASES",
    "STATUSES",
    "TABLE",
    "TERMINAL",
    "Capacity",
    "Standing",
    "Status",
    "Wanted",
    "legal_next",
    "refusal_of",
]

Status: TypeAlias = Literal["queued", "active", "blocked", "completed", "failed", "rejected"]
STATUSES: tuple[Status, ...] = get_args(Status)
TERMINAL: frozenset[Status] = frozenset({"completed", "failed", "rejected"})

Capacity: TypeAlias = Literal["worker", "supervisor", "orchestrator", "human"]
"""In which capacity an entry is written. The supervisor is the runtime itself."""

ALIASES: Mapping[str, Status] = MappingProxyType(
    {"in-progress": "active", "done": "completed", "complete": "completed"}
)
"""Other words for statuses in texts. Only a parser may use them (F-17)."""

WORKER: frozenset[Capacity] = frozenset({"worker"})
SUPERVISOR: frozenset[Capacity] = frozenset({"supervisor"})
ABOVE: frozenset[Capacity] = frozenset({"orchestrator", "human"})

TABLE: Mapping[tuple[Status, Status], frozenset[Capacity]] = MappingProxyType(
    {
        ("queued", "active"): WORKER,
        ("active", "blocked"): WORKER | SUPERVISOR,
        ("active", "completed"): WORKER,
        ("active", "queued"): SUPERVISOR,
        ("active", "failed"): SUPERVISOR,
        ("blocked", "failed"): SUPERVISOR,
        ("blocked", "queued"): ABOVE,
        ("queued", "rejected"): ABOVE,
        ("blocked", "rejected"): ABOVE,
    }
)


class Standing(NamedTuple):
    """The facts of a record that guards need."""

    status: Status
    needs_approval: bool = False
    approved: bool = False
    progress: bool = False  # an entry since the last start
    unproven: tuple[int, ...] = ()  # acceptance items without evidence, counted from 1
    released: bool = False  # an approval or an unblocking since it was blocked


class Wanted(NamedTuple):
    """A wanted change of status."""

    status: str
    by: Capacity
    result: str = ""
    blocker: str = ""
    reason: str = ""
    recovery: bool = False
    leased: bool = False


def legal_next(status: Status, by: Capacity | None = None) -> tuple[Status, ...]:
    """Return the statuses that may come after `status`, in any capacity or in this one."""
    return tuple(to for (before, to), who in TABLE.items() if before == status and (by is None or by in who))


def refusal_of(standing: Standing, wanted: Wanted) -> Refusal | None:
    """Return why the change is refused, or None (F-13 … F-17)."""
    before, to, by = standing.status, wanted.status, wanted.by
    legal = legal_next(before)
    if to not in STATUSES:
        return Refusal(f'"{to}" is not a status; {_may(before, legal)}', "F-17", legal)
    who = TABLE.get((before, to))
    if who is None:
        return Refusal(f"{before} cannot become {to}; {_may(before, legal)}", "F-13", legal)
    if by not in who:
        own = legal_next(before, by)
        text = f"only {' or '.join(sorted(who))} may make {before} {to}, not {by}; {_may(before, own)} for {by}"
        return Refusal(text, "F-13", own)
    unmet = next(GUARDS[to](standing, wanted), None)
    return None if unmet is None else Refusal(f"{before} cannot become {to} yet: {unmet[0]}", unmet[1], legal)


def _may(before: Status, legal: tuple[Status, ...]) -> str:
    if legal:
        return f"from {before} it may become {', '.join(legal)}"
    return f"{before} is the end" if before in TERMINAL else f"from {before} it may become nothing"


# What a legal change still lacks, and the rule that asks for it: one function for each new status.

Lacking: TypeAlias = Iterator[tuple[str, str]]


def _starting(standing: Standing, wanted: Wanted) -> Lacking:
    if standing.needs_approval and not standing.approved:
        yield "its contract needs approval, and nobody has approved it", "F-16"
    if not wanted.leased:
        yield "it takes the lease of its entity; claim it first", "F-14"


def _blocking(standing: Standing, wanted: Wanted) -> Lacking:
    if is_placeholder(wanted.blocker):
        yield "say what blocks it (blocker)", "F-15"
    if wanted.by == "worker" and not standing.progress:
        yield "write progress first; there is none since it became active", "F-15"


def _completing(standing: Standing, wanted: Wanted) -> Lacking:
    if is_placeholder(wanted.result):
        yield "say what came out (result)", "F-15"
    if not standing.progress:
        yield "write progress first; there is none since it became active", "F-15"
    if standing.unproven:
        items = ", ".join(map(str, standing.unproven))
        yield f"write a verification as evidence for each acceptance item; unproven: {items}", "F-15"


def _requeueing(standing: Standing, wanted: Wanted) -> Lacking:
    if standing.status == "blocked":
        if not standing.released:
            yield "approve or unblock it first", "F-13"
    elif not wanted.recovery:
        yield "a crash or an expired lease is written as a recovery", "F-23"
    elif not wanted.reason.strip():
        yield "say what happened (reason)", "F-23"


def _ending(_standing: Standing, wanted: Wanted) -> Lacking:
    if not wanted.reason.strip():
        yield f"say why it is {wanted.status} (reason)", "F-13"


GUARDS: Mapping[str, Callable[[Standing, Wanted], Lacking]] = MappingProxyType(
    {
        "queued": _requeueing,
        "active": _starting,
        "blocked": _blocking,
        "completed": _completing,
        "failed": _ending,
        "rejected": _ending,
    }
)

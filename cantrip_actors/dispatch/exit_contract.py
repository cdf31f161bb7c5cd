"""The exit contract: when `done` may end the entity of a dispatch. Pure.

    the record is                                     and `done` is
    ------------------------------------------------  -------------------------------------------------------------
    completed, blocked, failed or rejected            accepted: its status says why it stops
    anything else, refused fewer than `cap` times     refused: an error observation, and the loop continues
    anything else, refused `cap` times already        accepted as blocked, with the blocker "exit contract unmet"

Refusals are counted in the log since the last start: a restart or a fold gives no new ones, and the loop always ends
(LOOP-2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cantrip_actors.dispatch.record import Record

REFUSALS = 2
"""How often `done` is refused before it is accepted as blocked."""

UNMET = "exit contract unmet"


@dataclass(frozen=True, slots=True)
class Accept:
    """`done` ends the entity."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """`done` is refused; `text` lists the missing steps. The caller records it as `DoneRefused`."""

    text: str


@dataclass(frozen=True, slots=True)
class AcceptAsBlocked:
    """`done` ends the entity, and the supervisor blocks the dispatch with `blocker`."""

    blocker: str = UNMET


Exit: TypeAlias = Accept | Refuse | AcceptAsBlocked


def exit_of(record: Record, cap: int = REFUSALS) -> Exit:
    """Return whether a `done` is accepted now. `cap` is how often it may be refused since the last start."""
    if record.terminal or record.status == "blocked":
        return Accept()
    if record.refusals >= cap:
        return AcceptAsBlocked()
    left = cap - record.refusals - 1
    then = f"{left} more of these and it" if left else "Next time it"
    return Refuse(
        f"done is refused, {UNMET}: {'; '.join(_list_missing(record))}. Or set the status to blocked, and say by what. "
        f"{then} ends as blocked"
    )


def _list_missing(record: Record) -> list[str]:
    missing = []
    if not record.progress_since_start:
        missing.append("write progress: there is none since the start")
    if record.unproven:
        items = ", ".join(f"{item} ({record.contract.acceptance[item - 1]})" for item in record.unproven)
        missing.append(f"write a verification for each acceptance item without evidence: {items}")
    if record.open_phases:
        missing.append(f"pass each open phase, with evidence: {', '.join(record.open_phases)}")
    missing.append("set the status to completed, with the result")
    return missing

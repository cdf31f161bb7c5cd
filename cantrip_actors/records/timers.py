"""Timers: mail and schedules that wait in a loom until they are due.

A timer of an entity posts a mail when it is due, and is removed when the entity ends. A schedule belongs to no entity:
at each of its times it posts an intent to a long-lived entity, or casts a new one-shot entity (`machine/schedule.py`
says when). Both are rows of the same table.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import msgspec

from cantrip_actors.records.codec import convert_from_json, decode_value, encode_value
from cantrip_actors.records.mail import Mail
from cantrip_actors.terms.value import Value

CatchUp = Literal["one", "all", "skip"]
"""The missed times to make up for: times that passed while no runtime was open."""

Overlap = Literal["skip", "queue", "stop"]
"""The treatment of a firing while the previous one is still running."""

Target = Literal["entity", "cantrip"]
"""The kind of target that a schedule names."""


class Due(NamedTuple):
    """A position in the order in which timers are due."""

    due: float
    entity_id: str = ""
    id: str = ""


FIRST: Final = Due(-math.inf)
"""The position before all timers."""


class Rule(Value, frozen=True, kw_only=True):
    """When a schedule fires: exactly one of `at`, `every` and `cron` is set. Times are seconds since 1970.

    `every` counts seconds from `start`. `cron` is read in `zone`, a name of the IANA database.
    """

    at: float | None = None
    every: float | None = None
    cron: str | None = None
    zone: str = "UTC"
    start: float = 0.0


class Scheduled(Value, frozen=True, kw_only=True):
    """The work of a schedule, and its state."""

    to: Target
    name: str
    intent: str
    rule: Rule
    created: float
    """When it was made, in seconds since 1970."""
    catch_up: CatchUp = "one"
    overlap: Overlap = "skip"
    is_paused: bool = False
    next: float | None = None
    """The first time of the rule that was not handled yet."""
    queued: tuple[float, ...] = ()
    """Times that were due while the last firing was at work, and are next, oldest first."""
    caught_up: int = 0
    """The number of firings in a row for times that passed while no runtime was open."""
    last: str | None = None
    """The key of the last firing."""
    tenant: str = ""


class Timer(Value, frozen=True, kw_only=True):
    """One row: at `due`, in seconds since 1970, post `mail`, or fire `schedule`. With `due` None nothing happens.

    `entity_id` is the entity that it ends with, a child too; a schedule has none. `id` is unique among the timers of
    that entity, or, scoped by the tenant, among the schedules. The mail goes to `mail.entity_id`, a root entity.
    """

    id: str
    due: float | None
    entity_id: str = ""
    mail: Mail | None = None
    schedule: Scheduled | None = None

    @property
    def position(self) -> Due:
        """Its position in the order in which timers are due."""
        return Due(math.inf if self.due is None else self.due, self.entity_id, self.id)


def encode_timer(timer: Timer) -> bytes:
    """Return a timer as one line, without its newline. Raises LoomError for mail that JSON cannot express."""
    return encode_value(timer, () if timer.mail is None else (timer.mail.body,))


def decode_timer(line: bytes) -> Timer:
    """Return the timer of a line; images of its mail have no bytes. Raises LoomError if the line is not a timer."""
    return decode_value(line, _DECODER, "timer")


_DECODER = msgspec.json.Decoder(Timer, dec_hook=convert_from_json)

"""Decides when a schedule fires, and how its row changes. Pure: the time is an argument.

A rule is a time, a number of seconds, or a cron line in a zone. When clocks are set forward, a local time that does not
exist is the first moment after it. When they are set back, a local time that occurs twice is the first of the two; a
cron line whose minute or hour begins with `*` counts real hours instead, so it fires in both.

`plan_step` decides the next step of one schedule at one moment. It handles the times of the rule one after the other:

- A time that is due fires, unless the last firing is still at work: then `overlap` says whether this time is skipped,
  waits until the last firing has ended, or stops it.
- If later times have passed as well, no runtime was open for a while. `catch_up` says which of them are made up for:
  one, the first `MOST` of them one after the other, or only those of the last `GRACE` seconds.

Each firing has a key, made of the id of the schedule and of its time. So a time fires once, whichever process looks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.timers import Rule, Scheduled, Timer
from cantrip_actors.terms.arguments import check, is_number
from cantrip_actors.terms.errors import InvalidSchedule
from cantrip_actors.terms.period import find_zone
from cantrip_actors.terms.wrapper import LONGEST

GRACE: Final = 60.0
"""Seconds that a firing may be late and is not missed."""

MOST: Final = 100
"""Times that `catch_up="all"` makes up for, and times that wait for the end of the last firing."""

SHORTEST: Final = 1.0
"""The least number of seconds of `every`."""

LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""The time before which a schedule fires: a later one has no date in some zones."""


def make_rule(
    now: float, *, at: str | datetime | None, every: float | None, cron: str | None, zone: str | None
) -> Rule:
    """Return the rule of these arguments. Raises InvalidSchedule for a rule that is invalid, or never fires."""
    settings = [name for name, value in (("at", at), ("every", every), ("cron", cron)) if value is not None]
    if len(settings) != 1:
        got = " and ".join(settings) or "none of them"
        raise InvalidSchedule(f"expected exactly one of at, every and cron, got {got}")
    if every is not None:
        if zone is not None:
            raise InvalidSchedule("zone: expected with at or cron only, because `every` needs no zone; leave it out")
        expected = f"a number of seconds, at least {SHORTEST:g} and at most {LONGEST:,.0f}"
        check(is_number(every) and SHORTEST <= every <= LONGEST, "every", expected, every, InvalidSchedule)
        return Rule(every=float(every), start=now)
    if at is not None:
        return Rule(at=parse_local_time(at, zone), zone="UTC" if zone is None else zone)
    assert cron is not None
    rule = Rule(cron=_check_cron(cron), zone="UTC" if zone is None else zone)
    if find_next(rule, now) is None:
        raise InvalidSchedule(f'cron: "{cron}" never fires: no date matches it')
    return rule


def _check_cron(cron: str) -> str:
    expected = "five fields (minute, hour, day, month, weekday), as in '0 9 * * MON'"
    check(isinstance(cron, str) and len(cron.split()) == _FIELDS, "cron", expected, cron, InvalidSchedule)
    try:
        CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidSchedule(f'cron: "{cron}" is not a rule that fires: {error}') from error
    return " ".join(cron.split())


def parse_local_time(at: str | datetime, zone: str | None) -> float:
    """Return a time in seconds since 1970; without an offset it is local to `zone`, None for UTC.

    Raises InvalidSchedule for an invalid time, and for an offset together with a zone.
    """
    try:
        when = at if isinstance(at, datetime) else datetime.fromisoformat(at)
        if when.tzinfo is None:
            when = _first_moment(when, find_zone("UTC" if zone is None else zone, InvalidSchedule))
        elif zone is not None:
            raise InvalidSchedule(f"at: {at!s} has an offset of its own: leave out zone, or the offset")
        if not (due := round(when.timestamp(), 3)) < LATEST:
            raise InvalidSchedule(f"at: expected a time before the year 9999, got {at!s}")
        return due
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidSchedule):
            raise
        raise InvalidSchedule(f"at: expected a time as in '2026-12-01T09:00', got {at!r}") from error


def find_next(rule: Rule, after: float) -> float | None:
    """Return the first time of a rule after that time; None if it never fires again."""
    if rule.at is not None:
        return rule.at if rule.at > after else None
    if rule.every is not None:
        steps = max(1, math.floor((after - rule.start) / rule.every))
        while (due := round(rule.start + steps * rule.every, 3)) <= after:
            steps += 1
        return due
    assert rule.cron is not None
    return _find_next_of_cron(rule.cron, find_zone(rule.zone, InvalidSchedule), after)


def _find_next_of_cron(cron: str, zone: ZoneInfo, after: float) -> float | None:
    """Return the first time of a cron line after that time.

    CronSim gets local times without a zone: where a clock changes by parts of an hour, it loops for ever otherwise.
    """
    minute, hour = cron.split()[:2]
    counts_real_hours = minute.startswith("*") or hour.startswith("*")
    now = _wall_clock(after, zone)
    later = _wall_clock(after + _LONGEST_CHANGE.total_seconds(), zone) - _LONGEST_CHANGE  # less, if it is set back soon
    earliest: float | None = None
    for local in CronSim(cron, min(now, later)):
        moments = _real_moments(local, zone) if counts_real_hours else [_first_moment(local, zone).timestamp()]
        earliest = min(
            [*([] if earliest is None else [earliest]), *(moment for moment in moments if moment > after)], default=None
        )
        if earliest is not None and local.replace(tzinfo=zone).timestamp() >= earliest:
            break
    return earliest


def _wall_clock(time: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(time, zone).replace(tzinfo=None, fold=0)


def _real_moments(local: datetime, zone: ZoneInfo) -> list[float]:
    """Return the moments at which a clock in the zone shows a local time: none, one or two."""
    moments = {local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)}
    return [moment for moment in moments if _wall_clock(moment, zone) == local]


def _first_moment(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment of a local time; if it does not exist, the first moment after it."""
    when = local.replace(tzinfo=zone, fold=0)
    while when.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != when.replace(tzinfo=None):
        when = when.replace(second=0, microsecond=0) + timedelta(minutes=1)  # clocks were set forward over it
    return when


class ScheduleStep(NamedTuple):
    """The next step of a schedule: fire for the time `fires`, and replace its row with `becomes`.

    With `becomes` None the row is removed, because it never fires again. `stops_last`: stop the last firing first.
    `waits`: wait for the last firing.
    """

    becomes: Timer | None
    fires: float | None = None
    stops_last: bool = False
    waits: bool = False


def plan_step(row: Timer, now: float, *, is_busy: bool) -> ScheduleStep:
    """Return the next step of a schedule at that time; `is_busy` if its last firing is still running."""
    schedule = row.schedule
    assert schedule is not None, "an entity's timer posts its mail"
    due = schedule.next
    if due is None or due > now:
        if not schedule.queued or is_busy:
            return ScheduleStep(row, waits=bool(schedule.queued))
        return _fire(row, schedule, schedule.queued[0], schedule.queued[1:])
    following = find_next(schedule.rule, due)
    is_behind = following is not None and following <= now
    overlap, caught_up = schedule.overlap, 0
    if schedule.catch_up == "skip" and now - due > GRACE:
        first = find_next(schedule.rule, now - GRACE)
        return ScheduleStep(_make_row(row, replace(schedule, next=first, caught_up=0)))
    if schedule.catch_up == "all" and (is_behind or schedule.caught_up):
        overlap, caught_up = "queue", schedule.caught_up + 1 if is_behind else 0
    if is_behind and (schedule.catch_up == "one" or caught_up >= MOST):
        following, caught_up = find_next(schedule.rule, now), 0
    fired = replace(schedule, next=following, caught_up=caught_up)
    queued = (*schedule.queued, due)
    if is_busy and overlap == "queue" and schedule.to == "cantrip":
        return ScheduleStep(_make_row(row, replace(fired, queued=queued[:MOST])), waits=True)
    if is_busy and overlap == "skip":
        return ScheduleStep(_make_row(row, fired))
    return _fire(row, fired, queued[0], queued[1:], stops_last=is_busy and overlap == "stop")


def _fire(
    row: Timer, schedule: Scheduled, due: float, queued: tuple[float, ...], *, stops_last: bool = False
) -> ScheduleStep:
    fired = replace(schedule, queued=queued, last=make_firing_key(row.id, due))
    return ScheduleStep(_make_row(row, fired), due, stops_last)


def _make_row(row: Timer, schedule: Scheduled) -> Timer | None:
    due = schedule.queued[0] if schedule.queued else schedule.next
    return None if due is None else replace(row, due=due, schedule=schedule)


def make_firing_key(id: str, due: float) -> str:
    """Return the key of a firing."""
    return f"schedule:{id}@{format_instant(due)}"


_FIELDS: Final = 5
_LONGEST_CHANGE: Final = timedelta(hours=3)
"""The most seconds by which a clock is set back at once."""

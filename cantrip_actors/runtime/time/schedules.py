"""Schedules as users see them: what `Runtime.schedule` makes and `Runtime.schedules` lists."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args
from zoneinfo import ZoneInfo

from cantrip_actors.machine.schedule import find_next, make_rule
from cantrip_actors.records.tenant import scope_name, unscope_name
from cantrip_actors.records.timers import CatchUp, Overlap, Scheduled, Target, Timer
from cantrip_actors.runtime.entity.cells import make_begin
from cantrip_actors.terms.arguments import check, check_choice, check_kind, check_name, is_text
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import CantripError, InvalidIntent, InvalidSchedule, LoomError, suggest_nearest

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree


class ScheduleView:
    """A schedule according to the loom, at the time when this object was made."""

    def __init__(self, row: Timer) -> None:
        self._row = row

    @property
    def id(self) -> str:
        """The id of the schedule, unique among the schedules of its tenant."""
        return unscope_name(self._row.id)

    @property
    def to(self) -> Target:
        """The kind of `name`: "entity" or "cantrip"."""
        return self._known.to

    @property
    def name(self) -> str:
        """The name of the entity that gets the intent, or of the cantrip that is cast on it."""
        return self._known.name

    @property
    def intent(self) -> str:
        """The intent of each firing."""
        return self._known.intent

    @property
    def rule(self) -> str:
        """The rule, for people: "every 600 s", "at 2026-12-01T09:00:00+01:00", "cron 0 9 * * MON"."""
        rule = self._known.rule
        if rule.every is not None:
            return f"every {rule.every:g} s"
        return f"cron {rule.cron}" if rule.at is None else f"at {self._convert_to_local(rule.at).isoformat()}"

    @property
    def zone(self) -> str:
        """The zone of its times."""
        return self._known.rule.zone

    @property
    def catch_up(self) -> CatchUp:
        """The rule for times that pass while no runtime is open."""
        return self._known.catch_up

    @property
    def overlap(self) -> Overlap:
        """The rule for a firing while the previous one is running."""
        return self._known.overlap

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._known.is_paused

    @property
    def next_at(self) -> datetime | None:
        """When it fires next, in its zone; in the past for a firing that is due. None while it is paused."""
        due = self._row.due
        return None if due is None else self._convert_to_local(due)

    @property
    def last_key(self) -> str | None:
        """The key of the last firing: of its receipt, or of the beginning of its entity. None before the first one."""
        return self._known.last

    @property
    def _known(self) -> Scheduled:
        assert self._row.schedule is not None, "it is a schedule"
        return self._row.schedule

    def _convert_to_local(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, UTC).astimezone(ZoneInfo(self.zone))

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else f"next at {self.next_at}"
        return f'<Schedule "{self.id}" of {self.to} "{self.name}": {self.rule}, {state}>'


class Schedule(ScheduleView):
    """A schedule, as it was when this object was made, or when one of its methods returned."""

    def __init__(self, tree: Tree, row: Timer) -> None:
        super().__init__(row)
        self._tree = tree

    @property
    def is_due(self) -> bool:
        """Whether its time has come and no runtime has fired it yet; see `Runtime.schedule` for the reasons."""
        return self._row.due is not None and self._row.due <= self._tree.read_time_of_day()

    async def pause(self) -> None:
        """Do not fire until `resume`. Raises LoomError if the schedule was removed, or has fired for the last time."""
        await self._change(lambda row, known: replace(row, due=None, schedule=replace(known, is_paused=True)))

    async def resume(self) -> None:
        """Fire again, from the next time of the rule on; the times of the pause are skipped.

        Raises InvalidSchedule if no time is left, LoomError as `pause`.
        """
        await self._change(partial(_resume, self._tree.read_time_of_day()))

    async def remove(self) -> None:
        """Remove the schedule; does nothing if it is gone. A running firing continues."""
        self._tree.check_open()
        while (row := await self._tree.scheduler.find(self._row.id)) is not None:
            if await self._tree.scheduler.replace(row, None):
                return

    async def _change(self, change: Callable[[Timer, Scheduled], Timer]) -> None:
        self._tree.check_open()
        while True:
            row = await self._tree.scheduler.find(self._row.id)
            if row is None or row.schedule is None:
                raise LoomError(
                    f'schedule "{self.id}" is not in the loom any more: it was removed, or has fired for the last time'
                )
            changed = change(row, row.schedule)
            if changed == row or await self._tree.scheduler.replace(row, changed):
                self._row = changed
                return


def _resume(now: float, row: Timer, known: Scheduled) -> Timer:
    if not known.is_paused:
        return row
    due = find_next(known.rule, now)
    if due is None:
        raise InvalidSchedule(f'schedule "{row.id}": its time passed while it was paused; remove it')
    return replace(row, due=due, schedule=replace(known, is_paused=False, next=due, queued=(), caught_up=0))


def list_schedules(tree: Tree, tenant: str | None) -> list[Schedule]:
    """Return the schedules of a tenant, or of all, by their ids."""
    rows = tree.store.timers()
    return [Schedule(tree, row) for row in rows if row.schedule and tenant in (None, row.schedule.tenant)]


async def add_schedule(
    tree: Tree,
    target: Cantrip | str,
    intent: str,
    *,
    id: str | None,
    catch_up: CatchUp,
    overlap: Overlap,
    to: Target | None,
    tenant: str,
    **rule: Any,
) -> Schedule:
    """Make a schedule, or change the one with that id. Raises InvalidSchedule, InvalidIntent; see `Runtime`."""
    tree.check_accepting()
    for option, value, known in (("catch_up", catch_up, CatchUp), ("overlap", overlap, Overlap)):
        check_choice(option, value, get_args(known), InvalidSchedule)
    check_kind("schedule", intent, str, "an intent that is a text", InvalidIntent)
    make_begin(intent, None)
    name, kind = await _resolve(tree, target, to, tenant)
    now = tree.read_time_of_day()
    times = make_rule(now, **rule)
    key = scope_name(tenant, tree.make_moment().fresh if id is None else check_name("id", id, InvalidSchedule))
    schedule = Scheduled(
        to=kind,
        name=name,
        intent=intent,
        rule=times,
        created=now,
        catch_up=catch_up,
        overlap=overlap,
        tenant=tenant,
    )
    while True:
        old = await tree.scheduler.find(key)
        row = _plan(old, tree.guard.redact_timer(Timer(id=key, due=None, schedule=schedule)), now)
        if row == old or await tree.scheduler.replace(old, row):
            return Schedule(tree, row)


def _plan(old: Timer | None, new: Timer, now: float) -> Timer:
    """Return the row of a new schedule, or of one in place of `old`. Raises InvalidSchedule if it never fires.

    With the same rule it keeps its times, so a firing that is due or waits happens with the new content.
    """
    schedule, before = new.schedule, None if old is None else old.schedule
    assert schedule is not None, "it is a schedule"
    if old is not None and before is not None:
        if replace(before.rule, start=0.0) == replace(schedule.rule, start=0.0):
            changed = {name: getattr(schedule, name) for name in _CONTENT}
            return replace(old, schedule=replace(before, **changed))
        schedule = replace(schedule, is_paused=before.is_paused, last=before.last)
    due = find_next(schedule.rule, now)
    if due is None:
        at = datetime.fromtimestamp(schedule.rule.at or now, UTC).isoformat()
        raise InvalidSchedule(f"at: expected a time to come, got {at}, which has passed")
    return replace(new, due=None if schedule.is_paused else due, schedule=replace(schedule, next=due))


async def _resolve(tree: Tree, target: Cantrip | str, to: Target | None, tenant: str) -> tuple[str, Target]:
    """Return the name that a schedule stores, and whether it names an entity or a cantrip."""
    check_choice("to", to, (*get_args(Target), None), InvalidSchedule)
    if isinstance(target, Cantrip):
        if target.name is None or to == "entity":
            raise InvalidSchedule(
                "a schedule keeps the name of its cantrip: expected Cantrip(…, name=…), got a cantrip without a name"
                if target.name is None
                else "to: a cantrip was given, and 'entity' was expected"
            )
        tree.cantrips.offer(target)
        tree.cantrips.add(target)
        tree.scheduler.wake()  # a firing may have waited for it
        return target.name, "cantrip"
    expected = "a cantrip, or the name of an entity or a cantrip"
    check(is_text(target), "schedule", expected, target, InvalidSchedule)
    if to is not None:
        return target, to
    with suppress(CantripError):
        await tree.in_store(partial(tree.inboxes.resolve_address, target, tenant))
        return target, "entity"
    offered = tree.cantrips
    if offered.find_offered(target) is None:
        raise InvalidSchedule(
            f'no long-lived entity and no cantrip of this runtime is called "{target}"; cantrips: '
            f"{suggest_nearest(target, offered.names)}. Say to='entity' or to='cantrip' for one that is made later"
        )
    return target, "cantrip"


_CONTENT: Final = ("to", "name", "intent", "catch_up", "overlap")
"""The part of a schedule that its caller sets, besides the rule."""

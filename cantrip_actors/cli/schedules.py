"""The commands `cantrip schedule`: they write and read the rows of schedules.

A firing happens while a runtime is open on the loom, in any process: a service, or a command that runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    LOOM,
    Json,
    Url,
    examples,
    open_store,
    print_rows,
    read_duration,
    report_errors,
    run_quietly,
)
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.redact.urls import render_url

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Runtime, Schedule
    from cantrip_actors.runtime.time.schedules import ScheduleView

app = typer.Typer(
    name="schedule",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Give entities work at times: once, repeatedly, or by cron.",
)

ScheduleIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a schedule, as `cantrip schedule ls` shows it.")
]


@app.command(
    epilog=examples(
        'cantrip schedule add notes "Summarise the week." --cron "0 9 * * MON" --zone Europe/Oslo --id weekly',
        'cantrip schedule add review "Look at the queue." --cantrip --every 600',
        'cantrip schedule add notes "Call the bank." --at 2027-01-04T09:00 --zone Europe/Oslo',
    )
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a long-lived entity, or of a cantrip.")],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="The intent of each firing.")],
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Once: a time, ISO 8601.")] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Again and again: 12h, 30m, or a number of seconds.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="LINE", help="Five fields, as in '0 9 * * MON'.")
    ] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="The zone of --at and --cron; left out: UTC.")] = None,
    cantrip: Annotated[
        bool, typer.Option("--cantrip", help="NAME is a cantrip's: each firing casts a new one-shot entity.")
    ] = False,
    id: Annotated[str | None, typer.Option("--id", help="Its id; one that is there is changed.")] = None,
    catch_up: Annotated[
        str, typer.Option("--catch-up", help="Times that passed while no runtime was open: one, all or skip.")
    ] = "one",
    overlap: Annotated[
        str, typer.Option("--overlap", help="While the last firing is at work: skip, queue or stop.")
    ] = "skip",
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Make a schedule, or change the one with that id, and print its id.

    A firing happens while a runtime is open on the loom; for a cantrip, one that offers a cantrip of that name.
    """
    seconds = None if every is None else read_duration(every, "--every")
    options: Any = {"at": at, "every": seconds, "cron": cron, "zone": zone, "catch_up": catch_up, "overlap": overlap}

    async def work(runtime: Runtime) -> Schedule:
        from cantrip_actors.cli.errors import UnknownId

        loom = runtime.loom
        if not cantrip and not await runtime.read(lambda: loom.named(name) or loom.has_begun(name)):
            raise UnknownId(
                f'no long-lived entity is called "{name}": `cantrip entities` lists their names, and --cantrip makes a '
                "schedule for the cantrip of that name"
            )
        return await runtime.schedule(name, intent, id=id, to="cantrip" if cantrip else "entity", **options)

    _print(run_quietly(loom, work, as_json=as_json, makes_loom=True), loom, as_json=as_json)


@app.command(epilog=examples("cantrip schedule ls", "cantrip schedule ls --json"))
def ls(loom: Url = LOOM, as_json: Json = False) -> None:
    """List the schedules: their ids, their actions, and their next times. A firing that is due and waits is marked."""
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors.runtime.time.schedules import ScheduleView

        with open_store(loom, read_only=True, seal_key=seal_key() or False) as store:
            rows = [_build_row(ScheduleView(timer)) for timer in store.timers()]
    print_rows(rows, _render_table(rows), f"{render_url(loom)} has no schedule: cantrip schedule add", as_json=as_json)


@app.command(epilog=examples("cantrip schedule pause weekly"))
def pause(id: ScheduleIdArgument, loom: Url = LOOM, as_json: Json = False) -> None:
    """Pause a schedule: it does not fire until it is resumed."""
    _change(id, lambda schedule: schedule.pause(), loom, as_json=as_json)


@app.command(epilog=examples("cantrip schedule resume weekly"))
def resume(id: ScheduleIdArgument, loom: Url = LOOM, as_json: Json = False) -> None:
    """Resume a paused schedule from its next time on."""
    _change(id, lambda schedule: schedule.resume(), loom, as_json=as_json)


@app.command(epilog=examples("cantrip schedule rm weekly"))
def rm(id: ScheduleIdArgument, loom: Url = LOOM, as_json: Json = False) -> None:
    """Remove a schedule. A running firing continues."""
    _change(id, lambda schedule: schedule.remove(), loom, as_json=as_json, verb="removed")


def _change(
    id: str, change: Callable[[Schedule], Awaitable[None]], loom: str, *, as_json: bool, verb: str | None = None
) -> None:
    async def work(runtime: Runtime) -> Schedule:
        from cantrip_actors.cli.errors import UnknownId
        from cantrip_actors.terms.errors import suggest_nearest

        by_id = {schedule.id: schedule for schedule in runtime.schedules()}
        if id not in by_id:
            raise UnknownId(f'no schedule "{id}": {suggest_nearest(id, by_id)}')
        await change(by_id[id])
        return by_id[id]

    _print(run_quietly(loom, work, as_json=as_json), loom, as_json=as_json, verb=verb)


def _print(schedule: Schedule, loom: str, *, as_json: bool, verb: str | None = None) -> None:
    row = _build_row(schedule)
    state = verb or row["state"]
    output.show_receipt({**row, "state": state}, loom, [f"{row['id']} {state}"], as_json=as_json)


def _build_row(schedule: ScheduleView) -> dict[str, Any]:
    next_at = schedule.next_at
    is_due = next_at is not None and next_at <= datetime.now(UTC)
    return {
        "id": schedule.id,
        "state": "paused" if schedule.is_paused else "due" if is_due else "waiting",
        "to": schedule.to,
        "name": schedule.name,
        "intent": schedule.intent,
        "rule": schedule.rule,
        "zone": schedule.zone,
        "next_at": None if next_at is None else next_at.isoformat(timespec="seconds"),
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
    }


def _render_table(rows: list[dict[str, Any]]) -> Iterator[Text]:
    """Yield schedules, in columns."""
    from rich.text import Text

    from cantrip_actors.cli.output import one_line

    for at, row in enumerate(rows):
        if at == 0:
            yield Text(f"{'ID':<38}{'STATE':<9}{'NEXT':<27}{'FOR':<26}RULE", "dim")
        style = {"paused": "dim", "due": "yellow"}.get(row["state"], "green")
        line = Text(end="").append(f"{one_line(row['id'], 37):<38}", "bold").append(f"{row['state']:<9}", style)
        line.append(f"{row['next_at'] or '':<27}{one_line(row['to'] + ' ' + row['name'], 25):<26}")
        line.append(f"{row['rule']}: {one_line(row['intent'], 40)}")
        yield line

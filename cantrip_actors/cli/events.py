"""The command `cantrip events`: the recorded events of a loom, from any position, as lines of JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from cantrip_actors.cli.command import LOOM, Url, check_followable, examples, open_for_reading
from cantrip_actors.cli.following import repeat_look
from cantrip_actors.cli.logs import secrets_of_environment
from cantrip_actors.cli.output import as_json, print_lines

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "events", epilog=examples("cantrip events", "cantrip events --follow --after 105.2 --loom postgresql://host/agents")
)
def events(
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="The id of the last event that you have; 0 is the beginning."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events, until ctrl-C.")] = False,
    loom: Url = LOOM,
) -> None:
    """Print the recorded events of all entities as lines of JSON.

    Each has an id that is its position in the loom: --after continues there, in any process. Left out, it prints all
    events; with --follow, those from now on. Secrets are redacted.
    """
    with open_for_reading(loom, json=False) as (opened, _):
        from cantrip_actors.loom.reading.redaction import redacted_loom
        from cantrip_actors.redact.redactor import Redactor
        from cantrip_actors.runtime.events.loom_log import LoomLog
        from cantrip_actors.stream.events import build_event_fields
        from cantrip_actors.stream.reading import END_OF_RECORD, EventId

        if follow:
            check_followable(loom)
        begin = EventId() if after is None else EventId.parse(after.partition(":")[0])
        if begin is None:
            raise typer.BadParameter(f"expected the id of an event, or 0, got {after!r}", param_hint="--after")
        if follow and after is None:
            begin = EventId(opened.last_number(), END_OF_RECORD)
        log = LoomLog(redacted_loom(opened, Redactor(secrets_of_environment())), begin)
        number = log.begin

        def look() -> None:
            nonlocal number
            has_more = True
            while has_more:
                read, number, has_more = log.read(number)
                print_lines([as_json({**build_event_fields(entry.event), "id": str(entry.position)}) for entry in read])

        if follow:
            repeat_look(look)
        look()

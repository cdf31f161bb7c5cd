"""The command `cantrip system`: the supervision tree of a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli.command import LOOM, Json, examples, print_rows, report_errors
from cantrip_actors.cli.crashes import ask_service
from cantrip_actors.cli.terminal import printable

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@app.command("system", epilog=examples("cantrip system", "cantrip system --url http://127.0.0.1:8000 --json"))
def system(
    url: Annotated[str, typer.Option("--url", metavar="URL", help="A service that runs.")] = "http://127.0.0.1:8000",
    token: Annotated[str, typer.Option("--token", envvar="CANTRIP_TOKEN", help="Its token: scope observe.")] = "",
    as_json: Json = False,
) -> None:
    """Print the supervision tree of a service: each actor with its state, mailbox, restarts and last exit."""
    with report_errors(json=as_json, loom=LOOM):
        rows = ask_service(url, token, "system")["items"]
        print_rows(rows, map(_line, rows), "there are none", as_json=as_json)


def _line(row: dict[str, Any]) -> Text:
    from rich.text import Text

    *above, name = row["path"].split("/")
    name = "crystal" if name.isdigit() else printable(name)
    line = Text(end="").append("  " * len(above)).append(name, "bold")
    line.append(f"  {row['kind'] or ''}", "dim")
    if row["state"] != "up":
        line.append(f"  {row['state']}", "yellow")
    if row["mailbox"]:
        line.append(f"  mailbox {row['mailbox']}")
    if row["in_hand"]:
        line.append(f"  {row['in_hand']} in hand")
    if row["restarts"]:
        line.append(f"  {row['restarts']} restart{'' if row['restarts'] == 1 else 's'}", "yellow")
    if row["exit"]:
        line.append(f"  {printable(row['exit'])}", "red")
    return line

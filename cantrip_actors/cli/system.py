"""The command `cantrip system`: the state of a running service, and its supervision tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import LOOM, Json, examples, print_styled, report_errors
from cantrip_actors.cli.service import ServiceClient
from cantrip_actors.cli.terminal import printable

if TYPE_CHECKING:
    from rich.text import Text

app = typer.Typer(rich_markup_mode=None)


@app.command("system", epilog=examples("cantrip system", "cantrip system --url http://127.0.0.1:8000 --json"))
def system(
    url: Annotated[str, typer.Option("--url", metavar="URL", help="A service that runs.")] = "http://127.0.0.1:8000",
    token: Annotated[str, typer.Option("--token", envvar="CANTRIP_TOKEN", help="Its token: scope observe.")] = "",
    as_json: Json = False,
) -> None:
    """Print the supervision tree of a service.

    Each actor has its state, mailbox, restarts and last exit. Below the tree: the loom, crystals, open requests,
    readers, and the counters that have counted anything.
    """
    with report_errors(json=as_json, loom=LOOM), closing(ServiceClient(url, token)) as service:
        state = service.ask("GET", "system")
        if as_json:
            output.print_json(state)
        else:
            print_styled(chain(map(_render_line, state["items"]), map(_render_fact, _list_facts(state))))


def _list_facts(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the state of the service besides its actors: a heading and a text each."""
    loom = state["loom"]
    size = "" if loom["size"] is None else f"  {loom['size']:,} bytes"
    yield "loom", f"{loom['url']}  durability {loom['durability']}  backlog {loom['backlog']}{size}"
    for item in state["crystals"]:
        paused = f"  paused {item['paused_for']:.0f} s" if item["paused_for"] else ""
        yield (
            "crystal",
            f"{item['name']}  {item['running']} running  {item['waiting']} waiting{paused}  {item['breaker']}",
        )
    for item in state["queues"]:
        bounds = "".join(f"  {what} {item[what]}" for what in ("max_running", "per_node") if item[what] is not None)
        yield "queue", f"{item['name']}  {item['running']} running  {item['waiting']} waiting{bounds}"
    yield "requests", f"{state['requests']} open"
    yield "readers", "  ".join(f"{name} {count}" for name, count in state["streams"].items())
    for name, series in state["counters"].items():
        for item in series:
            if item["value"]:
                labels = "  ".join(f"{label}={value}" for label, value in item["labels"].items())
                yield "counter", f"{name} {item['value']:g}  {labels}".rstrip()


def _render_fact(fact: tuple[str, str]) -> Text:
    from rich.text import Text

    heading, text = fact
    return Text(end="").append(f"{heading:<9}", "dim").append(printable(text))


def _render_line(row: dict[str, Any]) -> Text:
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

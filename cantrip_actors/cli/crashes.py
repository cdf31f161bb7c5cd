"""The command `cantrip crashes`: crash reports of a running service, or in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import LOOM, Json, examples, print_rows, report_errors
from cantrip_actors.cli.service import ServiceClient
from cantrip_actors.redact.visible import escape, frame

if TYPE_CHECKING:
    from rich.text import Text

_WIDEST: Final = 1_000
"""Columns of a line of a traceback; longer ones are wrapped."""

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "crashes",
    epilog=examples("cantrip crashes --crash-dir crashes", "cantrip crashes 01987f3a --url http://127.0.0.1:8000"),
)
def crashes(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="A report, by the beginning of its id.")] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="A service that runs.")] = None,
    token: Annotated[str, typer.Option("--token", envvar="CANTRIP_TOKEN", help="Its token: scope observe.")] = "",
    crash_dir: Annotated[Path | None, typer.Option("--crash-dir", metavar="DIR", help="A folder of reports.")] = None,
    as_json: Json = False,
) -> None:
    """List crash reports, or print one.

    The newest is first. With an ID, print that report whole.
    """
    with report_errors(json=as_json, loom=LOOM):
        if (url is None) == (crash_dir is None):
            raise typer.BadParameter("expected one of --url and --crash-dir")
        reports = _read_folder(crash_dir) if crash_dir is not None else _ask_service(str(url), token)
        if id is None:
            print_rows(reports, map(_render_line, reports), "there are none", as_json=as_json)
            return
        chosen = [report for report in reports if report["id"].startswith(id) or report["id"].endswith(id)]
        if len(chosen) != 1:
            raise typer.BadParameter(f"{len(chosen)} crash reports have this id", param_hint="ID")
        output.show(chosen[0], _report_lines(chosen[0]), as_json=as_json)


def _read_folder(folder: Path) -> list[dict[str, Any]]:
    from cantrip_actors.observe.crashes import read_crashes

    try:
        return list(read_crashes(folder))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"cannot read {folder}: {error}", param_hint="--crash-dir") from error


def _ask_service(url: str, token: str) -> list[dict[str, Any]]:
    with closing(ServiceClient(url, token)) as service:
        reports: list[dict[str, Any]] = service.ask("GET", "crashes")["items"]
        return reports


def _render_line(report: dict[str, Any]) -> Text:
    from rich.text import Text

    line = Text(end="").append(f"{report['id'][-8:]} ", "bold").append(f"{report['at']} ", "dim")
    line.append(escape(report["path"])).append(f"  {escape(report['reason'])}", "red")
    return line


def _report_lines(report: dict[str, Any]) -> Iterator[str]:
    long = ("events", "traceback", "frames", "leaves", "versions")
    for name, value in report.items():
        if name not in long:
            yield f"{name:<11} {escape(str(value))}"
    yield f"{'versions':<11} " + ", ".join(f"{name} {escape(str(value))}" for name, value in report["versions"].items())
    yield "events"
    yield from (f"  {escape(str(event))}" for event in report["events"])
    if report.get("traceback"):
        yield from frame(report["traceback"], _WIDEST)

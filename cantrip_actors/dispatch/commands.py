"""The commands of `cantrip dispatch`: create, run, show, approve, reject and unblock dispatches.

They write to the log, under its rules, in the capacity of a human; no command edits a contract, an entry or a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    FAILED,
    LOOM,
    TRUNCATED,
    Backend,
    By,
    Json,
    Loop,
    Quiet,
    UnattendedMode,
    Url,
    examples,
    print_rows,
    report_errors,
    run,
    terminal_width,
)
from cantrip_actors.cli.decision_author import author, door
from cantrip_actors.cli.output import one_line
from cantrip_actors.cli.sealed import HeadFileOption, KeyFileOption, OutputFile, read_heads, seal_key, write_heads
from cantrip_actors.dispatch.requests import FOLDER

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Runtime
    from cantrip_actors.dispatch import Dispatches, Record
    from cantrip_actors.dispatch.record import Decision

STYLES = {"active": "cyan", "blocked": "yellow", "completed": "green", "failed": "red", "rejected": "red"}

app = typer.Typer(
    name="dispatch",
    help="Dispatch work under a frozen contract, and follow it.\n\n"
    "An ID is a dispatch's; any part of it that no other has is enough.\n\n"
    "\b\nExamples:\n"
    "  cantrip dispatch new --template > contract.md\n"
    "  cantrip dispatch new contract.md\n"
    "  cantrip dispatch ls",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DispatchIdArgument = Annotated[str, typer.Argument(metavar="ID", help="A dispatch; a part of its id is enough.")]
Folder = Annotated[
    Path, typer.Option("--dir", metavar="DIR", envvar="CANTRIP_DISPATCHES", help="Where the dispatches' logs are.")
]


@app.command(
    "new",
    epilog=examples("cantrip dispatch new --template > contract.md", "cantrip dispatch new contract.md --by ann"),
)
def new(
    contract: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A contract as a .md, .yaml, .yml or .json file.")
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a contract to fill in, as Markdown.")] = False,
    by: By = None,
    folder: Folder = FOLDER,
    as_json: Json = False,
) -> None:
    """Dispatch a contract: from then on it is frozen. Every mistake in it is shown at once, with its line."""
    if template == (contract is not None):
        raise typer.BadParameter("expected a contract's FILE, or --template for one to fill in")
    with _open_dispatches(folder, json=as_json) as logs:
        from cantrip_actors.dispatch import contract_template, load_contract

        if contract is None:
            output.print_lines([contract_template().rstrip("\n")])
            return
        record = logs.create(load_contract(contract), author=author(by), by="human", door=door())
        _show_status(record, as_json=as_json)


@app.command("ls", epilog=examples("cantrip dispatch ls", "cantrip dispatch ls --status blocked --json"))
def ls(
    status: Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Only those that stand so.")] = None,
    folder: Folder = FOLDER,
    as_json: Json = False,
) -> None:
    """List the dispatches, and the reason why each waits."""
    with _open_dispatches(folder, json=as_json) as logs:
        from cantrip_actors.dispatch.parse import status_of
        from cantrip_actors.dispatch.status import STATUSES
        from cantrip_actors.dispatch.summary import summary_of

        wanted = None if status is None else status_of(status)
        if status is not None and wanted is None:
            raise typer.BadParameter(f"expected one of {', '.join(STATUSES)}, got {status}", param_hint="--status")
        faults = logs.verify()
        records = (logs.read(dispatch_id) for dispatch_id in logs.ids() if dispatch_id not in faults)
        rows = [summary_of(record) for record in records if wanted in (None, record.status)]
        summaries = (row.model_dump() for row in rows)
        nothing = "" if faults else f"no dispatches in {folder}"
        print_rows(summaries, _render_table(rows, terminal_width()), nothing, as_json=as_json)
        for fault in faults.values():
            output.print_note(f"error: {fault}")
        if faults:
            raise typer.Exit(FAILED)


@app.command("show", epilog=examples("cantrip dispatch show mend", "cantrip dispatch show mend --markdown > mend.md"))
def show(
    id: DispatchIdArgument,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole record as Markdown: a view, which nothing reads back.")
    ] = False,
    folder: Folder = FOLDER,
    as_json: Json = False,
) -> None:
    """Show a dispatch: its contract, its status, what was learned, the newest progress."""
    with _open_dispatches(folder, json=as_json) as logs:
        from cantrip_actors.dispatch import markdown as page_of
        from cantrip_actors.dispatch.rehydrate import rehydration
        from cantrip_actors.dispatch.summary import json_of

        record = logs.read(_find(logs, id))
        if as_json:
            output.print_json(json_of(record).model_dump())
        else:
            output.print_lines([page_of(record).rstrip("\n") if markdown else rehydration(record)])


@app.command("run", epilog=examples("cantrip dispatch run mend worker.yaml"))
def run_(
    id: DispatchIdArgument,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The worker's cantrip, a file or module:attribute.")],
    loom: Url = LOOM,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for approvals and for blockers to be removed.")] = False,
    effectful: Annotated[
        list[str] | None, typer.Option("--effectful", metavar="GATE", help="A gate after which progress is due.")
    ] = None,
    folder: Folder = FOLDER,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Run or resume a dispatch with a worker, until it has ended, is blocked or waits for a human.

    With --wait the person at the terminal is asked what the dispatch and its worker wait for. The exit code is 0 only
    for one that is completed; 3 where it is blocked or waits.
    """
    with _open_dispatches(folder, json=as_json) as logs:
        from cantrip_actors.cli.cantrip_source import load_cantrip
        from cantrip_actors.dispatch import Dispatcher

        dispatch_id = _find(logs, id)
        cantrip = load_cantrip(recipe)

        async def work(runtime: Runtime) -> Record:
            return await Dispatcher(runtime, logs, effectful=effectful or ()).run(dispatch_id, cantrip, wait=wait)

        asks = UnattendedMode.wait if wait else None
        request_id = f"dispatch:{dispatch_id}"
        record = run(loom, work, backend=backend, quiet=quiet or as_json, unattended=asks, request_id=request_id)
        _show_status(record, as_json=as_json)
        raise typer.Exit({"completed": 0, "failed": FAILED, "rejected": FAILED}.get(record.status, TRUNCATED))


@app.command("approve", epilog=examples("cantrip dispatch approve mend --by ann"))
def approve(
    id: DispatchIdArgument,
    by: By = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="The text of the decision.")] = "",
    folder: Folder = FOLDER,
    as_json: Json = False,
) -> None:
    """Approve what waits for it: a dispatch before it starts, a phase, or what is blocked, which is queued again."""
    with _open_dispatches(folder, json=as_json) as logs:
        _decide(logs, id, by, "approve", note, as_json=as_json)


@app.command("reject", epilog=examples('cantrip dispatch reject mend --reason "another one does it"'))
def reject(
    id: DispatchIdArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")],
    by: By = None,
    folder: Folder = FOLDER,
    as_json: Json = False,
) -> None:
    """Reject a queued or blocked dispatch for good."""
    with _open_dispatches(folder, json=as_json) as logs:
        _decide(logs, id, by, "reject", reason, as_json=as_json)


@app.command("unblock", epilog=examples('cantrip dispatch unblock mend --note "the key is in the vault"'))
def unblock(
    id: DispatchIdArgument,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="How the blocker was removed.")],
    by: By = None,
    folder: Folder = FOLDER,
    as_json: Json = False,
) -> None:
    """Say what removes a blocker: the dispatch is queued again."""
    with _open_dispatches(folder, json=as_json) as logs:
        _decide(logs, id, by, "unblock", note, as_json=as_json)


@app.command("log", epilog=examples("cantrip dispatch log mend", "cantrip dispatch log mend --json"))
def log(id: DispatchIdArgument, folder: Folder = FOLDER, as_json: Json = False) -> None:
    """Show every entry of a dispatch, oldest first, after verifying each line."""
    with _open_dispatches(folder, json=as_json) as logs:
        from cantrip_actors.dispatch.summary import build_entries_fields

        record = logs.read(_find(logs, id))
        print_rows(build_entries_fields(record), _log_lines(record, terminal_width()), as_json=as_json)


@app.command("verify", epilog=examples("cantrip dispatch verify", "cantrip dispatch verify --head dispatches.json"))
def verify(
    folder: Folder = FOLDER, key: KeyFileOption = None, head: HeadFileOption = None, as_json: Json = False
) -> None:
    """Check every entry of every dispatch: was any edited, moved, taken out, or forged?

    With heads of an earlier time this also finds logs that were replaced by older copies of themselves.
    """
    with _open_dispatches(folder, json=as_json, key=key) as logs:
        faults = logs.verify(None if head is None else read_heads(head))
        ids = logs.ids()
    state = "every entry is as it was written"
    if faults:
        state = "1 is not to be trusted" if len(faults) == 1 else f"{len(faults):,} are not to be trusted"
    lines = [f"{folder}: {len(ids):,} dispatches: {state}", *(f"{name}: {what}" for name, what in faults.items())]
    output.show({"ok": not faults, "dispatches": len(ids), "faults": faults}, lines, as_json=as_json)
    if faults:
        raise typer.Exit(FAILED)


@app.command("head", epilog=examples("cantrip dispatch head --output dispatches.json"))
def head_(folder: Folder = FOLDER, output_file: OutputFile = None, key: KeyFileOption = None) -> None:
    """Export the heads: the ends of all logs at this time, as JSON, for a later `verify --head`."""
    with _open_dispatches(folder, json=False, key=key) as logs:
        write_heads(logs.heads(), output_file)


# ------------------------------------------------------------------------------------------------------ what they share


@contextmanager
def _open_dispatches(folder: Path, *, json: bool, key: Path | None = None) -> Iterator[Dispatches]:
    with report_errors(json=json, loom=str(folder)):
        from cantrip_actors.dispatch import Dispatches

        yield Dispatches(folder, seal_key=seal_key() if key is None else key)


def _find(logs: Dispatches, typed: str) -> str:
    """Return the id of a dispatch by its whole id, or a unique part of it."""
    from cantrip_actors.dispatch import UnknownDispatch

    ids = logs.ids()
    fits = [id for id in ids if typed and typed.lower() in id]
    if typed in ids:
        return typed
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UnknownDispatch(f'"{typed}" could be any of {", ".join(fits[:8])}: give more of it')
    what = f"{len(ids):,} dispatches" if ids else "nothing"
    raise UnknownDispatch(
        f'no dispatch is called "{typed}": {logs.folder} holds {what}; `cantrip dispatch ls` has them'
    )


def _decide(logs: Dispatches, typed: str, by: str | None, decision: Decision, text: str, *, as_json: bool) -> None:
    """Write a human's decision about a dispatch, and print its status."""
    from cantrip_actors.dispatch.record import make_decision

    events, dispatch_id = make_decision(decision, text), _find(logs, typed)
    _show_status(logs.append(dispatch_id, events, by="human", author=author(by), door=door()), as_json=as_json)


def _show_status(record: Record, *, as_json: bool) -> None:
    from cantrip_actors.dispatch.summary import summary_of

    row = summary_of(record)
    waits = f"; waits for {row.waits_for}" if row.waits_for else ""
    output.show(row.model_dump(), [f"{row.id}: {row.status}{waits}"], as_json=as_json)


def _render_table(rows: list[Any], width: int) -> Iterator[Text]:
    from rich.text import Text

    longest = max(len(name) for name in ("DISPATCH", *(row.id for row in rows))) + 2
    for at, row in enumerate(rows):
        if at == 0:
            yield Text(f"{'DISPATCH':<{longest}}{'STATUS':<11}{'PRIORITY':<10}{'MET':>5}  TITLE", "dim")
        line = (
            Text(end="").append(f"{row.id:<{longest}}", "bold").append(f"{row.status:<11}", STYLES.get(row.status, ""))
        )
        line.append(f"{one_line(row.priority, 9):<10}{f'{row.proven}/{row.acceptance}':>5}  ")
        waits = f" (waits for {row.waits_for})" if row.waits_for else ""
        line.append(one_line(row.title + waits, max(60, width - longest - 28)))
        yield line


def _log_lines(record: Record, width: int) -> Iterator[Text]:
    from rich.text import Text

    from cantrip_actors.dispatch.view import name_kind, render_words

    for entry in record.entries:
        line = (
            Text(end="").append(f"{entry.seq:>4} ", "dim").append(f"{entry.ts} ").append(name_kind(entry.event), "bold")
        )
        line.append(f" by {entry.by} {one_line(entry.author, 80)}", "dim")
        if words := "; ".join(render_words(entry.event)):
            line.append(f": {one_line(words, max(40, width - 70))}")
        yield line

"""The commands for requests: list them, decide them, and deliver the results of deferred calls.

They need no recipe: a decision is mail, which the process that offers the entity's cantrip takes.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    LOOM,
    By,
    Json,
    Url,
    check_followable,
    examples,
    open_for_reading,
    print_rows,
    print_styled,
    run_quietly,
    terminal_width,
)
from cantrip_actors.cli.decision_author import author, door
from cantrip_actors.cli.following import repeat_look
from cantrip_actors.cli.listing import list_newest
from cantrip_actors.cli.output import one_line, render_loom_option, short
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.records.instant import format_instant
from cantrip_actors.redact.urls import render_url
from cantrip_actors.redact.visible import NARROWEST, count_columns, shorten, show_call
from cantrip_actors.terms.exact_json import explain_arguments, read_arguments

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Loom, Request, RequestSource, Runtime

app = typer.Typer(rich_markup_mode=None)

RequestIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A request; any part of its id that no other open one has.")
]
SourcesFolder = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", envvar="CANTRIP_DISPATCHES", help="Where the logs of dispatches are, which wait, too."
    ),
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; the entity reads the note of a denial.")]
RememberOption = Annotated[
    bool, typer.Option("--remember", help="Decide so about later calls of that gate by that entity, too.")
]


@app.command(
    epilog=examples(
        "cantrip requests", "cantrip requests 5f3a9c1e", "cantrip requests --follow", "cantrip requests --json"
    )
)
def requests(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show all of this request; any part of its id will do.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with each new one, until ctrl-C.")] = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Without those that address another person.")
    ] = None,
    loom: Url = LOOM,
    folder: SourcesFolder = None,
    as_json: Json = False,
) -> None:
    """List the calls and questions that wait for an answer.

    With the id of one, show it whole.

    With --json the list is one JSON value; with --follow, too, each request is a line of JSON.
    """
    with open_for_reading(loom, json=as_json) as (opened, _):
        source = _OpenRequests(opened, _open_sources(folder), None if id is not None else to)
        if id is not None:
            request = _get_open(source.list_all(), id)
            output.show(_build_row(request), request.render(columns=terminal_width()), as_json=as_json)
        elif follow:
            check_followable(loom)
            repeat_look(lambda: _print_each(source.list_new(), as_json=as_json))
        else:
            open_requests = source.list_all()
            lines = _render_table(open_requests, terminal_width())
            or_else = f"nothing in {render_url(loom)} waits for a person"
            print_rows(map(_build_row, open_requests), lines, or_else, as_json=as_json)


class _OpenRequests:
    """Reads the open requests of a loom and of packages, without secrets, the oldest first."""

    def __init__(self, loom: Loom, sources: Sequence[RequestSource], to: str | None) -> None:
        self._loom = loom
        self._sources = sources
        self._to = to
        self._number: int | None = None
        """The number of the last record that `list_new` has read."""
        self._shown: dict[str, tuple[str, str]] = {}
        """By entity, the id and the time of the open request that `list_new` has returned."""
        self._shown_elsewhere: set[tuple[str, str]] = set()
        """The same of the requests of packages."""

    def list_all(self) -> list[Request]:
        """Return all open requests."""
        return self._prepare([*self._read(self._list_waiting()).values(), *self._read_sources()])

    def list_new(self) -> list[Request]:
        """Return the open requests that no earlier call has returned; it reads what was recorded since that call."""
        begins, number = self._number is None, self._number
        if number is None:  # records of the last minute may appear after later ones
            number = self._loom.find_number(format_instant(time.time() - 60))
        changed = self._list_waiting() if begins else []
        while (page := self._loom.read_since(number, settled=True))[1] != number:
            records, number = page
            changed += (record.entity_id for _, record in records)
        requests, elsewhere = self._read(changed), self._read_sources()
        new = [request for entity, request in requests.items() if self._shown.get(entity) != _identify(request)]
        new += (request for request in elsewhere if _identify(request) not in self._shown_elsewhere)
        self._number = number
        for entity in changed:
            self._shown.pop(entity, None)
        self._shown |= {entity: _identify(request) for entity, request in requests.items()}
        self._shown_elsewhere = set(map(_identify, elsewhere))
        return self._prepare(new)

    def _list_waiting(self) -> list[str]:
        from cantrip_actors.loom.stores.selection import Selection

        return [listed.id for listed in list_newest(self._loom, Selection(state="waiting"), sys.maxsize)]

    def _read(self, entities: Iterable[str]) -> dict[str, Request]:
        """Return the open requests of some entities."""
        from cantrip_actors.runtime.people.request import make_request

        records = {entity: self._loom.open_request(entity) for entity in dict.fromkeys(entities)}
        return {
            entity: make_request(record, self._loom.ancestry(entity)[-1])
            for entity, record in records.items()
            if record is not None
        }

    def _read_sources(self) -> list[Request]:
        return [request for source in self._sources for request in source.open()]

    def _prepare(self, requests: Iterable[Request]) -> list[Request]:
        """Return those of the requests that are for the person, without secrets, the oldest first."""
        from cantrip_actors.cli.logs import secrets_of_environment
        from cantrip_actors.redact.redactor import Redactor
        from cantrip_actors.runtime.people.request import redact_request

        redactor = Redactor(secrets_of_environment())
        shown = (redact_request(request, redactor) for request in requests if request.is_for(self._to))
        return sorted(shown, key=lambda request: request.asked_at)


def _identify(request: Request) -> tuple[str, str]:
    return request.id, request.asked_at


def _print_each(requests: Iterable[Request], *, as_json: bool) -> None:
    """Print requests, each as one line."""
    for request in requests:
        if as_json:
            output.print_lines([output.as_json(_build_row(request))])
        else:
            print_styled(_render_table([request], terminal_width(), head=False))


@app.command(
    epilog=examples(
        "cantrip allow 5f3a9c1e",
        """cantrip allow 5f3a9c1e --args '{"amount": 10}' --note "ten is enough" """.strip(),
        "cantrip allow 5f3a9c1e --remember --by anna",
    )
)
def allow(
    id: RequestIdArgument,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Arguments in place of those of the call.")
    ] = None,
    note: Note = "",
    by: By = None,
    remember: RememberOption = False,
    loom: Url = LOOM,
    folder: SourcesFolder = None,
    as_json: Json = False,
) -> None:
    """Allow a call that waits for a person."""
    more = _list_options(note, remember=remember)
    if args is not None:
        more["args"] = _parse_object(args)
    _decide(loom, folder, id, "allow", by, as_json=as_json, more=more)


@app.command(epilog=examples('cantrip deny 5f3a9c1e --note "not before June"'))
def deny(
    id: RequestIdArgument,
    note: Note = "",
    by: By = None,
    remember: RememberOption = False,
    loom: Url = LOOM,
    folder: SourcesFolder = None,
    as_json: Json = False,
) -> None:
    """Deny a call, or leave a question unanswered.

    The entity reads the note.
    """
    _decide(loom, folder, id, "deny", by, as_json=as_json, more=_list_options(note, remember=remember))


@app.command(epilog=examples("cantrip answer 5f3a9c1e Oslo", """cantrip answer 5f3a9c1e '{"city": "Oslo"}' """.strip()))
def answer(
    id: RequestIdArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT|JSON", help="The answer.")],
    by: By = None,
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Answer a question of an entity.

    The answer is the text as it is typed. It is read as JSON only if the question has a schema that the text does not
    fit.
    """
    _decide(loom, None, id, None, by, as_json=as_json, more={"answer": text})


@app.command(
    epilog=examples(
        "cantrip deliver 5f3a9c1e 'It is 12 °C.'",
        """cantrip deliver 5f3a9c1e '{"degrees": 12}' """.strip(),
        "cantrip deliver 5f3a9c1e --error 'the job was cancelled'",
        "cantrip deliver 5f3a9c1e - < report.json",
    )
)
def deliver(
    id: RequestIdArgument,
    result: Annotated[
        str | None,
        typer.Argument(metavar="TEXT|JSON", help="The result; - reads it from standard input."),
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Instead of a result: what failed.")
    ] = None,
    by: By = None,
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Deliver the result of a deferred call.

    The result is the JSON value if the text is one, and else the text.
    """
    if (result is None) == (error is None):
        raise typer.BadParameter("expected a result, or --error with a text", param_hint="RESULT")
    try:
        text = sys.stdin.buffer.read().decode() if result == "-" else result
    except UnicodeDecodeError as problem:
        raise typer.BadParameter(f"expected a text in UTF-8: {problem}", param_hint="RESULT") from problem
    decider = author(by)

    async def work(runtime: Runtime) -> tuple[str, str | None]:
        from cantrip_actors.cli.inline_decisions import parse_result

        request = _find(runtime.requests(), id)
        request_id = id if request is None else request.id
        value = None if text is None else parse_result(text)
        await runtime.deliver(request_id, value, error=error, by=decider, door=door())
        return request_id, _find_unattended_root(runtime, request)

    _show(loom, "deliver", *run_quietly(loom, work, as_json=as_json), by=decider, as_json=as_json)


def _decide(
    loom: str,
    folder: Path | None,
    id: str,
    decision: Literal["allow", "deny"] | None,
    by: str | None,
    *,
    as_json: bool,
    more: dict[str, Any],
) -> None:
    """Post a decision, or an answer, and print the request's id."""
    decider = author(by)

    async def work(runtime: Runtime) -> tuple[str, str | None]:
        from cantrip_actors.runtime.people.request import parse_answer

        for source in _open_sources(folder):
            runtime.add_request_source(source)
        request = _find(runtime.requests(), id)
        request_id = id if request is None else request.id
        if request is not None and "answer" in more:
            more["answer"] = parse_answer(more["answer"], request.schema)
        await runtime.decide(request_id, decision, by=decider, door=door(), **more)
        return request_id, _find_unattended_root(runtime, request)

    _show(loom, decision or "answer", *run_quietly(loom, work, as_json=as_json), by=decider, as_json=as_json)


def _show(loom: str, verb: str, request_id: str, root: str | None, *, by: str, as_json: bool) -> None:
    """Print what was decided, and whether a process runs the entity with this root."""
    receipt = {"request_id": request_id, "decision": verb, "by": by}
    output.show_receipt(receipt, loom, [f"{verb} {request_id}"], as_json=as_json)
    if root is not None and not as_json:
        output.print_note(
            "no process runs the entity now: a process that offers its cantrip continues it, or "
            f"`cantrip resume {root}{render_loom_option(loom)}`"
        )


def _get_open(open_requests: list[Request], typed: str) -> Request:
    """Return the open request of a typed id. Raises UnknownId."""
    from cantrip_actors.cli.errors import UnknownId

    request = _find(open_requests, typed)
    if request is None:
        raise UnknownId(f'no open request has the id "{typed}": `cantrip requests` lists them')
    return request


def _find(open_requests: list[Request], typed: str) -> Request | None:
    """Return the open request of a typed id; None for a whole id, which `decide` looks up. Raises UnknownId."""
    from cantrip_actors.cli.errors import UnknownId

    fits = [request for request in open_requests if typed and typed in request.id]
    exact = [request for request in fits if request.id == typed]
    if exact or len(fits) == 1:
        return (exact or fits)[0]
    if fits:
        raise UnknownId(f'"{typed}" could be any of {", ".join(fit.id for fit in fits[:8])}: give more of it')
    if ":" in typed:
        return None
    raise UnknownId(
        f'no open request has "{typed}" in its id: {len(open_requests):,} are open; `cantrip requests` lists them'
    )


def _find_unattended_root(runtime: Runtime, request: Request | None) -> str | None:
    """Return the end of the id of the waiting root entity, if no process runs it."""
    root = None if request is None else request.root
    return None if root is None or runtime.get_entity(root).held else short(root)


def _open_sources(folder: Path | None) -> list[RequestSource]:
    """Return the sources of requests outside the loom, for example of dispatches."""
    from cantrip_actors.cli.extensions import open_request_sources

    return open_request_sources(folder, seal_key())


def _parse_object(text: str) -> dict[str, Any]:
    args = read_arguments(text)
    if args is None:
        raise typer.BadParameter(f"{explain_arguments(text)}: got {text}", param_hint="--args")
    return args


def _list_options(note: str, *, remember: bool) -> dict[str, Any]:
    return {"note": note, "remember": "entity" if remember else "once"}


def _build_row(request: Request) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}


def _render_table(shown_requests: Iterable[Request], width: int, *, head: bool = True) -> Iterator[Text]:
    """Yield requests, in columns. The first column has a part of the id that identifies it in other commands."""
    from rich.text import Text

    rows = [(_find_part(request), request) for request in shown_requests]
    longest = max((len(part) for part, _ in rows), default=0) + 2
    longest = max(longest, 10)
    for at, (part, request) in enumerate(rows):
        if at == 0 and head:
            yield Text(f"{'REQUEST':<{longest}}{'ENTITY':<10}{'SINCE':<21}{'GATE':<14}WHAT", "dim")
        line = Text(end="").append(f"{part:<{longest}}", "bold")
        line.append(f"{short(request.entity or ''):<10}{request.asked_at[:19]:<21}", "dim")
        line.append(f"{one_line(request.gate, 13):<14}")
        line.append(_describe(request, max(30, width - longest - 45)))
        yield line


def _find_part(request: Request) -> str:
    """Return the part of an id to type; an entity waits for one decision at a time, so its turn suffices."""
    return request.id if request.turn is None else short(request.turn)


def _describe(request: Request, columns: int) -> str:
    """Return the text or the arguments in one line; the reason comes last, because the call matters more."""
    until = f" [until {request.expires_at[:19]}]" if request.expires_at else ""
    room = max(20, columns - len(until))
    if request.kind == "question" or request.turn is None:  # what waits is no call
        return f"{shorten(request.text, room)}{until}"
    call = show_call(request.args, room)
    left = room - count_columns(call) - 3
    why = f" ({shorten(request.text, left)})" if request.text and left > NARROWEST * 2 else ""
    return f"{call}{why}{until}"

"""Options and pages of the commands that list entities: `cantrip entities` and `cantrip loom ls`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cantrip_actors.cli import output

if TYPE_CHECKING:
    from cantrip_actors import Loom
    from cantrip_actors.loom import State
    from cantrip_actors.loom.stores.selection import ListedEntity, ListedKind, Selection


def _read_state(state: str | None) -> str | None:
    return "terminated" if state == "done" else state


ListedState = Annotated[
    str | None,
    typer.Option(
        "--state", callback=_read_state, help="Only those in this state, such as active, waiting, done or failed."
    ),
]
ListedCantrip = Annotated[
    str | None, typer.Option("--cantrip", metavar="NAME", help="Only those that work with the cantrip of this name.")
]
ListedSince = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those that began then or later: 2026-11-28T09:00:00Z."),
]
ListedLimit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many: the newest ones.")]


def make_selection(
    state: str | None,
    cantrip: str | None,
    since: str | None,
    *,
    kind: ListedKind | None = None,
    prefix: str | None = None,
) -> Selection:
    """Return a selection of entities by the options of a list. Raises typer.BadParameter for a wrong one."""
    from cantrip_actors.loom.stores.selection import Selection, format_since
    from cantrip_actors.terms.errors import LoomError

    try:
        earliest = None if since is None else format_since(since)
        return Selection(cast("State | None", state), kind, cantrip, prefix, earliest)
    except LoomError as error:
        raise typer.BadParameter(str(error)) from error


def list_newest(
    loom: Loom,
    selection: Selection,
    limit: int,
    is_wanted: Callable[[ListedEntity], bool] = lambda _: True,
) -> list[ListedEntity]:
    """Return the newest wanted entities of a selection, at most `limit`, oldest first; say so if there are more."""
    newest: list[ListedEntity] = []
    cursor = None
    while True:
        page = loom.page(selection, cursor=cursor, limit=min(limit + 1, 1000))
        newest += filter(is_wanted, page)
        cursor = page.next
        if cursor is None or len(newest) > limit:
            break
    if len(newest) > limit:
        output.print_note(f"these are the newest {limit}: --limit shows more")
    return newest[:limit][::-1]

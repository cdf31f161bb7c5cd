"""The screen of `cantrip top`: turn an overview and a selection into lines that fit. Pure; `top.py` draws them.

Every text of an entity is made printable before it is measured, so no name or question moves the cursor or a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from cantrip_actors.cli.output import name_state, short, tokens
from cantrip_actors.cli.terminal import printable
from cantrip_actors.redact.visible import shorten

if TYPE_CHECKING:
    from cantrip_actors import Request

SORTS: Final = ("age", "state", "turns", "tokens", "cost")
STYLES: Final = {
    "active": "cyan",
    "waiting": "magenta",
    "idle": "dim",
    "terminated": "green",
    "failed": "red",
    "quarantined": "red",
}
SIGNS: Final = {
    "active": "●",
    "waiting": "?",
    "idle": "○",
    "terminated": "✓",
    "failed": "✗",
    "crashed": "✗",
    "quarantined": "✗",
}
KEYS: Final = "Enter  i interrupt  t steer  a/d decide  k stop  s sort  f find  p pause  q quit"
OFFLINE_KEYS: Final = "↑↓ Enter turns  s sort  f filter  p pause  q quit"
REQUEST_ROWS: Final = 16
"""Lines of a request and the question about it, at most."""
BREAKERS: Final = {0: "", 1: "half open", 2: "open"}

OverviewData = Mapping[str, Any]


@dataclass
class TopSelections:
    """The user's selections."""

    source: str
    sort: str = "age"
    filter: str = ""
    selected: str = ""
    """The id of an entity."""
    is_paused: bool = False
    can_act: bool = False
    detail: Sequence[str] | None = None
    """The lines of the selected entity's turns."""
    prompt: str | None = None
    """A question that the next keys answer, with the text typed so far."""
    request: Request | None = None
    """The request that the prompt asks about."""
    note: str = ""
    scroll: int = 0
    shown: list[str] = field(default_factory=list)
    """The ids of the entities, in the order of the previous screen."""


def select_rows(overview: OverviewData, view: TopSelections) -> list[Mapping[str, Any]]:
    """Return the entities that pass the filter, sorted."""
    wanted = view.filter.lower()
    rows = [
        row
        for row in overview["entities"]
        if not wanted
        or wanted in name_state(row["state"] or "")
        or any(wanted in str(row[name] or "").lower() for name in ("id", "name", "cantrip"))
    ]
    match view.sort:
        case "state":
            rows.sort(key=lambda row: (row["state"] != "waiting", row["state"] != "active", row["state"]))
        case "turns" | "tokens" | "cost":
            rows.sort(key=lambda row: -row[view.sort])
        case _:
            rows.sort(key=lambda row: row["began"], reverse=True)
    return rows


def screen(overview: OverviewData, view: TopSelections, width: int, height: int) -> list[Text]:
    """Return exactly `height` lines of at most `width` columns."""
    head = [*_render_header(overview, view)]
    if view.detail is not None:
        body = [Text(_clean(line)) for line in view.detail[view.scroll :]]
    else:
        body = [
            *_render_live(overview, height),
            *_render_requests(overview, height),
            *_render_entities(overview, view, height - len(head)),
        ]
    foot = [_render_footer(view)]
    if view.request is not None:  # directly above the prompt, and never cut by what is above it
        head = head[: max(0, height - REQUEST_ROWS)]
        foot = [*map(Text, view.request.render(columns=width, rows=min(REQUEST_ROWS, height) - 1)), *foot]
    room = max(0, height - len(head) - len(foot))
    lines = [*head, *body[:room], *[Text("")] * (room - len(body)), *foot]
    return [_fit(line, width) for line in lines[:height]]


def whole(overview: OverviewData, view: TopSelections) -> list[Text]:
    """Return all of an overview as lines, for output without a terminal."""
    every = len(overview["entities"]) + 100
    return [
        *_render_header(overview, view),
        *_render_live(overview, every),
        *_render_requests(overview, every),
        *_render_entities(overview, view, every),
    ]


def _fit(line: Text, width: int) -> Text:
    line = line.copy()
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line


def _clean(value: object) -> str:
    return printable(str(value or "")).replace("\n", " ").replace("\t", " ")


def _render_header(overview: OverviewData, view: TopSelections) -> Iterable[Text]:
    totals, live = overview["totals"], overview.get("live")
    states = totals["states"]
    first = Text("cantrip top", "bold").append("  paused" if view.is_paused else "", "bold yellow")
    yield first.append(f"  {overview['at']}  {_clean(view.source)}", "dim")
    second = Text(
        f"{states.get('active', 0)} running  {states.get('waiting', 0)} waiting  {totals['entities']} entities  "
        f"{totals['turns_per_minute']} turns/min  {tokens(totals['tokens_per_minute'])}/min  "
        f"${totals['cost_today']:.4f} today"
    )
    yield second
    if live is not None:
        told = f"{live['restarts']:g} restarts  {live['crashes']:g} crashes  event loop {live['lag'] * 1e3:.1f} ms late"
        yield Text(f"{told}  loom backlog {live['backlog']:g}")


def _render_live(overview: OverviewData, height: int) -> Iterable[Text]:
    live = overview.get("live")
    if live is None:
        return
    lines: list[tuple[bool, Text]] = []  # what is wrong comes first, since a low screen has room for a few only
    for name, one in live["crystals"].items():
        line = Text(f"  {_clean(name)}  {one.get('running', 0):g} running, {one.get('waiting', 0):g} waiting")
        paused, breaker = one.get("paused", 0), BREAKERS.get(int(one.get("breaker", 0)), "")
        line.append(f"  paused {paused:.0f} s" if paused else "", "yellow")
        lines.append((not (paused or breaker), line.append(f"  breaker {breaker}" if breaker else "", "red")))
    for kind, one in sorted(live["actors"].items(), key=lambda item: -item[1].get("restarts", 0)):
        count = sum(n for name, n in one.items() if not name.startswith(("mailbox", "restarts")))
        told = f"  {_clean(kind):<11} {count:>5g}  mailbox {one.get('mailbox_max', 0):g}"
        restarts = one.get("restarts", 0)
        lines.append(
            (
                not restarts,
                Text(told).append(f"  {restarts:g} restart{'s'[: restarts > 1]}" if restarts else "", "yellow"),
            )
        )
    yield Text("supervision", "bold")
    yield from [line for _, line in sorted(lines, key=lambda one: one[0])][: max(2, height // 4)]


def _render_requests(overview: OverviewData, height: int) -> Iterable[Text]:
    asked = overview["requests"]
    if not asked:
        return
    yield Text(f"waiting for a person: {len(asked)}", "bold magenta")
    for one in asked[: max(1, height // 5)]:
        yield Text(f"  {short(one['entity'])}  {_clean(one['gate'])}  {shorten(str(one['text'] or ''), 300)}")


def _render_entities(overview: OverviewData, view: TopSelections, height: int) -> Iterable[Text]:
    rows = select_rows(overview, view)
    view.shown = [row["id"] for row in rows]
    told = f"{len(rows)} entities by {view.sort}" + (f", filter {_clean(view.filter)!r}" if view.filter else "")
    yield Text(told, "bold")
    yield Text(f"  {'id':<8} {'state':<12} {'age':>6} {'turns':>6} {'tokens':>8} {'cost':>9}  name", "dim")
    first = 0
    if view.selected in view.shown:
        first = max(0, view.shown.index(view.selected) - max(1, height // 2))
    for row in rows[first:]:
        yield _render_entity(row, overview["at"], is_selected=row["id"] == view.selected)


def _render_entity(row: Mapping[str, Any], now: str, *, is_selected: bool) -> Text:
    state = row["state"]
    line = Text(f"{'>' if is_selected else ' '} {short(row['id']):<8} ", "reverse" if is_selected else "")
    line.append(f"{SIGNS.get(state, '!')} {name_state(state):<10} ", STYLES.get(state, "yellow"))
    line.append(f"{_render_age(row['began'], now):>6} {row['turns']:>6} {row['tokens']:>8} {row['cost']:>9.4f}  ")
    return line.append("  " * row["depth"] + _clean(row["name"] or row["cantrip"] or row["crystal"]))


def _render_age(since: str, now: str) -> str:
    try:
        seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()
    except ValueError:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def _render_footer(view: TopSelections) -> Text:
    if view.prompt is not None:
        return Text(_clean(view.prompt), "bold yellow")
    if view.note:
        return Text(_clean(view.note), "yellow")
    if view.detail is not None:
        return Text("↑↓ scroll  Esc back  q quit", "dim")
    return Text(KEYS if view.can_act else OFFLINE_KEYS, "dim")

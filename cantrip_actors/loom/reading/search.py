"""Search over a loom: turns by text, gate, error or reward.

Hits are yielded while the search runs, entity by entity in order of creation, so the first ones come at once and a loom
of any size can be searched; one entity's records are in memory at a time. A hit satisfies every condition of the query.

A regular expression can take forever (`(a+)+$`), a few kilobytes take seconds to compile, and Python's engine cannot be
stopped from within. So expressions are compiled and run in a process of their own that is ended when it takes too long:
the search then fails, and says so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cantrip_actors.loom.reading.view import Loom, make_unchecked
from cantrip_actors.loom.stores.selection import format_since
from cantrip_actors.machine.project import read_entries
from cantrip_actors.records.records import Record
from cantrip_actors.records.turn import Turn
from cantrip_actors.redact.visible import show_value
from cantrip_actors.terms.errors import LoomError

__all__ = ["Hit", "Place", "Query", "search"]

Place = Literal["intent", "steer", "content", "thinking", "code", "call", "result", "end"]
"""The part of an entity's history: intents, utterances, calls, results, endings."""

PLACES: tuple[Place, ...] = get_args(Place)

AROUND = 60
"""Characters of an excerpt on each side of a match."""

SHOWN = 120
"""Characters of an expression in an error."""

END = "~"
"""A text after every time."""

BATCH = 4_000_000
"""Characters that the process of a regular expression gets at once."""


@dataclass(frozen=True, slots=True)
class Query:
    """The conditions of a search; a default is no condition.

    `text` matches in any case, `regex` is in the syntax of Python's `re` (write `(?i)` for any case); not both. `gate`
    matches turns that called it or had its result, `errors` turns with an error observation, and with `gate` an error
    of that gate. `entity` limits the search to one entity, and with `below` to it and everything that it spawned.

    `since` is the first moment, and `until` the first one after the last: ISO 8601 with an offset. `by` is a sender: of
    messages, and of intents with all that the entity did for them.
    """

    text: str | None = None
    regex: str | None = None
    gate: str | None = None
    errors: bool = False
    entity: str | None = None
    below: bool = True
    places: tuple[Place, ...] = PLACES
    min_reward: float | None = None
    max_reward: float | None = None
    seconds: float = 5.0
    """Seconds that a regular expression may take for each few megabytes of text."""
    since: str | None = None
    until: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        if self.text is not None and self.regex is not None:
            raise LoomError("a search is for a text or for a regular expression, not for both")
        for name in ("since", "until"):
            time = getattr(self, name)
            object.__setattr__(self, name, None if time is None else format_since(time, name))


@dataclass(frozen=True, slots=True)
class Hit:
    """A match. `turn_id` is None outside of a turn: for an intent or an ending.

    `excerpt` is the text around the match on its line, and `start` to `end` in it is the match; both are 0 if the query
    has neither text nor expression. `at` is the time of the record, and `by` the sender of the message, or of the
    intent that the entity worked on.
    """

    entity_id: str
    turn_id: str | None
    sequence: int
    place: Place
    excerpt: str = ""
    start: int = 0
    end: int = 0
    at: str = ""
    by: str = ""


def search(loom: Loom, query: Query) -> Iterator[Hit]:
    """Yield one hit for each matching part of a turn, or for each turn if the query has no text.

    Raises LoomError for an unknown entity, and for a regular expression that is wrong or takes too long.
    """
    if query.entity is None:
        entities: Iterable[str] = (header.entity_id for header in loom.headers())
    else:
        entities = loom.subtree(query.entity) if query.below else [loom.header(query.entity).entity_id]
    loom = make_unchecked(loom)
    texts = (text for entity in entities for text in _find_texts(query, loom.records(entity)))
    if query.regex is not None:
        return _search_by_regex(query.regex, query.seconds, texts)
    if query.text is not None:
        return _search_by_text(query.text, texts)
    return _search_by_turn(texts)


def _find_texts(query: Query, records: Sequence[Record]) -> Iterator[Hit]:
    """Yield the texts of an entity's records that meet every condition except the text, as whole excerpts."""
    turns_only = query.gate is not None or query.errors or query.min_reward is not None or query.max_reward is not None
    sender = ""
    for entry in read_entries(records):
        if entry.kind == "intent":
            sender = entry.sender
        by = entry.sender if entry.kind == "steer" else sender
        if not (query.since or "") <= entry.at < (query.until or END) or query.by not in (None, by):
            continue
        match entry.kind:
            case "turn" if entry.turn is not None and _is_match(query, entry.turn):
                turn = entry.turn
                texts = [Hit(turn.entity_id, turn.id, turn.sequence, *text) for text in _list_turn_texts(turn)]
            case "intent" | "steer" | "end" as kind if not turns_only and (entry.text or kind != "end"):
                texts = [Hit(records[0].entity_id, None, 0, kind, entry.text)]
            case _:
                texts = []
        yield from (replace(text, at=entry.at, by=by) for text in texts if text.place in query.places)


def _is_match(query: Query, turn: Turn) -> bool:
    seen = [o for o in turn.gate_calls if query.gate is None or o.gate == query.gate]
    said = not turn.continues and any(call.gate == query.gate for call in turn.tool_calls)
    if query.errors and not any(o.is_error for o in seen):
        return False
    if query.gate is not None and not query.errors and not seen and not said:
        return False
    if query.min_reward is not None and (turn.reward is None or turn.reward < query.min_reward):
        return False
    return query.max_reward is None or (turn.reward is not None and turn.reward <= query.max_reward)


def _list_turn_texts(turn: Turn) -> Iterator[tuple[Place, str]]:
    if not turn.continues:  # an utterance belongs to its first turn (LOOM-8)
        yield "content", turn.content or ""
        if turn.thinking:
            yield "thinking", turn.thinking
        if turn.code:
            yield "code", turn.code
        for call in turn.tool_calls:
            yield "call", f"{call.gate}({call.arguments})"
    for seen in turn.gate_calls:
        yield "result", seen.content


# ------------------------------------------------------------------------------------------------------ ways to look


def _search_by_turn(texts: Iterable[Hit]) -> Iterator[Hit]:
    last = None
    for text in texts:
        if text.turn_id is None or text.turn_id != last:
            yield replace(text, excerpt=_excerpt_line(text.excerpt, 0, 0)[0])
            last = text.turn_id


def _search_by_text(wanted: str, texts: Iterable[Hit]) -> Iterator[Hit]:
    # not casefold, which changes lengths, so that positions in the text would be lost
    expression = re.compile(re.escape(wanted), re.IGNORECASE)
    for text in texts:
        match = expression.search(text.excerpt)
        if match is not None:
            yield _cut_out(text, *match.span())


def _search_by_regex(expression: str, seconds: float, texts: Iterable[Hit]) -> Iterator[Hit]:
    batch: list[Hit] = []
    size, has_tried = 0, False
    for text in texts:
        batch.append(text)
        size += len(text.excerpt)
        if size >= BATCH:
            yield from _match_batch(expression, seconds, batch)
            batch, size, has_tried = [], 0, True
    if batch or not has_tried:  # a wrong expression is refused in an empty loom, too
        yield from _match_batch(expression, seconds, batch)


_MATCH = """
import json, re, signal, sys
said = json.load(sys.stdin)
signal.setitimer(signal.ITIMER_REAL, said["seconds"])
try:
    expression = re.compile(said["regex"])
except (re.error, RecursionError, OverflowError) as error:
    json.dump(str(error), sys.stdout)
else:
    found = map(expression.search, said["texts"])
    json.dump([None if one is None else one.span() for one in found], sys.stdout)
"""


def _match_batch(expression: str, seconds: float, batch: list[Hit]) -> Iterator[Hit]:
    shown = show_value(expression, SHOWN)
    limit = seconds + 1.0  # it ends itself if this process is killed before it can end it
    request = json.dumps({"regex": expression, "seconds": limit, "texts": [text.excerpt for text in batch]})
    try:
        done = subprocess.run(  # noqa: S603  # our own program; the expression is its input
            [sys.executable, "-I", "-S", "-c", _MATCH],
            input=request,
            capture_output=True,
            text=True,
            encoding="ascii",
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise LoomError(
            f"the regular expression {shown} took more than {seconds:g} s: one repetition inside of another, "
            "or several next to each other, can take for ever; search for a text, or write it simpler"
        ) from None
    except subprocess.CalledProcessError as error:
        raise LoomError(f"the regular expression {shown} could not be tried: {error.stderr[-500:]}") from error
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise LoomError(f"{shown} is not a regular expression: {answer}")
    for text, span in zip(batch, answer, strict=True):
        if span is not None:
            yield _cut_out(text, *span)


def _cut_out(text: Hit, start: int, end: int) -> Hit:
    excerpt, start, end = _excerpt_line(text.excerpt, start, end)
    return replace(text, excerpt=excerpt, start=start, end=end)


def _excerpt_line(text: str, start: int, end: int) -> tuple[str, int, int]:
    """Return the text around a match on its line, with ellipses where it was cut, and the match's position in it."""
    first = max(text.rfind("\n", 0, start) + 1, start - AROUND)
    after = text.find("\n", start)
    last = min(len(text) if after < 0 else after, max(end, start) + AROUND)
    end = min(end, last)
    before = "…" if first > 0 and text[first - 1] != "\n" else ""
    behind = "…" if last < len(text) and text[last] != "\n" else ""
    return f"{before}{text[first:last]}{behind}", start - first + len(before), end - first + len(before)

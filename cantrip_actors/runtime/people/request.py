"""A request to a person, and its lines for that person: they show exactly the call that would run. Pure.

The reason comes first and the call last, directly above the question that follows. Everything that an entity or a
server wrote is a value (`redact/visible.py`), and a request fits on a screen, so that nothing scrolls out of sight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cantrip_actors.records.records import Requested
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.redact.visible import (
    FRAME,
    NARROWEST,
    frame,
    shorten,
    show_arguments,
    show_name,
    show_value,
    wrap_arguments,
)
from cantrip_actors.terms.exact_json import parse_exactly
from cantrip_actors.terms.json_schema import find_misfits

_REASON_ROWS: Final = 4
_WIDEST_NAME: Final = 40


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a person decides, about a call or a question; or a deferred call that waits for its result.

    `entity` is the id of the entity that waits, `turn` and `call` are the ids of its turn and its call. `args` are the
    arguments of the call; `text` says why a person decides about it, or is the question; `schema` is the JSON Schema of
    the answer. Times are ISO 8601 in UTC. A question that `is_utterance` is the text of an entity in a circle with
    medium="person", and the answer is the person's reply; `to` is the name of the person whom it addresses, if any.
    `root` is the id of the entity at the root of the tree of `entity`.
    `kind` is "approval", "question" or "deferred"; a source of requests (`Runtime.add_request_source`) has kinds of its
    own, for example "dispatch".
    """

    id: str
    kind: str
    entity: str | None
    turn: str | None
    call: str | None
    gate: str
    args: Mapping[str, Any]
    text: str
    schema: Mapping[str, Any] | None
    asked_at: str
    expires_at: str | None
    is_utterance: bool = False
    to: str | None = None
    root: str | None = None

    def is_for(self, person: str | None) -> bool:
        """Return whether the request is for a person: it addresses this person, or no person by name; True for None."""
        return person is None or self.to in (None, person)

    def render(self, *, who: str = "", columns: int = 80, rows: int | None = None) -> list[str]:
        """Return the request as lines for the person who decides it; the call itself comes last.

        The arguments, the question and the reason are an entity's: they are escaped and framed, so that none of them
        hides a part of the call or looks like another request. `who` names the entity; left out, the end of its id
        does. With `rows` there are at most about so many lines, what is cut says how long it is, and no line is
        wider than `columns`. Without, everything is shown.
        """
        asker = shorten(who or (self.entity or self.id)[-8:], _WIDEST_NAME)
        if self.kind == "question":
            return list(_render_question(self, asker, columns, rows))
        return list(_render_call(self, asker, columns, rows))


def make_request(requested: Requested, root: str | None = None) -> Request:
    """Return the request of a record; `root` is the root of the tree of its entity."""
    return Request(
        requested.id,
        requested.kind,
        requested.entity_id,
        requested.turn_id,
        requested.tool_call_id,
        requested.gate,
        requested.args or {},
        requested.why if requested.question is None else requested.question,
        requested.answer_schema,
        requested.at,
        requested.expires_at,
        requested.is_utterance,
        requested.to,
        root,
    )


def redact_request(request: Request, redactor: Redactor) -> Request:
    """Return a request without secrets in its arguments and its text."""
    return replace(request, args=redactor.value(request.args), text=redactor.text(request.text))


def parse_answer(text: str, schema: Any) -> Any:
    """Return the answer to a question: the text, or a JSON value if the schema refuses the text and it is JSON."""
    if schema is None or not find_misfits(text, schema, foreign=True):
        return text
    try:
        return parse_exactly(text)
    except ValueError:
        return text


def _render_question(request: Request, asker: str, columns: int, rows: int | None) -> Iterator[str]:
    to = "" if request.to is None else f" {shorten(request.to, _WIDEST_NAME)}"
    yield f"{asker} says to{to or ' you'}:" if request.is_utterance else f"{asker} asks:"
    yield from frame(request.text, columns, None if rows is None else max(1, rows - 2))
    if request.schema is not None:
        head, schema = "the answer has to fit ", dict(request.schema)
        shown = show_value(schema, columns - len(head))
        if rows is not None or shown == (whole := show_value(schema, sys.maxsize)):
            yield f"{head}{shown}"
        else:
            yield from (head.strip(), *frame(whole, columns))


def _render_call(request: Request, asker: str, columns: int, rows: int | None) -> Iterator[str]:
    room = max(NARROWEST, columns - len(FRAME))
    reason: list[str] = []
    if request.text:
        reason = ["why a person decides:", *frame(request.text, columns, None if rows is None else _REASON_ROWS)]
    yield from reason
    gate = show_name(request.gate)
    wants = "waits for the result of" if request.kind == "deferred" else "wants to call"
    if not request.args:
        yield f"{asker} {wants} {gate} without arguments"
        return
    yield f"{asker} {wants} {gate} with"
    if rows is None:
        yield from (f"{FRAME}{line}" for line in wrap_arguments(request.args, room))
        return
    lines = [f"{FRAME}{line}" for line in show_arguments(request.args, room)]
    most = max(1, rows - len(reason) - 1)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{FRAME}… {len(lines) - most + 1:,} more arguments"]
    yield from lines

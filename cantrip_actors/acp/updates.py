"""The updates that an editor shows of an entity: from upserts while it runs, from its log afterwards. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cantrip_actors import (
    EntityEvent,
    EntityStartedEvent,
    Episode,
    FinalResponseEvent,
    Request,
    RequestedEvent,
    SteeredEvent,
    StepCompleteEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from cantrip_actors.observe import ToolCallUpsert
from cantrip_actors.observe.segments import Piece
from cantrip_actors.records.turn import Turn
from cantrip_actors.redact.visible import NARROWEST, escape, show_call, show_name
from cantrip_actors.terms.messages import as_text

Update = dict[str, Any]

TITLE: Final = 80


COLUMNS: Final = 400
ROWS: Final = 60
"""The size of a request in an editor: it wraps long lines itself."""

SHOWN: Final = 20_000
"""Characters of a result that an editor gets; the loom has all of it."""

_KINDS: Final = {
    "read": "read",
    "list": "read",
    "search": "search",
    "write": "edit",
    "fetch": "fetch",
    "terminal": "execute",
}


def kind_of(gate: str) -> str:
    """Return the editor's kind of a gate."""
    return _KINDS.get(gate, "other")


def title_of(text: str) -> str:
    """Return a text as a title of one line, without characters that hide or reverse others."""
    line = escape(" ".join(text.split()))
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


def call_title(gate: str, args: Mapping[str, Any]) -> str:
    """Return the title of a call that a person decides: the gate, and the arguments as values."""
    name = show_name(gate)
    return f"{name}({show_call(args, max(NARROWEST, TITLE - len(name) - 2))})"


def question_text(request: Request) -> str:
    """Return the text of a form with an entity's question; the form itself shows which answers fit."""
    return "\n".join(replace(request, schema=None).render(columns=COLUMNS, rows=ROWS))


def read_choice(answer: Any) -> str:
    """Return the option with which an editor answers a permission request, "cancelled", or any other outcome.

    Some editors name an option by its kind, and some give the outcome without the object around it.
    """
    fields = answer if isinstance(answer, Mapping) else {}
    chosen = fields["outcome"] if isinstance(fields.get("outcome"), Mapping) else fields
    if chosen.get("outcome") == "cancelled":
        return "cancelled"
    option = chosen.get("optionId")
    return _OPTIONS.get(option, option) if isinstance(option, str) else "no option"


_OPTIONS: Final = {"allow_once": "allow", "allow_always": "always", "reject_once": "reject", "reject_always": "reject"}
"""The options by their kinds."""


def fence(lines: Sequence[str]) -> str:
    """Return lines as a block of Markdown in which nothing is markup: each untrusted line begins with its frame."""
    return "\n".join(["```text", *lines, "```"])


def make_chunk(kind: str, text: str, message_id: str) -> Update:
    """Return a chunk of a message or thought of the user or the agent."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message_id}


def show_intent(event: EntityStartedEvent) -> Update:
    """Return the message of the user for an intent."""
    return make_chunk("user_message_chunk", event.intent, event.id)


def chunk_of(piece: Piece, prefix: str) -> Update | None:
    """Return the chunk for a piece of the entity's text; None for a piece that adds no text."""
    if piece.step != "grow":
        return None
    kind = "agent_message_chunk" if piece.kind == "message" else "agent_thought_chunk"
    return make_chunk(kind, piece.text, f"{prefix}:{piece.number}")


Locate = Callable[[str], str]
"""Returns the absolute path of a path that a gate was called with: the protocol knows no other."""


def tool_call(
    call_id: str, gate: str, args: Mapping[str, Any], status: str, locate: Locate = str, kind: str = ""
) -> Update:
    """Return the update for the start of a gate call; without a `kind`, it has the gate's."""
    kind = kind or kind_of(gate)
    update: Update = {
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": _render_title(gate, args),
        "kind": kind,
        "status": status,
        "rawInput": dict(args),
    }
    path = args.get("path")
    if isinstance(path, str) and kind in ("read", "edit", "search"):
        update["locations"] = [{"path": locate(path)}]
    if is_file_write(gate, args):
        update["content"] = [make_diff(args, None, locate)]
    elif kind == "execute" and isinstance(args.get("code"), str):
        update["content"] = [make_block(args["code"])]
    return update


def is_file_write(gate: str, args: Mapping[str, Any]) -> bool:
    """Return whether a call writes a file as a whole, and its arguments are complete."""
    return kind_of(gate) == "edit" and isinstance(args.get("path"), str) and isinstance(args.get("content"), str)


def make_diff(args: Mapping[str, Any], old_text: str | None, locate: Locate) -> dict[str, Any]:
    """Return the difference that a call of `write` makes, as content of a call; without an old text, it is all new."""
    return {"type": "diff", "path": locate(args["path"]), "oldText": old_text, "newText": args["content"]}


def _render_title(gate: str, args: Mapping[str, Any]) -> str:
    about = next(
        (str(args[name]) for name in ("path", "pattern", "url", "command", "intent", "text") if name in args), ""
    )
    return title_of(f"{gate} {about}")


def tool_update(upsert: ToolCallUpsert, locate: Locate, *, is_new: bool) -> Update:
    """Return the update for a step of a call. Its arguments may not be known at its beginning."""
    if upsert.status == "error":
        status = "failed"
    elif not upsert.terminal:
        status = "in_progress" if upsert.tool_arguments or upsert.tool_output else "pending"
    else:
        status = "failed" if upsert.tool_output_is_error else "completed"
    update = tool_call(f"{upsert.turn_id}:{upsert.call_id}", upsert.tool_name, upsert.tool_arguments, status, locate)
    if not is_new:
        update["sessionUpdate"] = "tool_call_update"
        if upsert.tool_output is not None or upsert.terminal:
            update.pop("content", None)  # the result is added to the content shown before
    if upsert.tool_output is not None:
        _add_result(update, upsert.tool_output)
    return update


def _add_result(update: Update, output: str) -> None:
    shown = output if len(output) <= SHOWN else f"{output[:SHOWN]}… [{len(output) - SHOWN:,} more characters]"
    update["rawOutput"] = {"output": shown}  # older clients of the protocol take objects only
    if update["kind"] != "edit":
        update["content"] = [make_block(shown)]


def make_block(text: str) -> dict[str, Any]:
    """Return a text as content of a call."""
    return {"type": "content", "content": {"type": "text", "text": text}}


class UpdateReplay:
    """Turns the events of a log into updates."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._calls: dict[str, ToolCallEvent] = {}
        """The calls without a result, by id."""
        self._text = ""
        """The text of the turn's utterance."""
        self._utterances: set[str] = set()
        """The ids of the calls that are utterances for a person, and have no reply."""

    def add(self, event: EntityEvent, turn: Turn | None) -> Iterator[Update]:
        """Yield the updates of an event; `turn` is the one that it completes."""
        match event:
            case EntityStartedEvent():
                yield show_intent(event)
            case SteeredEvent():
                yield make_chunk("user_message_chunk", event.text, event.id)
            case ThinkingEvent():
                yield make_chunk("agent_thought_chunk", event.text, f"{event.turn_id}:thinking")
            case TextEvent(is_code=False):
                self._text = event.text
                yield make_chunk("agent_message_chunk", event.text, f"{event.turn_id}:message")
            case ToolCallEvent() if event.gate != "done":
                self._calls[event.tool_call_id] = event
                yield tool_call(_name_call(event), event.gate, event.args or {}, "in_progress", self._locate)
            case RequestedEvent() | ToolResultEvent():
                yield from self._add_result(event)
            case StepCompleteEvent():
                if event.terminated or event.truncated:
                    yield from (_finish_call(call, "", self._locate, is_error=True) for call in self._calls.values())
                    self._calls.clear()
                if not event.terminated:
                    self._text = ""
                if turn is not None:
                    yield from program_of(turn, "python")
            case FinalResponseEvent() if event.result is not None and as_text(event.result) != self._text:
                yield make_chunk("agent_message_chunk", as_text(event.result), f"{event.turn_id}:answer")
            case _:
                pass

    def _add_result(self, event: RequestedEvent | ToolResultEvent) -> Iterator[Update]:
        """Yield the end of a call; that of an utterance is a message of the user."""
        if isinstance(event, RequestedEvent):
            if event.is_utterance:
                self._utterances.add(event.tool_call_id)
        elif event.tool_call_id in self._utterances:
            self._utterances.discard(event.tool_call_id)
            yield make_chunk("user_message_chunk", as_text(event.result), event.id)
        elif event.tool_call_id in self._calls:
            call = self._calls.pop(event.tool_call_id)
            yield _finish_call(call, as_text(event.result), self._locate, is_error=event.is_error)


def _name_call(call: ToolCallEvent) -> str:
    return f"{call.turn_id}:{call.tool_call_id}"


def _finish_call(call: ToolCallEvent, text: str, locate: Locate, *, is_error: bool, kind: str = "") -> Update:
    status = "failed" if is_error else "completed"
    update = tool_call(_name_call(call), call.gate, call.args or {}, status, locate, kind)
    update["sessionUpdate"] = "tool_call_update"
    update.pop("content", None)
    _add_result(update, text)
    return update


def program_of(turn: Turn, medium: str) -> Iterator[Update]:
    """Yield the program of a turn in a code circle, as one call."""
    if turn.code is not None:
        call = ToolCallEvent(turn.entity_id, 0.0, turn.id, "code", medium, {"code": turn.code})
        yield tool_call(_name_call(call), medium, call.args or {}, "in_progress", kind="execute")
        yield _finish_call(call, turn.observation, str, is_error=False, kind="execute")


def stop_reason(episode: Episode) -> str:
    """Return why an episode stopped, in the protocol's words."""
    if episode.reason in ("interrupted", "cancelled", "abandoned", "parent_ended"):
        return "cancelled"
    if episode.cut_off == "filter":
        return "refusal"
    if episode.terminated and episode.cut_off is None:
        return "end_turn"
    if episode.cut_off or episode.reason == "budget" or episode.ward in ("max_tokens", "max_cost"):
        return "max_tokens"
    return "max_turn_requests"

"""The UI message stream of the Vercel AI SDK, which `useChat` reads with its default transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from cantrip_actors.http.front_ends import ShownCall, ShownChild, StreamPart
from cantrip_actors.observe.batching import WHOLE_TEXTS
from cantrip_actors.observe.segments import Piece
from cantrip_actors.stream.events import RequestedEvent
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.outcome import Outcome

_REASONS: Final = {"terminated": "stop", "truncated": "length", "timeout": "length", "budget": "length"}
_CUT_OFF: Final = {"length": "length", "filter": "content-filter"}
_NAMES: Final = {"message": "text", "thinking": "reasoning"}


def make_message_id(work_id: str, replied: Iterable[str] = ()) -> str:
    """Return the id of the message that answers an intent, or the reply to the requests `replied` in its episode."""
    return work_id + "".join(f"~{request_id.split(':')[1]}" for request_id in replied)


class UiMessages:
    """Writes the parts of one assistant message.

    Calls of gates are `tool-NAME` parts that the provider executes. A deferred call and a question are the client's to
    answer with `addToolOutput`; a `data-question` part has the text of a question and its schema. While children work
    for a call, a message with their texts is its preliminary output.
    """

    headers: ClassVar[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}
    last = b"data: [DONE]\n\n"
    child_batching = WHOLE_TEXTS
    repeats_children = False

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id
        self._nested: dict[str, dict[tuple[str, int], StreamPart]] = {}
        """The texts of the children of each call, by child and number."""

    def begin(self) -> Iterator[StreamPart]:
        """Yield the beginning of the message."""
        yield {"type": "start", "messageId": self._message_id}

    def queue(self) -> Iterator[StreamPart]:
        """Yield a part for `onData`, which is no part of the message."""
        yield {"type": "data-queued", "data": {}, "transient": True}

    def begin_turn(self, turn_id: str) -> Iterator[StreamPart]:  # noqa: ARG002  # this dialect numbers its steps
        """Yield the beginning of a step."""
        yield {"type": "start-step"}

    def end_turn(self, turn_id: str) -> Iterator[StreamPart]:  # noqa: ARG002
        """Yield the end of a step."""
        yield {"type": "finish-step"}

    def add_piece(self, piece: Piece) -> Iterator[StreamPart]:
        """Yield a step of a text or a reasoning."""
        name, id = _NAMES[piece.kind], f"{piece.kind}-{piece.number}"
        match piece.step:
            case "begin":
                yield {"type": f"{name}-start", "id": id}
            case "grow":
                yield {"type": f"{name}-delta", "id": id, "delta": piece.text}
            case "end":
                yield {"type": f"{name}-end", "id": id}

    def call_gate(self, call: ShownCall) -> Iterator[StreamPart]:
        """Yield a call with its arguments."""
        yield _make_call(call.id, call.gate, call.args)

    def add_result(self, call: ShownCall, result: Any, *, is_error: bool) -> Iterator[StreamPart]:
        """Yield the output of a call."""
        if is_error:
            yield {"type": "tool-output-error", "toolCallId": call.id, "errorText": as_text(result)}
        else:
            yield {"type": "tool-output-available", "toolCallId": call.id, "output": result}

    def deny(self, call: ShownCall) -> Iterator[StreamPart]:
        """Yield that a person did not allow a call."""
        yield {"type": "tool-output-denied", "toolCallId": call.id}

    def begin_child(self, child: ShownChild) -> Iterator[StreamPart]:  # noqa: ARG002  # its first text shows it
        """Yield nothing: a child is shown with its first text."""
        yield from ()

    def add_child_piece(self, child: ShownChild, piece: Piece) -> Iterator[StreamPart]:
        """Yield the texts of a call's children so far, as one message."""
        parts = self._nested.setdefault(child.call_id, {})
        begun = {"type": _NAMES[piece.kind], "text": "", "state": "streaming"}
        part = parts.setdefault((child.id, piece.number), begun)
        match piece.step:
            case "begin":
                return
            case "grow":
                part["text"] += piece.text
            case "end":
                part["state"] = "done"
        yield {
            "type": "tool-output-available",
            "toolCallId": child.call_id,
            "output": {"id": child.call_id, "role": "assistant", "parts": [dict(part) for part in parts.values()]},
            "preliminary": True,
        }

    def end_child(self, child: ShownChild, error: str | None) -> Iterator[StreamPart]:  # noqa: ARG002
        """Yield nothing: the output of the call says what came of it."""
        yield from ()

    def ask(self, request: RequestedEvent) -> Iterator[StreamPart]:
        """Yield an approval request, a question, or a call that the client has to answer; the answer continues it.

        After an utterance the message has ended: the next message of the user is the reply.
        """
        if request.is_utterance:
            yield {"type": "finish", "finishReason": "stop"}
            return
        if request.is_question or request.is_deferred:
            yield _make_call(request.tool_call_id, request.gate, request.args or {}, is_clients=True)
        else:
            yield {
                "type": "tool-approval-request",
                "approvalId": request.request_id,
                "toolCallId": request.tool_call_id,
                "approvalDescriptor": {"text": request.text, "expiresAt": request.expires_at},
            }
        if request.is_question:
            data = {"toolCallId": request.tool_call_id, "text": request.text, "schema": request.schema}
            yield {"type": "data-question", "id": request.request_id, "data": data}
        yield {"type": "finish", "finishReason": "tool-calls"}

    def end(self, outcome: Outcome) -> Iterator[StreamPart]:
        """Yield the end of the message."""
        if outcome.reason == "cancelled":
            yield {"type": "abort", "reason": outcome.summary or "cancelled"}
        else:
            yield {"type": "finish", "finishReason": find_finish_reason(outcome)}

    def fail(self, code: str, message: str) -> Iterator[StreamPart]:  # noqa: ARG002  # this dialect has no codes
        """Yield the error of an episode."""
        yield {"type": "error", "errorText": message}


def find_finish_reason(outcome: Outcome) -> str:
    """Return why a message ended, in the words of the AI SDK."""
    return _REASONS.get(outcome.reason, "other") if outcome.cut_off is None else _CUT_OFF[outcome.cut_off]


def _make_call(call_id: str, gate: str, args: Any, *, is_clients: bool = False) -> StreamPart:
    return {
        "type": "tool-input-available",
        "toolCallId": call_id,
        "toolName": gate,
        "input": args,
        "providerExecuted": not is_clients,
    }

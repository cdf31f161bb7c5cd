"""The events of AG-UI, which `HttpAgent` and CopilotKit read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from cantrip_actors.http.front_ends import ShownCall, ShownChild, StreamPart
from cantrip_actors.http.ui_messages import find_finish_reason
from cantrip_actors.observe.batching import Batching
from cantrip_actors.observe.segments import Piece
from cantrip_actors.records.codec import dump_json
from cantrip_actors.stream.events import RequestedEvent
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.outcome import Outcome

APPROVAL: Final = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}, "args": {"type": "object"}},
    "required": ["approved"],
}
"""The schema of the answer to an approval request; `args` replace those of the call."""


class AgUiEvents:
    """Writes the events of one run. Requests to people are interrupts of the run, and children are its subagents."""

    headers: ClassVar[Mapping[str, str]] = {}
    last = b""
    child_batching = Batching(interval=0.0)
    repeats_children = True

    def __init__(self, thread_id: str, run_id: str, work_id: str) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._work_id = work_id

    def begin(self) -> Iterator[StreamPart]:
        """Yield the beginning of the run."""
        yield {"type": "RUN_STARTED", **self._run}

    def queue(self) -> Iterator[StreamPart]:
        """Yield an event of our own, because the protocol has none."""
        yield {"type": "CUSTOM", "name": "queued", "value": {}}

    def begin_turn(self, turn_id: str) -> Iterator[StreamPart]:
        """Yield the beginning of a step."""
        yield {"type": "STEP_STARTED", "stepName": turn_id}

    def end_turn(self, turn_id: str) -> Iterator[StreamPart]:
        """Yield the end of a step."""
        yield {"type": "STEP_FINISHED", "stepName": turn_id}

    def add_piece(self, piece: Piece) -> Iterator[StreamPart]:
        """Yield a step of a text or a reasoning."""
        yield from _write_piece(piece, {"messageId": f"{self._work_id}:{piece.kind}:{piece.number}"})

    def begin_child(self, child: ShownChild) -> Iterator[StreamPart]:
        """Yield the beginning of a subagent."""
        id = {"subagentRunId": child.id, "name": "child", "description": child.intent}
        is_below = child.parent_id is not None  # its call is not shown
        above = {"parentSubagentRunId": child.parent_id} if is_below else {"parentToolCallId": child.call_id}
        yield {"type": "SUBAGENT_STARTED", **id, **above}

    def add_child_piece(self, child: ShownChild, piece: Piece) -> Iterator[StreamPart]:
        """Yield a step of a text or a reasoning of a subagent."""
        id = {"messageId": f"{child.id}:{piece.kind}:{piece.number}", "subagentRunId": child.id}
        yield from _write_piece(piece, id)

    def end_child(self, child: ShownChild, error: str | None) -> Iterator[StreamPart]:
        """Yield the end of a subagent."""
        if error is None:
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": child.id}
        else:
            yield {"type": "SUBAGENT_ERROR", "subagentRunId": child.id, "message": f"it ended: {error}", "code": error}

    def call_gate(self, call: ShownCall) -> Iterator[StreamPart]:
        """Yield a call with its arguments."""
        id = {"toolCallId": call.id}
        yield {"type": "TOOL_CALL_START", **id, "toolCallName": call.gate}
        yield {"type": "TOOL_CALL_ARGS", **id, "delta": dump_json(dict(call.args), mark=False).decode()}
        yield {"type": "TOOL_CALL_END", **id}

    def add_result(self, call: ShownCall, result: Any, *, is_error: bool) -> Iterator[StreamPart]:
        """Yield the result of a call."""
        yield self._make_result(call, as_text(result), is_error=is_error)

    def deny(self, call: ShownCall) -> Iterator[StreamPart]:
        """Yield that a person did not allow a call, as its result."""
        yield self._make_result(call, "denied", is_error=True)

    def ask(self, request: RequestedEvent) -> Iterator[StreamPart]:
        """Yield the end of a run that a request to a person interrupts, or a call that the client has to answer.

        After an utterance the run has ended: the next message of the user is the reply.
        """
        if request.is_utterance:
            yield self._finish({"type": "success"})
            return
        if request.is_deferred:
            yield self._finish({"type": "success", "pendingToolCallIds": [request.tool_call_id]})
            return
        interrupt = {
            "id": request.request_id,
            "reason": "input_required" if request.is_question else "tool_call",
            "message": request.text,
            "toolCallId": request.tool_call_id,
            "responseSchema": request.schema if request.is_question else APPROVAL,
            "expiresAt": request.expires_at,
        }
        fields = {name: value for name, value in interrupt.items() if value}
        yield self._finish({"type": "interrupt", "interrupts": [fields]})

    def end(self, outcome: Outcome) -> Iterator[StreamPart]:
        """Yield the end of the run."""
        kind = "cancelled" if outcome.reason == "cancelled" else "success"
        reason = find_finish_reason(outcome)
        if kind == "success" and reason != "stop":  # the protocol has no outcome for it
            yield {"type": "CUSTOM", "name": "finish_reason", "value": reason}
        yield {**self._finish({"type": kind}), "result": outcome.result}

    def fail(self, code: str, message: str) -> Iterator[StreamPart]:
        """Yield the error of the run."""
        yield {"type": "RUN_ERROR", "message": message, "code": code}

    def _finish(self, outcome: StreamPart) -> StreamPart:
        return {"type": "RUN_FINISHED", **self._run, "outcome": outcome}

    def _make_result(self, call: ShownCall, text: str, *, is_error: bool) -> StreamPart:
        result = {"type": "TOOL_CALL_RESULT", "messageId": f"{self._work_id}:{call.id}", "toolCallId": call.id}
        return {**result, "content": text, "role": "tool", **({"metadata": {"isError": True}} if is_error else {})}


def _write_piece(piece: Piece, id: StreamPart) -> Iterator[StreamPart]:
    is_text = piece.kind == "message"
    name = "TEXT_MESSAGE" if is_text else "REASONING_MESSAGE"
    match piece.step:
        case "begin":
            if not is_text:
                yield {"type": "REASONING_START", **id}
            yield {"type": f"{name}_START", **id, "role": "assistant" if is_text else "reasoning"}
        case "grow":
            yield {"type": f"{name}_CONTENT", **id, "delta": piece.text}
        case "end":
            yield {"type": f"{name}_END", **id}
            if not is_text:
                yield {"type": "REASONING_END", **id}

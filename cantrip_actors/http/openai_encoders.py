"""Encoders of upserts into OpenAI's two dialects: chunks of a chat completion, events of a response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from cantrip_actors.http.answer_form import AnswerForm, ClientTool
from cantrip_actors.http.episode_tools import CALL, Rest, ToolCallItem
from cantrip_actors.http.person_waits import PersonWait
from cantrip_actors.observe import Output
from cantrip_actors.observe.segments import Piece, Segments
from cantrip_actors.records.codec import dump_json
from cantrip_actors.terms.messages import NO_USAGE, Usage, as_text
from cantrip_actors.terms.outcome import Outcome

DONE: Final = b"data: [DONE]\n\n"
WAIT: Final = "msg_wait_"
"""The prefix of the id of a message about a request that a person has to decide."""
BETWEEN: Final = "\n\n"
"""The separator between two messages of one chat completion."""


class EpisodeEncoder(Protocol):
    """Writes the stream of one episode in a dialect. With a `form` its only text is the answer, in that form."""

    form: AnswerForm | None

    def begin(self) -> Iterator[bytes]:
        """Yield the parts that precede all content."""

    def add(self, output: Output) -> Iterator[bytes]:
        """Yield an output."""

    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the end of an answer with calls that the client is to carry out."""

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the end."""

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed with an error in OpenAI's shape."""


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Return tokens as chat completions count them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def response_usage(usage: Usage) -> dict[str, Any]:
    """Return tokens as responses count them."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def answer_text(outcome: Outcome) -> str | None:
    """Return the answer as text; None without an answer."""
    return None if outcome.result is None else as_text(outcome.result)


def finish_reason(outcome: Outcome, form: AnswerForm | None = None) -> str:
    """Return why a chat completion ended."""
    if not outcome.terminated:
        return "length"
    if outcome.cut_off is not None:
        return "length" if outcome.cut_off == "length" else "content_filter"
    is_call = form is not None and form.tool is not None and not form.tool.is_named
    return "tool_calls" if is_call else "stop"  # OpenAI says "stop" for a tool that the client has named


def chat_completion(
    id: str,
    model: str,
    created: int,
    outcome: Outcome,
    form: AnswerForm | None = None,
) -> dict[str, Any]:
    """Return a whole chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": answer_text(outcome) or outcome.summary or ""}
    if form is not None and form.tool is not None and outcome.terminated:
        message = {"role": "assistant", "content": None, "tool_calls": [_tool_call(id, form.tool, outcome)]}
    return _completion(id, model, created, message, finish_reason(outcome, form), outcome.subtree_usage)


def chat_rest(id: str, model: str, created: int, rest: Rest, form: AnswerForm | None) -> dict[str, Any]:
    """Return the chat completion with calls that the client is to carry out, or with a text: an utterance for its
    reply, or a description of the requests that a person has to decide. In place of a typed answer, the latter is a
    refusal.
    """
    text = BETWEEN.join(rest.list_texts(is_typed=form is not None)) or None
    is_refusal = form is not None and rest.wait is not None
    message: dict[str, Any] = {"role": "assistant", "content": None if is_refusal else text}
    if is_refusal:
        message["refusal"] = text
    if rest.calls:
        message["tool_calls"] = list(map(_call, rest.calls))
    completion = _completion(id, model, created, message, _get_reason(rest), rest.usage or NO_USAGE)
    return completion | get_metadata(rest)


def get_metadata(rest: Rest) -> dict[str, Any]:
    """Return the member of an answer that describes, for programs, the requests that a person has to decide."""
    return {} if rest.wait is None else {"metadata": rest.wait.metadata}


def _get_reason(rest: Rest) -> str:
    return "tool_calls" if rest.calls else "stop"


def _call(item: ToolCallItem) -> dict[str, Any]:
    return {"id": item.id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}


def _completion(
    id: str, model: str, created: int, message: dict[str, Any], reason: str, usage: Usage
) -> dict[str, Any]:
    message.setdefault("refusal", None)
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": chat_usage(usage),
    }


def _tool_call(id: str, tool: ClientTool, outcome: Outcome) -> dict[str, Any]:
    function = {"name": tool.name, "arguments": answer_text(outcome) or ""}
    return {"id": f"call_{id}", "type": "function", "function": function}


class ChatEncoder:
    """Chunks of one chat completion. With a form only the answer is content, because clients parse all of it."""

    def __init__(self, id: str, model: str, created: int, *, with_usage: bool, form: AnswerForm | None = None) -> None:
        self.form = form
        self._id = id
        self._frame = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._with_usage = with_usage
        self._segments = Segments(is_typed=form is not None)
        self._has_said = False

    def begin(self) -> Iterator[bytes]:
        """Yield the chunk that names the role."""
        yield self._chunk({"role": "assistant", "content": ""})

    def add(self, output: Output) -> Iterator[bytes]:
        """Yield the chunks of an output."""
        for piece in self._segments.add(output):
            yield from self._piece(piece)

    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the chunks of calls that the client is to carry out, or of a request to a person."""
        for text in rest.list_texts(is_typed=self.form is not None):
            if self.form is not None:
                yield self._chunk({"refusal": text})
                continue
            for piece in self._segments.finish(text):
                yield from self._piece(piece)
        for index, item in enumerate(rest.calls):
            yield self._chunk({"tool_calls": [{"index": index, **_call(item)}]})
        self._frame |= get_metadata(rest)
        yield from self._finish(_get_reason(rest), rest.usage or NO_USAGE)

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the chunks of the end."""
        tool = None if self.form is None else self.form.tool
        if tool is not None and outcome.terminated:
            yield self._chunk({"tool_calls": [{"index": 0, **_tool_call(self._id, tool, outcome)}]})
        else:
            for piece in self._segments.finish(answer_text(outcome)):
                yield from self._piece(piece)
        yield from self._finish(finish_reason(outcome, self.form), outcome.subtree_usage)

    def _finish(self, reason: str, usage: Usage) -> Iterator[bytes]:
        yield self._chunk({}, reason)
        if self._with_usage:
            yield _encode_data({**self._frame, "choices": [], "usage": chat_usage(usage)})
        yield DONE

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed."""
        yield _encode_data({"error": error})
        yield DONE

    def _piece(self, piece: Piece) -> Iterator[bytes]:
        if piece.kind != "message":
            return
        if piece.step == "begin" and self._has_said:
            yield self._chunk({"content": BETWEEN})
        elif piece.step == "grow":
            yield self._chunk({"content": piece.text})
        elif piece.step == "end":
            self._has_said = True

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        usage = {"usage": None} if self._with_usage else {}
        return _encode_data({**self._frame, "choices": [choice], **usage})


def response_object(
    id: str,
    model: str,
    created: int,
    status: str,
    output: list[dict[str, Any]],
    outcome: Outcome | None = None,
    previous: str | None = None,
    form: AnswerForm | None = None,
) -> dict[str, Any]:
    """Return a response."""
    error = incomplete = None
    if status == "failed":
        error = {"code": "server_error", "message": "the entity failed" if outcome is None else str(outcome.error)}
    if status == "incomplete":
        is_filtered = outcome is not None and outcome.cut_off == "filter"
        incomplete = {"reason": "content_filter" if is_filtered else "max_output_tokens"}
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": status,
        "model": model,
        "output": output,
        "error": error,
        "incomplete_details": incomplete,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "previous_response_id": previous,
        "text": {"format": (form and form.format) or {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "usage": None if outcome is None else response_usage(outcome.subtree_usage),
    }


def call_items(calls: Iterable[ToolCallItem]) -> list[dict[str, Any]]:
    """Return the items of calls that the client is to carry out."""
    return [
        {
            "id": f"fc_{item.id.removeprefix(CALL)}",
            "type": "function_call",
            "call_id": item.id,
            "name": item.name,
            "arguments": item.arguments,
            "status": "completed",
        }
        for item in calls
    ]


def response_rest(
    id: str, model: str, created: int, rest: Rest, previous: str | None = None, form: AnswerForm | None = None
) -> dict[str, Any]:
    """Return the response with calls that the client is to carry out, or with texts as for a chat completion."""
    items = [message_item(f"msg_{id}", rest.words)] if rest.words and form is None else []
    items += [] if rest.wait is None else [wait_item(id, rest.wait, form)]
    items += call_items(rest.calls)
    shown = response_object(id, model, created, get_rest_status(rest), items, previous=previous, form=form)
    return shown | {"usage": response_usage(rest.usage or NO_USAGE), **get_metadata(rest)}


def get_rest_status(rest: Rest) -> str:
    """Return the status of a response whose episode rests: one that waits for a person is retrieved again."""
    return "completed" if rest.wait is None else "in_progress"


def response_status(outcome: Outcome) -> str:
    """Return the status of a response whose episode has ended."""
    if outcome.terminated:
        return "completed" if outcome.cut_off is None else "incomplete"
    if outcome.reason in ("failed", "crashed"):
        return "failed"
    return "incomplete" if outcome.reason in ("truncated", "timeout", "budget") else "cancelled"


def message_item(id: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Return a message of a response."""
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": [text_part(text)]}


def wait_item(id: str, wait: PersonWait, form: AnswerForm | None) -> dict[str, Any]:
    """Return the message of a response about the requests that a person has to decide; a refusal in place of a typed
    answer.
    """
    part = text_part(wait.text) if form is None else {"type": "refusal", "refusal": wait.text}
    return {**message_item(f"{WAIT}{id}", ""), "content": [part]}


def answer_item(id: str, text: str, form: AnswerForm | None) -> dict[str, Any]:
    """Return the answer of a response: a message, or a call of the tool by which the client gets its answer."""
    if form is None or form.tool is None:
        return message_item(f"msg_{id}", text)
    return {
        "id": f"fc_{id}",
        "type": "function_call",
        "call_id": f"call_{id}",
        "name": form.tool.name,
        "arguments": text,
        "status": "completed",
    }


def text_part(text: str) -> dict[str, Any]:
    """Return a text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseEncoder:
    """Events of one response. With a form its only text is the answer, because clients parse all of it."""

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        previous: str | None = None,
        form: AnswerForm | None = None,
        *,
        is_queued: bool = False,
    ) -> None:
        self.form = form
        self._id, self._model, self._created, self._previous = id, model, created, previous
        self._segments = Segments(is_typed=form is not None)
        self._sequence = -1
        self._output: list[dict[str, Any]] = []
        self._is_queued = is_queued
        """Whether it waits for the end of another intent; with its first output it is in progress."""

    def begin(self) -> Iterator[bytes]:
        """Yield the events that precede all content."""
        status = "queued" if self._is_queued else "in_progress"
        for kind in ("response.created", f"response.{status}"):
            yield self._event(kind, response=self._response(status))

    def _start(self) -> Iterator[bytes]:
        if self._is_queued:
            self._is_queued = False
            yield self._event("response.in_progress", response=self._response("in_progress"))

    def add(self, output: Output) -> Iterator[bytes]:
        """Yield the events of an output."""
        yield from self._start()
        for piece in self._segments.add(output):
            yield from self._piece(piece)

    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the events of calls that the client is to carry out, or of a request to a person.

        The last event is the one after which clients read a response, also if its status says that it waits.
        """
        yield from self._start()
        for piece in self._segments.finish(rest.words if self.form is None else None):
            yield from self._piece(piece)
        if rest.wait is not None:
            yield from self._say_wait(wait_item(self._id, rest.wait, self.form))
        for item in call_items(rest.calls):
            yield from self._call_tool(item)
        more = {"usage": response_usage(rest.usage or NO_USAGE), **get_metadata(rest)}
        yield self._event("response.completed", response=self._response(get_rest_status(rest)) | more)

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the events of the end."""
        yield from self._start()
        text = answer_text(outcome)
        is_call = self.form is not None and self.form.tool is not None
        for piece in self._segments.finish(None if is_call else text):
            yield from self._piece(piece)
        if is_call and text is not None:
            yield from self._call_tool(answer_item(self._id, text, self.form))
        status = response_status(outcome)
        kind = status if status in ("completed", "incomplete") else "failed"
        yield self._event(f"response.{kind}", response=self._response(status, outcome))

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed."""
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": error["message"]}
        yield self._event("response.failed", response=response)

    def _response(self, status: str, outcome: Outcome | None = None) -> dict[str, Any]:
        return response_object(
            self._id, self._model, self._created, status, list(self._output), outcome, self._previous, self.form
        )

    def _piece(self, piece: Piece) -> Iterator[bytes]:
        yield from self._message(piece) if piece.kind == "message" else self._reasoning(piece)

    def _message(self, piece: Piece) -> Iterator[bytes]:
        at, item_id = piece.number, f"msg_{self._id}_{piece.number}"
        where = {"item_id": item_id, "output_index": at, "content_index": 0}
        match piece.step:
            case "begin":
                item = {**message_item(item_id, "", "in_progress"), "content": []}
                yield self._event("response.output_item.added", output_index=at, item=item)
                yield self._event("response.content_part.added", **where, part=text_part(""))
            case "grow":
                yield self._event("response.output_text.delta", **where, delta=piece.text, logprobs=[])
            case "end":
                item = message_item(item_id, piece.text)
                self._output.append(item)
                yield self._event("response.output_text.done", **where, text=piece.text, logprobs=[])
                yield self._event("response.content_part.done", **where, part=text_part(piece.text))
                yield self._event("response.output_item.done", output_index=at, item=item)

    def _say_wait(self, item: dict[str, Any]) -> Iterator[bytes]:
        at, (part,) = len(self._output), item["content"]
        where = {"item_id": item["id"], "output_index": at, "content_index": 0}
        field = "text" if self.form is None else "refusal"
        kind, text = f"response.{part['type']}", part[field]
        more: dict[str, Any] = {"logprobs": []} if self.form is None else {}
        begun = {**item, "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=at, item=begun)
        yield self._event("response.content_part.added", **where, part={**part, field: ""})
        yield self._event(f"{kind}.delta", **where, delta=text, **more)
        yield self._event(f"{kind}.done", **where, **{field: text}, **more)
        yield self._event("response.content_part.done", **where, part=part)
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _call_tool(self, item: dict[str, Any]) -> Iterator[bytes]:
        at = len(self._output)
        where, text = {"item_id": item["id"], "output_index": at}, item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=at, item=begun)
        yield self._event("response.function_call_arguments.delta", **where, delta=text)
        yield self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=text)
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _reasoning(self, piece: Piece) -> Iterator[bytes]:
        at, item_id = piece.number, f"rs_{self._id}_{piece.number}"
        where = {"item_id": item_id, "output_index": at, "summary_index": 0}
        match piece.step:
            case "begin":
                item = {"id": item_id, "type": "reasoning", "summary": [], "status": "in_progress"}
                yield self._event("response.output_item.added", output_index=at, item=item)
                part = {"type": "summary_text", "text": ""}
                yield self._event("response.reasoning_summary_part.added", **where, part=part)
            case "grow":
                yield self._event("response.reasoning_summary_text.delta", **where, delta=piece.text)
            case "end":
                part = {"type": "summary_text", "text": piece.text}
                done = {"id": item_id, "type": "reasoning", "summary": [part], "status": "completed"}
                self._output.append(done)
                yield self._event("response.reasoning_summary_text.done", **where, text=piece.text)
                yield self._event("response.reasoning_summary_part.done", **where, part=part)
                yield self._event("response.output_item.done", output_index=at, item=done)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._sequence += 1
        return f"event: {kind}\n".encode() + _encode_data({"type": kind, "sequence_number": self._sequence, **data})


def _encode_data(value: dict[str, Any]) -> bytes:
    return b"data: " + dump_json(value, mark=False) + b"\n\n"

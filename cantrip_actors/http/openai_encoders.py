"""Encoders of upserts into OpenAI's two dialects: chunks of a chat completion, events of a response."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from cantrip_actors.http.answer_form import AnswerForm
from cantrip_actors.http.episode_tools import CALL, Rest, ToolCallItem
from cantrip_actors.observe import Output
from cantrip_actors.observe.segments import Piece, Segments
from cantrip_actors.records.codec import dump_json
from cantrip_actors.terms.messages import Usage, as_text
from cantrip_actors.terms.outcome import Outcome

DONE: Final = b"data: [DONE]\n\n"
WAIT: Final = "msg_wait_"
"""The prefix of the id of a message about a request that a person has to decide."""
BETWEEN: Final = "\n\n"
"""The separator between two messages of one chat completion."""


class EpisodeEncoder(ABC):
    """Writes the answer of one episode in a dialect, as a stream or whole. With a `form` its only text is the answer,
    in that form, because clients parse all of it.
    """

    def __init__(self, form: AnswerForm | None) -> None:
        self.form = form
        self._tool = None if form is None else form.tool
        """The tool by which the client gets its answer."""
        self._segments = Segments(is_typed=form is not None)

    @abstractmethod
    def build(self, ended: Rest | Outcome) -> dict[str, Any]:
        """Return the whole answer."""

    @abstractmethod
    def begin(self) -> Iterator[bytes]:
        """Yield the parts that precede all content."""

    def add(self, output: Output) -> Iterator[bytes]:
        """Yield an output."""
        yield from self._write(self._segments.add(output))

    @abstractmethod
    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the end of an answer whose episode waits: for calls that the client is to carry out, or a person."""

    @abstractmethod
    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the end."""

    @abstractmethod
    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed with an error in OpenAI's shape."""

    def _list_texts(self, rest: Rest) -> list[str]:
        """Return the texts of an answer whose episode waits, in order; a typed answer has no words beside it."""
        texts = (None if self.form is not None else rest.words, None if rest.wait is None else rest.wait.text)
        return [text for text in texts if text]

    def _finish_texts(self, text: str | None) -> Iterator[bytes]:
        """Yield the rest of open items, and a last text."""
        yield from self._write(self._segments.finish(text))

    def _write(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        for piece in pieces:
            yield from self._add_piece(piece)

    @abstractmethod
    def _add_piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield a step of a text or a reasoning."""


def answer_text(outcome: Outcome) -> str | None:
    """Return the answer as text; None without an answer."""
    return None if outcome.result is None else as_text(outcome.result)


def get_metadata(rest: Rest) -> dict[str, Any]:
    """Return the member of an answer that describes, for programs, the requests that a person has to decide."""
    return {} if rest.wait is None else {"metadata": rest.wait.metadata}


# Chat completions


def _count_chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _make_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class ChatEncoder(EpisodeEncoder):
    """One chat completion, or its chunks."""

    def __init__(
        self, id: str, model: str, created: int, *, with_usage: bool = False, form: AnswerForm | None = None
    ) -> None:
        super().__init__(form)
        self._frame = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._with_usage = with_usage
        self._has_said = False

    def build(self, ended: Rest | Outcome) -> dict[str, Any]:
        """Return a whole chat completion.

        With texts it is an utterance for its reply, or a description of the requests that a person has to decide: in
        place of a typed answer, that is a refusal.
        """
        if isinstance(ended, Outcome):
            reason, usage, more = self._find_reason(ended), ended.subtree_usage, {}
            calls = self._list_calls(ended)
            message: dict[str, Any] = {"content": None if calls else answer_text(ended) or ended.summary or ""}
        else:
            reason, usage, more = _get_reason(ended), ended.usage, get_metadata(ended)
            calls = [_make_call(*item) for item in ended.calls]
            text = BETWEEN.join(self._list_texts(ended)) or None
            is_refusal = self.form is not None and ended.wait is not None
            message = {"content": None, "refusal": text} if is_refusal else {"content": text}
        message = {"role": "assistant", "refusal": None, **message, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        completion = {**self._frame, "object": "chat.completion", "choices": [choice]}
        return {**completion, "usage": _count_chat_usage(usage), **more}

    def _find_reason(self, outcome: Outcome) -> str:
        if not outcome.terminated:
            return "length"
        if outcome.cut_off is not None:
            return "length" if outcome.cut_off == "length" else "content_filter"
        is_call = self._tool is not None and not self._tool.is_named
        return "tool_calls" if is_call else "stop"  # OpenAI says "stop" for a tool that the client has named

    def _list_calls(self, outcome: Outcome) -> list[dict[str, Any]]:
        """Return the call that has the answer, if the client gets it by one."""
        if self._tool is None or not outcome.terminated:
            return []
        return [_make_call(f"call_{self._frame['id']}", self._tool.name, answer_text(outcome) or "")]

    def begin(self) -> Iterator[bytes]:
        """Yield the chunk that names the role."""
        yield self._chunk({"role": "assistant", "content": ""})

    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the chunks of calls that the client is to carry out, or of a request to a person."""
        for text in self._list_texts(rest):
            if self.form is not None:
                yield self._chunk({"refusal": text})
            else:
                yield from self._finish_texts(text)
        self._frame |= get_metadata(rest)
        yield from self._finish([_make_call(*item) for item in rest.calls], _get_reason(rest), rest.usage)

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the chunks of the end."""
        calls = self._list_calls(outcome)
        if not calls:
            yield from self._finish_texts(answer_text(outcome))
        yield from self._finish(calls, self._find_reason(outcome), outcome.subtree_usage)

    def _finish(self, calls: Iterable[dict[str, Any]], reason: str, usage: Usage) -> Iterator[bytes]:
        for index, call in enumerate(calls):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, reason)
        if self._with_usage:
            yield _encode_data({**self._frame, "choices": [], "usage": _count_chat_usage(usage)})
        yield DONE

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed."""
        yield _encode_data({"error": error})
        yield DONE

    def _add_piece(self, piece: Piece) -> Iterator[bytes]:
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


def _get_reason(rest: Rest) -> str:
    return "tool_calls" if rest.calls else "stop"


# Responses


def _count_response_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _make_call_item(item: ToolCallItem) -> dict[str, Any]:
    return {
        "id": f"fc_{item.id.removeprefix(CALL)}",
        "type": "function_call",
        "call_id": item.id,
        "name": item.name,
        "arguments": item.arguments,
        "status": "completed",
    }


def _make_message(id: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _make_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _find_status(ended: Rest | Outcome) -> str:
    """Return the status of a response: one that waits for a person is in progress, and is retrieved again."""
    if isinstance(ended, Rest):
        return "completed" if ended.wait is None else "in_progress"
    if ended.terminated:
        return "completed" if ended.cut_off is None else "incomplete"
    if ended.reason in ("failed", "crashed"):
        return "failed"
    return "incomplete" if ended.reason in ("truncated", "timeout", "budget") else "cancelled"


class ResponseEncoder(EpisodeEncoder):
    """One response, or its events."""

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        previous: str | None = None,
        form: AnswerForm | None = None,
        *,
        is_queued: bool = False,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(form)
        self._settings = settings
        """The fields of the request that the response repeats."""
        self._id, self._model, self._created, self._previous = id, model, created, previous
        self._sequence = -1
        self._output: list[dict[str, Any]] = []
        self._is_queued = is_queued
        """Whether it waits for the end of another intent; with its first output it is in progress."""

    def build(self, ended: Rest | Outcome) -> dict[str, Any]:
        """Return a whole response; with texts as for a chat completion."""
        if isinstance(ended, Outcome):
            text = answer_text(ended)
            self._output = [self._make_answer(text)] if text else []
        else:
            words = ended.words if self.form is None else None
            self._output = [_make_message(f"msg_{self._id}", _make_text(words))] if words else []
            self._output += [*self._list_waits(ended), *map(_make_call_item, ended.calls)]
        return self._finish(ended)

    def describe(self, status: str, outcome: Outcome | None = None) -> dict[str, Any]:
        """Return the response as it stands."""
        error = incomplete = None
        if status == "failed":
            error = {"code": "server_error", "message": "the entity failed" if outcome is None else str(outcome.error)}
        if status == "incomplete":
            is_filtered = outcome is not None and outcome.cut_off == "filter"
            incomplete = {"reason": "content_filter" if is_filtered else "max_output_tokens"}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": list(self._output),
            "error": error,
            "incomplete_details": incomplete,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **self._settings,
            "text": {"format": (self.form and self.form.format) or {"type": "text"}, **self._settings.get("text", {})},
            "previous_response_id": self._previous,
            "usage": None if outcome is None else _count_response_usage(outcome.subtree_usage),
        }

    def _finish(self, ended: Rest | Outcome) -> dict[str, Any]:
        """Return the response at its end, or where it rests."""
        if isinstance(ended, Outcome):
            return self.describe(_find_status(ended), ended)
        shown = self.describe(_find_status(ended)) | {"usage": _count_response_usage(ended.usage)}
        shown["metadata"] = {**shown["metadata"], **get_metadata(ended).get("metadata", {})}
        return shown

    def _make_answer(self, text: str) -> dict[str, Any]:
        """Return the answer: a message, or a call of the tool by which the client gets its answer."""
        if self._tool is None:
            return _make_message(f"msg_{self._id}", _make_text(text))
        return _make_call_item(ToolCallItem(f"{CALL}{self._id}", self._tool.name, text))

    def _list_waits(self, rest: Rest) -> list[dict[str, Any]]:
        """Return the message about the requests that a person has to decide; a refusal in place of a typed answer."""
        if rest.wait is None:
            return []
        text = rest.wait.text
        part = _make_text(text) if self.form is None else {"type": "refusal", "refusal": text}
        return [_make_message(f"{WAIT}{self._id}", part)]

    def begin(self) -> Iterator[bytes]:
        """Yield the events that precede all content."""
        status = "queued" if self._is_queued else "in_progress"
        for kind in ("response.created", f"response.{status}"):
            yield self._event(kind, response=self.describe(status))

    def _start(self) -> Iterator[bytes]:
        if self._is_queued:
            self._is_queued = False
            yield self._event("response.in_progress", response=self.describe("in_progress"))

    def add(self, output: Output) -> Iterator[bytes]:
        """Yield the events of an output."""
        yield from self._start()
        yield from super().add(output)

    def rest(self, rest: Rest) -> Iterator[bytes]:
        """Yield the events of calls that the client is to carry out, or of a request to a person.

        The last event is the one after which clients read a response, also if its status says that it waits.
        """
        yield from self._start()
        yield from self._finish_texts(rest.words if self.form is None else None)
        for item in self._list_waits(rest):
            yield from self._say_wait(item)
        for call in rest.calls:
            yield from self._call_tool(_make_call_item(call))
        yield self._event("response.completed", response=self._finish(rest))

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the events of the end."""
        yield from self._start()
        text = answer_text(outcome)
        yield from self._finish_texts(None if self._tool is not None else text)
        if self._tool is not None and text is not None:
            yield from self._call_tool(self._make_answer(text))
        status = _find_status(outcome)
        kind = status if status in ("completed", "incomplete") else "failed"
        yield self._event(f"response.{kind}", response=self._finish(outcome))

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of an episode that failed."""
        failure = {"code": "server_error", "message": error["message"]}
        yield self._event("response.failed", response=self.describe("failed") | {"error": failure})

    def _add_piece(self, piece: Piece) -> Iterator[bytes]:
        return self._write_message(piece) if piece.kind == "message" else self._write_reasoning(piece)

    def _write_message(self, piece: Piece) -> Iterator[bytes]:
        at, item_id = piece.number, f"msg_{self._id}_{piece.number}"
        where = {"item_id": item_id, "output_index": at, "content_index": 0}
        item = _make_message(item_id, _make_text(piece.text))
        match piece.step:
            case "begin":
                yield self._begin_item(at, item, content=[])
                yield self._event("response.content_part.added", **where, part=_make_text(piece.text))
            case "grow":
                yield self._event("response.output_text.delta", **where, delta=piece.text, logprobs=[])
            case "end":
                yield self._event("response.output_text.done", **where, text=piece.text, logprobs=[])
                yield self._event("response.content_part.done", **where, part=_make_text(piece.text))
                yield self._end_item(at, item)

    def _say_wait(self, item: dict[str, Any]) -> Iterator[bytes]:
        at, (part,) = len(self._output), item["content"]
        where = {"item_id": item["id"], "output_index": at, "content_index": 0}
        field = "text" if self.form is None else "refusal"
        kind, text = f"response.{part['type']}", part[field]
        more: dict[str, Any] = {"logprobs": []} if self.form is None else {}
        yield self._begin_item(at, item, content=[])
        yield self._event("response.content_part.added", **where, part={**part, field: ""})
        yield self._event(f"{kind}.delta", **where, delta=text, **more)
        yield self._event(f"{kind}.done", **where, **{field: text}, **more)
        yield self._event("response.content_part.done", **where, part=part)
        yield self._end_item(at, item)

    def _call_tool(self, item: dict[str, Any]) -> Iterator[bytes]:
        at = len(self._output)
        where, text = {"item_id": item["id"], "output_index": at}, item["arguments"]
        yield self._begin_item(at, item, arguments="")
        yield self._event("response.function_call_arguments.delta", **where, delta=text)
        yield self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=text)
        yield self._end_item(at, item)

    def _write_reasoning(self, piece: Piece) -> Iterator[bytes]:
        at, item_id = piece.number, f"rs_{self._id}_{piece.number}"
        where = {"item_id": item_id, "output_index": at, "summary_index": 0}
        part = {"type": "summary_text", "text": piece.text}
        item = {"id": item_id, "type": "reasoning", "summary": [part], "status": "completed"}
        match piece.step:
            case "begin":
                yield self._begin_item(at, item, summary=[])
                yield self._event("response.reasoning_summary_part.added", **where, part=part)
            case "grow":
                yield self._event("response.reasoning_summary_text.delta", **where, delta=piece.text)
            case "end":
                yield self._event("response.reasoning_summary_text.done", **where, text=piece.text)
                yield self._event("response.reasoning_summary_part.done", **where, part=part)
                yield self._end_item(at, item)

    def _begin_item(self, at: int, item: dict[str, Any], **empty: Any) -> bytes:
        begun = {**item, "status": "in_progress", **empty}
        return self._event("response.output_item.added", output_index=at, item=begun)

    def _end_item(self, at: int, item: dict[str, Any]) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.done", output_index=at, item=item)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._sequence += 1
        return f"event: {kind}\n".encode() + _encode_data({"type": kind, "sequence_number": self._sequence, **data})


def _encode_data(value: dict[str, Any]) -> bytes:
    return b"data: " + dump_json(value, mark=False) + b"\n\n"

"""Ollama's own interface: its Chat Completions lack the length of the context, thinking and log probabilities.

It cuts a longer context silently, so the length is sent where it is known. A call
cannot be forced; an answer that follows a schema can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from cantrip_actors.crystal.draft import Counts, Decoder, tokens
from cantrip_actors.crystal.encode import CallAnswer
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.families.chat import Chat, ChatWriter, write_functions
from cantrip_actors.crystal.images import Shown, Takes, estimate_by_pixels
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.schemas import keep_schema
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.crystal.typed_settings import OLLAMA, Table, read_logprobs
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import Message


class OllamaDecoder(Decoder):
    """The lines of an answer, each with a piece of its message."""

    provider: ClassVar[str] = "ollama"

    def read(self, value: dict[str, Any], name: str) -> None:  # noqa: ARG002
        """One piece, or a whole answer: they have one shape."""
        if value.get("error"):
            raise make_failure(
                self.draft.provider, 500 if self.draft.started else None, value
            )  # in the middle: its fault
        self.draft.start(value.get("model"))
        self.note(model=value.get("model"))
        message = mapping(value.get("message"))
        self.draft.flow("reasoning", message.get("thinking"))
        self.draft.flow("message", message.get("content"))
        for call in objects(message.get("tool_calls")):
            self._add_call(mapping(call.get("function")), call.get("id"))
        self.logprobs += read_logprobs(value.get("logprobs"))
        if value.get("done"):
            self._end_message(value)

    def _add_call(self, function: Mapping[str, Any], call_id: Any) -> None:
        item = self.draft.call(function.get("name"), call_id)
        arguments = function.get("arguments")
        self.draft.add(item, arguments if isinstance(arguments, str) else dump_exactly(arguments or {}).decode())
        self.draft.end(item)

    def _end_message(self, value: Mapping[str, Any]) -> None:
        self.draft.end_flow()
        self.counts = Counts(prompt=tokens(value.get("prompt_eval_count")), completion=tokens(value.get("eval_count")))
        self.note(stop_reason=value.get("done_reason") or "stop")
        self.complete = self.over = True

    def get_own_content(self) -> Any:
        """Return the thoughts, which are sent back with the calls that followed them."""
        thoughts = "".join(self.draft.thoughts)
        return {"thinking": thoughts} if thoughts and self.draft.calls else None


class OllamaWriter(ChatWriter):
    """Contexts as lists of messages with roles; a message has its images in a field of their own."""

    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """An utterance; the arguments of its calls are objects."""
        if not message.content and not ids:
            return
        utterance: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
        thoughts = mapping(self.find_own_content(message)).get("thinking") if message.blocks else None
        if thoughts:
            utterance["thinking"] = thoughts
        if ids:
            utterance["tool_calls"] = [
                {"function": {"name": call.gate, "arguments": {} if call.args is None else call.args}}
                for call in message.tool_calls
            ]
        yield dump_exactly(utterance)

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Results, one message each, with their images, then texts."""
        for answer in answers:
            parts = self.list_result_parts(answer, answer.text)
            yield dump_exactly({"role": "tool", "tool_name": answer.call.gate, **_write_content(parts)})
        for text in texts:
            yield dump_exactly({"role": "user", **_write_content(self.list_parts(text))})


def _write_content(parts: Sequence[str | File]) -> dict[str, Any]:
    """A text, and its images beside it."""
    images = [part.base64() for part in parts if not isinstance(part, str)]
    content: dict[str, Any] = {"content": "\n".join(part for part in parts if isinstance(part, str))}
    return {**content, "images": images} if images else content


class Ollama(Chat):
    """Ollama's own interface. `context` is the length of the context in tokens; None leaves it to the server."""

    provider: ClassVar[str] = "ollama"
    is_strict: ClassVar[bool] = False
    seller: ClassVar[str | None] = None
    base_url: ClassVar[str] = "http://localhost:11434"
    keys: ClassVar[tuple[str, ...]] = ("OLLAMA_API_KEY",)
    needs_key: ClassVar[bool] = False
    takes: ClassVar[Takes] = Takes(addresses=False)
    lessons: ClassVar[Mapping[str, str]] = {"effort": r"think", "schema": r"format|grammar"}
    level: ClassVar[str] = ""  # a model that refuses the level cannot think at all
    written: ClassVar[Table] = OLLAMA
    writes: ClassVar[type[ChatWriter]] = OllamaWriter
    path = "/api/chat"
    decodes: ClassVar[type[Decoder]] = OllamaDecoder
    lacks: ClassVar[frozenset[str]] = frozenset({"tool_choice"})
    fit = staticmethod(keep_schema)

    def __init__(self, model: str, facts: Any, *, context: int | None = None, **more: Any) -> None:
        super().__init__(model, facts, **more)
        self.context = context

    @property
    def levels(self) -> Mapping[str, str]:
        """Some models have three levels. Others can only think or not: for them thinking counts as the middle level."""
        if self._has_levels:
            return {"minimal": "low", "xhigh": "high", "max": "high"}
        return dict.fromkeys(("minimal", "low", "high", "xhigh", "max"), "medium")

    @property
    def _has_levels(self) -> bool:
        return self.model.startswith("gpt-oss")

    def write_thinking(self, effort: str) -> Mapping[str, Any]:
        """How much to think."""
        return {"think": effort if self._has_levels and effort != "none" else effort != "none"}

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ARG002
        """Yield the fields except the messages."""
        settings = query.settings
        options = {
            "num_ctx": self.context,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "num_predict": settings.max_tokens,
            "stop": list(settings.stop) or None,
        }
        present = {name: value for name, value in options.items() if value is not None}
        yield "", {"model": self.model, "stream": True, "options": present or None}
        if settings.effort is not None:
            yield "effort", self.write_thinking(settings.effort)
        if settings.schema is not None:
            yield "schema", {"format": self.fit_schema(settings.schema).schema}
        if query.tools and (query.choice != "none" or settings.schema is not None):
            yield "", {"tools": self.encoder.encode_tools(query.tools, write_functions)}
        if query.choice not in (None, "none"):
            yield "tool_choice", {"tool_choice": query.choice}

    image_tokens = staticmethod(estimate_by_pixels)

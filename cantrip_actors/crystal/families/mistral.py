"""Mistral: Chat Completions with thoughts as parts of a content, short ids of calls, and documents.

It refuses a request with a field that it does not know, and a user's message right after a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from cantrip_actors.crystal.draft import Decoder, tokens
from cantrip_actors.crystal.encode import CallAnswer
from cantrip_actors.crystal.families.chat import Chat, ChatDecoder, ChatWriter, list_content_parts
from cantrip_actors.crystal.images import Shown, Takes, estimate_by_pixels, make_data_url, name_file
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.crystal.typed_settings import MISTRAL, Table
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message


class MistralDecoder(ChatDecoder):
    """The stream of a completion."""

    provider: ClassVar[str] = "mistral"

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._thoughts: list[str] = []
        self._signature = ""

    def read(self, value: dict[str, Any], name: str) -> None:
        """One chunk, or a whole completion."""
        super().read(value, name)
        usage = mapping(value.get("usage"))
        cached = tokens(usage.get("num_cached_tokens"))
        if cached:
            self.counts = self.counts._replace(cached=cached)

    def get_own_content(self) -> Any:
        """The thoughts, which go back with the utterance."""
        if not self._thoughts:
            return None
        thought: dict[str, Any] = {"type": "thinking", "thinking": [{"type": "text", "text": "".join(self._thoughts)}]}
        return {"content": [{**thought, "signature": self._signature} if self._signature else thought]}

    def _read_delta(self, delta: Mapping[str, Any]) -> None:
        for part in objects(delta.get("content")):
            self._thoughts += [text for kind, text in list_content_parts([part]) if kind == "thinking"]
            signature = part.get("signature")
            self._signature = signature if isinstance(signature, str) and signature else self._signature
        super()._read_delta(delta)


class MistralWriter(ChatWriter):
    """Contexts as lists of messages with roles."""

    def write_utterance_content(self, message: Message, own: Mapping[str, Any]) -> Any:
        """Return the content of an utterance: its thoughts, then its text."""
        thoughts = own.get("content")
        if not thoughts:
            return message.content or ""
        return [*thoughts, {"type": "text", "text": message.content}] if message.content else thoughts

    def _list_own_fields(self, own: Mapping[str, Any], message: Message) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Results, one message each, with their images and files, then texts."""
        for answer in answers:
            content = self.write_content(self.list_result_parts(answer, answer.text))
            result = {
                "role": "tool",
                "tool_call_id": answer.id,
                "name": answer.call.gate,
                "content": content,
            }
            yield dump_exactly(result)
        if answers and texts:  # a user's message must not follow a result
            yield b'{"role":"assistant","content":"OK"}'
        for text in texts:
            yield dump_exactly({"role": "user", "content": self.write_content(self.list_parts(text))})

    def write_part(self, file: File) -> dict[str, Any]:
        """Return an image, a recording or a document."""
        if isinstance(file, Image):
            return super().write_part(file)
        if file.file_id is not None:
            return {"type": "file", "file_id": file.file_id}
        if file.media_type.startswith("audio/"):
            return {"type": "input_audio", "input_audio": file.base64()}
        return {"type": "document_url", "document_url": make_data_url(file), "document_name": name_file(file)}


class Mistral(Chat):
    """Mistral's chat completions."""

    provider: ClassVar[str] = "mistral"
    seller: ClassVar[str | None] = "mistral"
    base_url: ClassVar[str] = "https://api.mistral.ai/v1"
    keys: ClassVar[tuple[str, ...]] = ("MISTRAL_API_KEY",)
    most: ClassVar[str] = "max_tokens"
    takes: ClassVar[Takes] = Takes(
        files=("application/pdf", "audio/wav", "audio/mpeg"),
        fetched=("application/pdf",),
        ids=frozenset({"mistral"}),
    )
    written: ClassVar[Table] = MISTRAL
    writes: ClassVar[type[ChatWriter]] = MistralWriter
    empty: ClassVar[str | None] = ""
    decodes: ClassVar[type[Decoder]] = MistralDecoder
    lacks: ClassVar[frozenset[str]] = frozenset({"stream_options"})  # its streams report the usage without being asked

    def write_thinking(self, effort: str) -> Mapping[str, Any]:
        """The fields for the level of thinking; models that always think take `prompt_mode` instead of a level."""
        if self.model.startswith("magistral"):
            return {} if effort == "none" else {"prompt_mode": "reasoning"}
        return {"reasoning_effort": effort}

    image_tokens = staticmethod(estimate_by_pixels)

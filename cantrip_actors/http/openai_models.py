"""The bodies of OpenAI's API, with the fields that this service reads. Others are ignored, as the client expects."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cantrip_actors.http.bodies import Lenient


class JsonSchema(Lenient):
    """A JSON Schema by its name."""

    name: str | None = None
    description: str | None = None
    schema_: Any = Field(default=None, alias="schema")
    strict: bool | None = None


class AnswerFormat(JsonSchema):
    """The form of an answer."""

    type: str
    json_schema: JsonSchema | None = None


class TextSetting(Lenient):
    """How the text of a response is formed."""

    format: AnswerFormat | None = None


class _Shared(Lenient):
    model: str = Field(description="The name of a cantrip, or entity:NAME.")
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    n: int | None = None


class StreamOptions(Lenient):
    """What the stream of a chat completion has besides the answer."""

    include_usage: bool | None = None


class ChatBody(_Shared):
    """A chat completion."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    stream_options: StreamOptions | None = None
    functions: list[Any] | None = None
    response_format: AnswerFormat | None = None
    logprobs: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The form of the answer, if the client asks for one."""
        return self.response_format


class ResponseBody(_Shared):
    """A response."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    text: TextSetting | None = None
    top_logprobs: int | None = None
    conversation: Any = None
    prompt: Any = None

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The form of the answer, if the client asks for one."""
        return None if self.text is None else self.text.format


class AnyQuery(Lenient):
    """Parameters that clients add and that change nothing here: `beta`, `limit`."""


class ResponseQuery(Lenient):
    """How a response is retrieved; `include` changes nothing here."""

    stream: bool | None = None


class Ignored(Lenient):
    """Nothing that is read."""


class Opaque(BaseModel):
    """An object of OpenAI's API."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str


class ModelList(BaseModel):
    """The models: cantrips, and long-lived entities with a name."""

    object: str
    data: list[Opaque]

"""The bodies of OpenAI's API, with the fields that this service reads. Others are ignored, as the client expects."""

from __future__ import annotations

from typing import Any, Final, Literal

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
    verbosity: str | None = None


class _Shared(Lenient):
    model: str = Field(description="The name of a cantrip, or entity:NAME.")
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
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
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    truncation: str | None = None
    user: str | None = None

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The form of the answer, if the client asks for one."""
        return None if self.text is None else self.text.format


REPEATED: Final = (
    *("model", "background", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls"),
    *("prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "temperature", "tool_choice"),
    *("previous_response_id", "top_p", "truncation", "user"),
)
"""The fields of a request that its response repeats."""


class AnyQuery(Lenient):
    """Parameters that clients add and that change nothing here: `beta`, `limit`."""


class ResponseQuery(Lenient):
    """How a response is retrieved; `include` changes nothing here."""

    stream: bool | None = None


class ItemsQuery(Lenient):
    """Which items of a response are listed; `include` changes nothing here."""

    limit: int = Field(default=20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class Ignored(Lenient):
    """Nothing that is read."""


class Opaque(BaseModel):
    """An object of OpenAI's API."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str


class DeletedObject(Opaque):
    """An object of OpenAI's API that is deleted."""

    deleted: bool


class ItemList(BaseModel):
    """The items of a request."""

    object: str
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelList(BaseModel):
    """The models: cantrips, and long-lived entities with a name."""

    object: str
    data: list[Opaque]

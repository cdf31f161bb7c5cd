"""The bodies of Anthropic's API, with the fields that this service reads. Others are ignored, as the client expects."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from cantrip_actors.http.bodies import Lenient


class AnthropicMessage(Lenient):
    """A message of the conversation."""

    role: str
    content: str | list[dict[str, Any]]


class CountTokensBody(Lenient):
    """A request to count the tokens of messages."""

    model: str = Field(description="The name of a cantrip, or entity:NAME.")
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class AnthropicFormat(Lenient):
    """The form of an answer."""

    type: str
    schema_: Any = Field(default=None, alias="schema")


class OutputConfig(Lenient):
    """How the answer is formed."""

    format: AnthropicFormat | None = None


class MessagesBody(CountTokensBody):
    """A request for a message."""

    stream: bool | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: AnthropicFormat | None = Field(None, description="An earlier name of output_config.format.")
    mcp_servers: list[Any] | None = None
    container: Any = None


class TokenCount(BaseModel):
    """An estimate of tokens."""

    input_tokens: int

"""Conversions from the SDK's types to ours: tools and results of calls. Pure functions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Literal

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    CreateMessageRequestParams,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import Prompt as McpPrompt
from mcp_types import Tool as McpTool

from cantrip_actors.terms.errors import InvalidFile
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image, MessageParts, split_message
from cantrip_actors.terms.json_schema import find_misfits
from cantrip_actors.terms.server_prompt import EmbeddedText, Prompt, PromptMessage
from cantrip_actors.terms.tool_server import Tool, ToolResult


def tool_of(listed: McpTool) -> Tool:
    """Return a tool from its server's list."""
    hints = listed.annotations
    return Tool(
        listed.name,
        listed.description or listed.title or "",
        {"type": "object", **listed.input_schema},
        listed.output_schema,
        read_only=bool(hints and hints.read_only_hint),
        idempotent=bool(hints and hints.idempotent_hint),
    )


def prompt_of(listed: McpPrompt) -> Prompt:
    """Return a prompt as its server lists it."""
    arguments = listed.arguments or []
    return Prompt(
        listed.name,
        listed.description or listed.title or "",
        {argument.name: argument.description or argument.title or "" for argument in arguments},
        tuple(argument.name for argument in arguments if argument.required),
    )


def messages_of(result: GetPromptResult) -> list[PromptMessage]:
    """Return the messages of a prompt."""
    return [
        PromptMessage(message.role, content)
        for message in result.messages
        for content in _read_content(message.content)
    ]


def conversation(request: CreateMessageRequestParams) -> tuple[tuple[Literal["user", "assistant"], MessageParts], ...]:
    """Return a server's question to a model. Its system prompt is a message like the others: those are its words, too.

    Raises InvalidIntent for a message without content.
    """
    first: list[tuple[Literal["user", "assistant"], Any]] = (
        [("user", request.system_prompt)] if request.system_prompt else []
    )
    spoken = [
        (message.role, [part for block in message.content_as_list for part in _read_part(block)])
        for message in request.messages
    ]
    return tuple((role, split_message(parts, "sampling: expected a text")) for role, parts in [*first, *spoken])


def _read_content(block: Any) -> Iterator[str | File | EmbeddedText]:
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        yield EmbeddedText(block.resource.uri, block.resource.text)
    else:
        yield from _read_part(block)


def convert_result(result: CallToolResult, tool: Tool) -> ToolResult:
    """Return the result of a call: its structured content if it has any, else its text; with images and files."""
    parts = [part for block in result.content for part in _read_part(block)]
    texts = [part for part in parts if isinstance(part, str)]
    files = [part for part in parts if not isinstance(part, str)]
    if result.is_error:
        return ToolResult("\n".join(texts) or f"{tool.name} failed and does not say why", is_error=True)
    value: Any = result.structured_content
    if tool.output is not None:
        if value is None:
            return ToolResult(
                f"{tool.name} has an output schema and returned nothing that is structured", is_error=True
            )
        problems = find_misfits(value, tool.output, foreign=True)
        if problems:
            problem_text = "; ".join(problems).replace("argument", "result")
            return ToolResult(f"{tool.name} returned what its own output schema forbids: {problem_text}", is_error=True)
    if value is None:
        value = "\n".join(texts)
        return ToolResult([*([value] if value else []), *files] if files else value)
    return ToolResult([value, *files] if files else value)


def read(result: ReadResourceResult) -> ToolResult:
    """Return the content of a resource: its text, or a list with its texts, images and files."""
    parts = [_read_resource(content) for content in result.contents]
    if all(isinstance(part, str) for part in parts):
        return ToolResult("\n".join(map(str, parts)))
    return ToolResult(parts)


def _read_resource(resource: TextResourceContents | BlobResourceContents) -> str | File:
    if isinstance(resource, TextResourceContents):
        return resource.text
    media_type = resource.mime_type or ""
    return _read_file(resource.blob, media_type, Image if media_type.startswith("image/") else File)


def _read_part(block: Any) -> Iterator[str | File]:
    if isinstance(block, TextContent):
        yield block.text
    elif isinstance(block, ImageContent):
        yield _read_file(block.data, block.mime_type, Image)
    elif isinstance(block, AudioContent):
        yield _read_file(block.data, block.mime_type, File)
    elif isinstance(block, ResourceLink):
        description = f": {block.description}" if block.description else ""
        yield f"[resource {block.title or block.name} at {block.uri}{description}]"
    elif isinstance(block, EmbeddedResource):
        yield _read_resource(block.resource)


def _read_file(data: str, media_type: str, kind: type[File]) -> str | File:
    """Return a file, or a text about a file that an entity cannot have."""
    try:
        content = base64.b64decode(data, validate=True)
        return kind(content) if kind is Image else kind(content, media_type=media_type or None)
    except (binascii.Error, InvalidFile) as problem:
        return f"[a file of the type {media_type or 'unknown'} that cannot be shown: {problem}]"

"""Conversions from the SDK's types to ours: tools and results of calls. Pure functions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

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
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from cantrip_actors.mcp.repeats import leave_out, list_values, repeats
from cantrip_actors.terms.arguments import show
from cantrip_actors.terms.errors import InvalidFile
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image, MessageParts, split_message
from cantrip_actors.terms.json_schema import OVER_STEPS, find_misfits
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.server_prompt import EmbeddedText, Prompt, PromptMessage
from cantrip_actors.terms.tool_server import Tool, ToolResult

FILES: Final = 20
"""Images and files that one result may have."""

TITLE: Final = 200
"""Characters of a tool's title that are kept."""

LISTS: Final = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
"""The lists of a server: the field of a result that has the entries, and the method that asks for it."""


def complete_schemas(result: dict[str, Any]) -> None:
    """Complete the parameters of the tools in a result, before the SDK checks it.

    They are those of an object by the protocol. Many servers leave that out, and write null where there is nothing.
    """
    tools = result.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and isinstance(schema := tool.get("inputSchema") or {}, dict):
            stated = {name: value for name, value in schema.items() if value is not None}
            tool["inputSchema"] = {"type": "object", **stated}


def leave_out_invalid(result: dict[str, Any], version: str) -> dict[str, str]:
    """Remove the invalid entries from a page of a server's list, and return the fault of each by its name.

    The SDK would refuse the whole page. A page without a valid entry stays as it is: the SDK's error describes it.
    """
    listed = next((name for name in LISTS if isinstance(result.get(name), list)), None)
    if listed is None or not _find_entry_fault(listed, version, result):
        return {}
    entries = result[listed]
    faults = [_find_entry_fault(listed, version, {**result, listed: [entry]}) for entry in entries]
    result[listed] = [entry for entry, fault in zip(entries, faults, strict=True) if not fault] or entries
    return {_name_entry(entry): fault for entry, fault in zip(entries, faults, strict=True) if fault}


def _find_entry_fault(listed: str, version: str, result: Mapping[str, Any]) -> str:
    """Return the first fault of the entries of a page; empty if they are valid."""
    try:
        parse_server_result(LISTS[listed], version, result)
    except ValidationError as problem:
        for error in problem.errors(include_url=False, include_context=False, include_input=False):
            match error["loc"]:
                case (field, int(), *place) if field == listed:
                    return ": ".join(filter(None, (".".join(map(str, place)), error["msg"])))
    return ""


def _name_entry(entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else entry
    return name[:TITLE] if isinstance(name, str) else show(name)


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
        title=(listed.title or (hints.title if hints else None) or "")[:TITLE],
        destructive=hints.destructive_hint if hints else None,
        open_world=hints.open_world_hint if hints else None,
        needs_task=listed.execution is not None and listed.execution.task_support == "required",
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
    """Return the result of a call: its content in order, then the structured content that does not repeat it.

    A text that only repeats structured content is left out, and so are media that structured content repeats: the
    content has them as images and files.
    """
    structured = result.structured_content
    repeated = list_values(structured)
    read_blocks = [
        (_find_data(block), list(_read_part(block)))
        for block in result.content
        if not (isinstance(block, TextContent) and repeats(block.text, repeated))
    ]
    parts = [part for _, block_parts in read_blocks for part in block_parts]
    texts = [part for part in parts if isinstance(part, str)]
    if result.is_error:
        why = "\n".join(texts) or ("" if structured is None else as_text(structured))
        return ToolResult(why or f"{tool.name} failed and does not say why", is_error=True)
    problem = _find_misfit(structured, tool)
    if problem is not None:
        return ToolResult(problem, is_error=True)
    if structured is None and len(texts) == len(parts):
        return ToolResult("\n".join(texts))
    if not parts:
        return ToolResult(structured)
    files = {data: block_parts[0] for data, block_parts in read_blocks if data}
    return ToolResult([*_bound(parts), *leave_out(structured, files)])


def _find_misfit(structured: Any, tool: Tool) -> str | None:
    """Return how the structured content of a result misses the tool's own schema; None if it does not."""
    if tool.output is None:
        return None
    if structured is None:
        return f"{tool.name} has an output schema and returned nothing that is structured"
    problems = find_misfits(structured, tool.output, foreign=True)
    if not problems or problems == [OVER_STEPS]:  # the caller cannot make the server return less
        return None
    return (
        f"{tool.name} returned what its own output schema forbids: {'; '.join(problems).replace('argument', 'result')}"
    )


def _find_data(block: Any) -> str:
    """Return the base64 of a block of media; empty for other blocks."""
    if isinstance(block, ImageContent | AudioContent):
        return block.data
    is_blob = isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents)
    return block.resource.blob if is_blob else ""


def _bound(parts: Sequence[str | File]) -> Iterator[str | File]:
    """Yield the parts of a result with at most `FILES` files."""
    files = 0
    for part in parts:
        files += isinstance(part, File)
        if not isinstance(part, File) or files <= FILES:
            yield part
    if files > FILES:
        yield f"[{files - FILES:,} more files left out: one result has at most {FILES}]"


def read(result: ReadResourceResult) -> ToolResult:
    """Return the content of a resource: its text, or a list with its texts, images and files."""
    parts = [_read_resource(content) for content in result.contents]
    if all(isinstance(part, str) for part in parts):
        return ToolResult("\n".join(map(str, parts)))
    return ToolResult(list(_bound(parts)))


def _read_resource(resource: TextResourceContents | BlobResourceContents) -> str | File:
    if isinstance(resource, TextResourceContents):
        return resource.text
    media_type = resource.mime_type or ""
    kind = Image if media_type.startswith("image/") else File
    return _read_file(resource.blob, media_type, kind, resource.uri.partition("?")[0].rpartition("/")[2])


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


def _read_file(data: str, media_type: str, kind: type[File], filename: str = "") -> str | File:
    """Return a file, or a text about a file that an entity cannot have."""
    try:
        content = base64.b64decode(data, validate=True)
        if kind is Image:
            return Image(content)
        return File(content, filename=filename or None, media_type=media_type or None)
    except (binascii.Error, InvalidFile) as problem:
        return f"[a file of the type {media_type or 'unknown'} that cannot be shown: {problem}]"

"""The content blocks of a prompt, as an intent and data for the entity.

Texts, links and images become the intent, in their order. Embedded texts (such as an open file) are data: they go into
the context, and never read like words of the user.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cantrip_actors import File, Image, InvalidFile
from cantrip_actors.acp.jsonrpc import INVALID_PARAMS, InvalidParams, RequestError
from cantrip_actors.terms.arguments import check_kind


class EditorPrompt(NamedTuple):
    """A prompt: its words, images and files in order; the embedded texts, by their URIs; further data."""

    parts: tuple[str | File, ...]
    resources: Mapping[str, Any]
    data: Mapping[str, Any] = MappingProxyType({})

    @property
    def text(self) -> str:
        """The words without images and files."""
        return "\n".join(part for part in self.parts if isinstance(part, str)).strip()

    @property
    def intent(self) -> Any:
        """The intent for an entity: a text, or a list of texts, images and files."""
        return self.text if all(isinstance(part, str) for part in self.parts) else list(self.parts)

    @property
    def context(self) -> dict[str, Any]:
        """The data that goes with the intent."""
        return {**({"resources": dict(self.resources)} if self.resources else {}), **self.data}


def read_prompt(blocks: Any) -> EditorPrompt:
    """Return the prompt of content blocks, or of a bare text. Raises RequestError."""
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}]
    if isinstance(blocks, Mapping):
        blocks = [blocks]
    check_kind("prompt", blocks, list, "a list of content blocks", InvalidParams)
    parts: list[str | File] = []
    resources: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        where = f"prompt[{number}]"
        check_kind(where, block, Mapping, "a content block", InvalidParams)
        part = _read_block(block, where, resources)
        if part is not None:
            parts.append(part)
    prompt = EditorPrompt(tuple(parts), resources)
    if not prompt.text and not any(isinstance(part, File) for part in parts):
        raise RequestError(INVALID_PARAMS, "prompt: expected a text")
    return prompt if prompt.text else prompt._replace(parts=("Look at this.", *parts))


def _read_block(block: Mapping[str, Any], where: str, resources: dict[str, Any]) -> str | File | None:
    match block.get("type"):
        case "text":
            return read_text(block, "text", where)
        case "image":
            return _read_file(Image, read_text(block, "data", where), where)
        case "resource_link":
            uri = read_text(block, "uri", where)
            return f"[{block.get('name') or uri}]({uri})"
        case "resource":
            return _read_resource(block.get("resource"), f"{where}.resource", resources)
        case kind:
            raise RequestError(
                INVALID_PARAMS, f"{where}: expected text, image, resource or resource_link, got {kind!r}"
            )


def _read_resource(value: Any, where: str, resources: dict[str, Any]) -> str | File:
    resource = value if isinstance(value, Mapping) else {}
    uri = read_text(resource, "uri", where)
    if isinstance(resource.get("text"), str):
        resources[uri] = resource["text"]
        return f"[{uri}]"
    data = read_text(resource, "blob", where)
    is_image = str(resource.get("mimeType") or "").startswith("image/")
    return _read_file(Image if is_image else File, data, where)


def read_text(params: Mapping[str, Any], name: str, where: str = "") -> str:
    """Return a text among parameters. Raises RequestError if it is missing or is not a text."""
    value: Any = params.get(name)
    check_kind(f"{where}.{name}".lstrip("."), value, str, "a text", InvalidParams)
    return str(value)


def _read_file(kind: type[File], data: str, where: str) -> File:
    try:
        return kind(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError) as error:  # InvalidFile is a ValueError
        reason = str(error) if isinstance(error, InvalidFile) else f"expected base64: {error}"
        raise RequestError(INVALID_PARAMS, f"{where}: {reason}") from None

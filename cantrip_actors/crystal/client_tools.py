"""Results of the tools that OpenAI defines and the client runs, in the shapes of its API.

The model calls `shell`, `local_shell`, `apply_patch`, `tool_search` or `computer` because the options offer them; a
gate of that name answers. The gate may return plain text, or a mapping with the fields of the shape. The gate
`mcp_approval` answers when the provider asks whether it may call a tool of an MCP server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from cantrip_actors.crystal.encode import CallAnswer
from cantrip_actors.crystal.images import make_data_url
from cantrip_actors.crystal.shapes import mapping, objects, parse_object
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.own_gate_names import APPROVED

APPROVAL_REQUEST: Final = "mcp_approval_request"
"""The item with which the provider asks whether it may call a tool of an MCP server; `id` is that of our call."""

_OURS: Final = (
    "shell_call",
    "local_shell_call",
    "apply_patch_call",
    "tool_search_call",
    "computer_call",
    APPROVAL_REQUEST,
)
"""A tuple, because a recorded type may be a value that has no hash."""


def make_output_item(call: Mapping[str, Any], answer: CallAnswer, parts: Sequence[str | File]) -> dict[str, Any] | None:
    """Return the item that answers a call of such a tool, None for others. `parts` are its text and images."""
    if call.get("type") not in _OURS:  # all results pass here, and most are of other gates
        return None
    if call.get("type") == APPROVAL_REQUEST:
        is_approved = answer.content == APPROVED and not answer.is_error
        decision = {"type": "mcp_approval_response", "approval_request_id": answer.id, "approve": is_approved}
        return decision if is_approved else {**decision, "reason": answer.content}
    named = {"type": f"{call.get('type')}_output", "call_id": answer.id}
    result = parse_object(answer.content) or {}
    match call.get("type"):
        case "shell_call":
            printed = result or {"stderr" if answer.is_error else "stdout": answer.content}
            entries = objects(result.get("output")) or [printed]
            most = mapping(call.get("action")).get("max_output_length")
            item = {**named, "output": [_make_command_output(entry, failed=answer.is_error) for entry in entries]}
            return item if most is None else {**item, "max_output_length": most}
        case "local_shell_call":
            text = answer.content if result else orjson.dumps(answer.text).decode()
            return {"type": "local_shell_call_output", "id": answer.id, "output": text}
        case "apply_patch_call":
            failed = answer.is_error or result.get("status") == "failed"
            output = result.get("output", answer.content)
            return {**named, "status": "failed" if failed else "completed", "output": str(output)}
        case "tool_search_call":
            tools = [] if answer.is_error else _parse_tools(answer.content)
            return {
                "type": "tool_search_output",
                "call_id": answer.id,
                "execution": "client",
                "status": "completed",
                "tools": tools,
            }
        case _:
            image = next((part for part in parts if isinstance(part, Image)), None)
            if image is None:
                return None
            return {**named, "output": {"type": "computer_screenshot", "image_url": make_data_url(image)}}


def _make_command_output(entry: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
    """Return the output of one command, and how it ended."""
    code = entry.get("exit_code", mapping(entry.get("outcome")).get("exit_code"))
    outcome: dict[str, Any] = {"type": "exit", "exit_code": code if isinstance(code, int) else int(failed)}
    if entry.get("timed_out") or mapping(entry.get("outcome")).get("type") == "timeout":
        outcome = {"type": "timeout"}
    return {"stdout": str(entry.get("stdout") or ""), "stderr": str(entry.get("stderr") or ""), "outcome": outcome}


def _parse_tools(content: str) -> list[dict[str, Any]]:
    """Return the found tools: a list, or a mapping with `tools`; a tool without a type is a function."""
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        parsed = []
    tools = objects(parsed.get("tools") if isinstance(parsed, Mapping) else parsed)
    function = {"type": "function", "parameters": {"type": "object", "properties": {}}, "strict": False}
    return [tool if "type" in tool else {**function, **tool} for tool in tools if tool.get("type") or tool.get("name")]

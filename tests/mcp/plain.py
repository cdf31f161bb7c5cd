"""A server of tools and prompts that starts at once, because it imports no SDK: `python plain.py PROMPT…`.

It speaks the protocol of 2026. The prompts that it has are its arguments.
"""

import json
import os
import sys
from typing import Any

INTEGERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOLS: dict[str, dict[str, Any]] = {
    "add": {
        "description": "Add two numbers.",
        "inputSchema": INTEGERS,
        "outputSchema": {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]},
        "annotations": {"readOnlyHint": True},
    },
    "fail": {"inputSchema": {"type": "object", "properties": {"why": {"type": "string"}}}},
    "wait": {"inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}}},
    "environment": {"inputSchema": {"type": "object"}},
    "process": {"inputSchema": {"type": "object"}},
    "die": {"inputSchema": {"type": "object"}},
}
PROMPTS: dict[str, dict[str, Any]] = {
    "review": {
        "description": "Review a file.",
        "arguments": [{"name": "file", "required": True}, {"name": "style", "required": False}],
    },
    "standup": {"description": "Prepare the standup."},
    "die": {"description": "End the process."},
}
TEXTS = {"standup": "What happened yesterday?"}
KINDS: dict[str, Any] = {"tools": {}, "prompts": {}}


def note(line: str) -> None:
    """Tell another process what the tools notice."""
    if "NOTED" in os.environ:
        with open(os.environ["NOTED"], "a", encoding="utf-8") as file:  # noqa: PTH123  # pathlib takes time to import
            file.write(f"{line}\n")


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a tool; None if it has none yet."""
    structured: Any = None
    if name == "wait":
        note("waits")
        return None
    if name == "die":
        os._exit(3)
    elif name == "fail":
        return {"content": [{"type": "text", "text": f"no: {arguments['why']}"}], "isError": True}
    elif name == "add":
        structured = {"result": arguments["a"] + arguments["b"]}
    elif name == "environment":
        structured = {"result": sorted(os.environ)}
    text = str(os.getpid()) if structured is None else json.dumps(structured["result"])
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": False}
    return result if structured is None else {**result, "structuredContent": structured}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None if it has none yet."""
    if method == "server/discover":
        return {"supportedVersions": ["2026-07-28"], "capabilities": KINDS, "cacheScope": "private", "ttlMs": 0}
    if method == "tools/list":
        return {"tools": [{"name": name, **tool} for name, tool in TOOLS.items()], "cacheScope": "private", "ttlMs": 0}
    if method == "prompts/list":
        prompts = [{"name": name, **PROMPTS[name]} for name in sys.argv[1:]]
        return {"prompts": prompts, "cacheScope": "private", "ttlMs": 0}
    if method == "prompts/get":
        if params["name"] == "die":
            os._exit(3)
        content = {"type": "text", "text": TEXTS[params["name"]]}
        return {"messages": [{"role": "user", "content": content}]}
    return call(params["name"], params.get("arguments") or {})


for asked in map(json.loads, sys.stdin):
    if asked.get("method") == "notifications/cancelled":
        note("cancelled")
    elif "id" in asked:
        result = answer(asked["method"], asked["params"])
        if result is not None:
            told = {"jsonrpc": "2.0", "id": asked["id"], "result": {"resultType": "complete", **result}}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()

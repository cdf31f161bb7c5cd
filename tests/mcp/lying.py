"""A program that speaks MCP badly: `python lying.py MODE`."""

import json
import sys
from typing import Any

MODE = sys.argv[1]
TOOL = {"name": "f", "inputSchema": {"type": "object"}}
GREETING = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "x", "version": "1"}}
LISTS: dict[str, Any] = {
    "list": "no list",
    "schema": [{"name": "f", "inputSchema": {"type": "nothing"}}],
    "one schema": [
        TOOL,
        {"name": "draft_4", "inputSchema": {"type": "object", "properties": {"n": {"exclusiveMinimum": True}}}},
    ],
    "faults": [
        TOOL,
        {**TOOL, "name": 7},
        {"name": "text", "inputSchema": "object"},
        {**TOOL, "name": "hints", "annotations": {"readOnlyHint": "perhaps"}},
        {**TOOL, "name": "words", "description": ["a", "b"]},
        "no object",
    ],
    "no type": [{"name": "f", "inputSchema": {"anyOf": [{"required": ["n"]}, {}], "properties": None}}],
    "null": [{"name": "f", "inputSchema": None}],
    "missing": [{"name": "f"}],
    "many": [{**TOOL, "name": f"f{number}"} for number in range(1001)],
}
PROMPTS: dict[str, Any] = {
    "prompts": [{"title": "no name"}],
    "faults": [{"title": "no name"}, {"name": "p"}],
    "prompt": [{"name": "p"}],
}
RESULTS: dict[str, Any] = {
    "content": {"content": [{"type": "alien"}]},
    "no content": {},
    "half": {"content": [{"type": "text", "text": "\ud83d!"}]},
}

for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked.get("method"), {"result": {}}
    if method == "initialize":
        kinds = {"tools": {}, "prompts": {}, "resources": {}} if MODE == "faults" else {"tools": {}}
        answer = {"result": {"hello": 1} if MODE == "greeting" else {**GREETING, "capabilities": kinds}}
    elif method == "tools/list":
        answer = {"result": {"tools": LISTS.get(MODE, [TOOL])}}
    elif method == "prompts/list":
        answer = {"result": {"prompts": PROMPTS.get(MODE, [])}}
    elif method == "resources/list":
        answer = {"result": {"resources": [{"name": "no address"}, {"name": "n", "uri": "memo:n"}]}}
    elif method == "resources/templates/list":
        answer = {"result": {"resourceTemplates": []}}
    elif method == "prompts/get":
        answer = {"result": {"messages": [{"role": "system", "content": {"type": "text", "text": "obey"}}]}}
    elif method == "tools/call" and MODE == "busy":
        answer = {"error": {"code": -32000, "message": "too many requests: wait a minute"}}
    elif method == "tools/call" and MODE == "text as error":
        answer = {"error": "out of order"}
    elif method == "tools/call" and MODE == "no answer":
        answer = {}
    elif method == "tools/call":
        answer = {"result": RESULTS.get(MODE, {"content": [{"type": "text", "text": "done"}]})}
    elif method == "server/discover":
        answer = {"error": {"code": -32601, "message": "unknown"}}
    if "id" in asked:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}) + "\n")
        sys.stdout.flush()

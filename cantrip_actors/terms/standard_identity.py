"""The standard gates as they enter content ids: their descriptions and schemas when ids were fixed.

A gate may get a better text or another parameter later. Never change this table: it keeps the ids of cantrips with that
gate unchanged. A standard gate that is not in the table enters by its name only.
"""

from __future__ import annotations

import json
from typing import Any, Final

_TABLE: Final = """{
 "done": ["Finish: the task is complete and this is its result.",
  {"additionalProperties": false, "required": ["answer"], "type": "object", "properties": {
   "answer": {"description": "the answer, or the result of the task"}
  }}],
 "call_agent": ["Have a child entity achieve an intent; waits for it and returns its answer.",
  {"additionalProperties": false, "required": ["intent"], "type": "object", "properties": {
   "intent": {"description": "what the child is to achieve", "minLength": 1, "type": "string"},
   "context": {"default": null, "description": "data for the child"},
   "system_prompt": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null,
    "description": "the child's call; left out: yours"},
   "gates": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": null,
    "description": "the child's gates, some of yours; left out: all"},
   "crystal": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null,
    "description": "the name of the child's crystal"},
   "max_depth": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "how deep the child may delegate"},
   "max_turns": {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "the child's turns"},
   "timeout": {"anyOf": [{"exclusiveMinimum": 0, "type": "number"}, {"type": "null"}], "default": null,
    "description": "seconds that the child may take"},
   "max_tokens": {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "tokens that the child may use"},
   "max_gate_calls": {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "calls that one turn of the child may make"},
   "max_compute": {"anyOf": [{"exclusiveMinimum": 0, "type": "number"}, {"type": "null"}], "default": null,
    "description": "seconds that a program of the child may compute"},
   "max_memory": {"anyOf": [{"minimum": 1048576, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "bytes that such a program may use"},
   "max_output": {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "characters kept of what such a program prints"},
   "remove_gates": {"default": [], "description": "gates that the child is not to have",
    "items": {"type": "string"}, "type": "array"},
   "require_done_tool": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": null,
    "description": "whether only done ends the child"}
  }}],
 "call_agent_batch": ["Have several child entities work at once; returns their answers in order.",
  {"$defs": {"AgentRequest": {}}, "additionalProperties": false, "required": ["intents"], "type": "object",
   "properties": {
   "intents": {"description": "a request (or just an intent) for each child",
    "items": {"anyOf": [{"$ref": "#/$defs/AgentRequest"}, {"type": "string"}]}, "minItems": 1, "type": "array"}
  }}],
 "post": ["Send a message to another entity, which takes it as an intent; returns at once.",
  {"additionalProperties": false, "required": ["to", "message"], "type": "object", "properties": {
   "to": {"description": "the name of the entity, or its id", "minLength": 1, "type": "string"},
   "message": {"description": "what it is told", "minLength": 1, "type": "string"}
  }}],
 "ask": ["Send a message to another entity, wait until it has dealt with it, and return its answer.",
  {"additionalProperties": false, "required": ["to", "message"], "type": "object", "properties": {
   "to": {"description": "the name of the entity, or its id", "minLength": 1, "type": "string"},
   "message": {"description": "what it is told", "minLength": 1, "type": "string"}
  }}],
 "echo": ["Give back the text.",
  {"additionalProperties": false, "required": ["text"], "type": "object", "properties": {
   "text": {"type": "string"}
  }}],
 "fetch": ["Get the text behind a URL; redirects are followed.",
  {"additionalProperties": false, "required": ["url"], "type": "object", "properties": {
   "url": {"description": "an http or https address", "maxLength": 8192, "type": "string"}
  }}],
 "list": ["List the files and folders in a folder, as paths from the root folder; a folder ends with a slash.",
  {"additionalProperties": false, "type": "object", "properties": {
   "path": {"default": ".", "description": "a folder, from the root folder", "type": "string"},
   "recursive": {"default": false, "description": "also what lies in its folders, hidden ones left out",
    "type": "boolean"},
   "offset": {"default": 0, "description": "entries to skip, to go on with a long listing", "minimum": 0,
    "type": "integer"}
  }}],
 "read": ["Read a text file. A result that is too long is cut, and ends with a note how to go on.",
  {"additionalProperties": false, "required": ["path"], "type": "object", "properties": {
   "path": {"description": "path of a text file, from the root folder", "type": "string"},
   "offset": {"default": 1, "description": "the first line, counted from 1", "minimum": 1, "type": "integer"},
   "limit": {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": null,
    "description": "how many lines; left out: as many as fit"},
   "column": {"default": 0, "description": "characters of the first line to skip", "minimum": 0, "type": "integer"}
  }}],
 "search":
  ["Search text files for lines that contain the pattern, as \\"path:line: text\\". Hidden folders are left out.",
  {"additionalProperties": false, "required": ["pattern"], "type": "object", "properties": {
   "pattern": {"description": "what to look for", "maxLength": 1000, "minLength": 1, "type": "string"},
   "path": {"default": ".", "description": "a file or a folder to look in, from the root folder", "type": "string"},
   "regex": {"default": false, "description": "the pattern is a Python regular expression", "type": "boolean"},
   "ignore_case": {"default": false, "type": "boolean"},
   "limit": {"default": 100, "description": "how many matching lines to show", "maximum": 1000, "minimum": 1,
    "type": "integer"}
  }}],
 "write": ["Write a text file, new or in place of the old one.",
  {"additionalProperties": false, "required": ["path", "content"], "type": "object", "properties": {
   "path": {"description": "path of the file, from the root folder; missing folders are made", "type": "string"},
   "content": {"description": "the whole text of the file", "type": "string"}
  }}]
}"""

_REQUEST: Final = (
    "What `call_agent` asks for: a child on a derived intent (SPEC 5.1). What is left out comes from the parent."
)


def _read() -> dict[str, tuple[str, dict[str, Any]]]:
    table = {name: (description, schema) for name, (description, schema) in json.loads(_TABLE).items()}
    request = table["call_agent"][1] | {"description": _REQUEST}
    table["call_agent_batch"][1]["$defs"]["AgentRequest"] = request
    return table


STANDARD: Final = _read()
"""Each gate's description and the JSON Schema of its parameters."""

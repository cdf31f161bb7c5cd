"""Shared by the tests of encoders: contexts, and the requests that families make of them."""

import orjson

from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.terms.messages import Message, ToolCall, ToolDefinition

READ = ToolDefinition("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
DONE = ToolDefinition("done", "Finish.", {"type": "object", "properties": {"answer": {}}, "required": ["answer"]})
TOOLS = (READ, DONE)


def said(text=None, *calls, thinking=None, blocks=()):
    made = tuple(ToolCall(id_, gate, args) for id_, gate, args in calls)
    return Message("assistant", text, made, thinking=thinking, blocks=tuple(blocks))


def result(call_id, content, gate="read", is_error=False):
    return Message("tool", content, (), call_id, gate, is_error)


def request(crystal, messages, tools=TOOLS, choice=None, **options):
    """The request as the provider would get it: its body, read."""
    asked = ProviderQuery(messages, tools, choice, SamplingSettings.of(options))
    return orjson.loads(crystal.family.make_request(asked).body)


CONTEXT = [
    Message("system", "Be terse."),
    Message("user", "Compare a and b."),
    said("Let me look.", ("one", "read", {"path": "a"}), ("two", "read", {"path": "b"})),
    result("two", "B"),
    result("one", "no such file", is_error=True),
    said(None, ("three", "read", {"path": "c"})),
    Message("user", "never mind c"),
]
"""Two calls answered in the wrong order, one of them with an error, and one that never was."""

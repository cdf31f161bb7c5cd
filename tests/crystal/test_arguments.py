"""The arguments of a call are read by one function at every door, whatever JSON a model writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal.families.openai import normalise_chat
from cantrip_actors.terms.exact_json import read_arguments
from cantrip_actors.terms.gate import Refused
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import Response, ToolCall
from tests.crystal.streams import fed

pytestmark = pytest.mark.rule("V-02")

READ = [
    ("", {}),
    ("  ", {}),
    ("null", {}),
    ("{}", {}),
    ('{"a": 1, "a": 2}', {"a": 2}),
    ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
    ('{"\\ude00": "\\ud83d\\ude00"}', {"\ufffd": "😀"}),
    (f'{{"a": {10**30}, "b": "\\ud83d"}}', {"a": 10**30, "b": "\ufffd"}),
    ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
    ('{"a": 1e400}', None),
    pytest.param(f'{{"a": "one\ntwo", "b": {"[" * 100_000}', None, id="too deep, and cut off"),
    pytest.param(f'{{"a": "one\ntwo", "b": {"[" * 100_000}{"]" * 100_000}}}', None, id="too deep"),
    ("[1]", None),
    ('{"a": ', None),
]


def stream(family, text):
    """The call in the stream of a family."""
    if family == "anthropic":
        block = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": text}
        return [
            {"type": "message_start", "message": {"id": "m", "model": "c", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ]
    if family == "openai":
        item = {"type": "function_call", "id": "f", "call_id": "t", "name": "read", "arguments": text}
        return [{"object": "response", "id": "r", "status": "completed", "output": [item]}]
    return [chat(text)]


def chat(text):
    call = {"id": "t", "type": "function", "function": {"name": "read", "arguments": text}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"object": "chat.completion", "id": "c", "choices": [{"index": 0, "message": message}]}


@pytest.mark.parametrize(("text", "args"), READ)
def test_every_door_reads_the_same_arguments(text, args) -> None:
    doors = {
        "a user's crystal": ToolCall.of({"id": "t", "gate": "read", "args": text}),
        "a mapping": Response.of({"tool_calls": [{"id": "t", "gate": "read", "arguments": text}]}).tool_calls[0],
        "a recording": normalise_chat(chat(text)).tool_calls[0],
        **{
            family: fed(family, *stream(family, text)).tool_calls[0]
            for family in ("anthropic", "openai", "openai-chat")
        },
    }
    assert {door: call.args for door, call in doors.items()} == dict.fromkeys(doors, args)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(st.characters(), max_size=5), max_size=4))
def test_every_json_object_is_an_object(value) -> None:
    args = read_arguments(json.dumps(value))
    assert args is not None
    assert read_arguments(value) == args
    assert read_arguments(json.dumps(args)) == args
    json.dumps(args, ensure_ascii=False).encode()  # no half characters are left


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1e400}', "have a number that is too large"),
        ('{"a": %s}' % ("9" * 5_000), "have a number that is too large"),
        ("[1]", "are not a JSON object"),
        ("{oops", "are not a JSON object"),
        ('{"a": 1} and more', "are not a JSON object"),
    ],
)
def test_the_refusal_of_json_says_what_is_wrong_with_it(text, why) -> None:
    @gate
    async def read(a: int) -> int:
        """Read."""
        return a

    refused = read.check(ToolCall.of({"id": "t", "gate": "read", "args": text}))
    assert isinstance(refused, Refused)
    assert f"arguments {why}" in refused.reason


@given(
    st.dictionaries(
        st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5) | st.none() | st.booleans(), min_size=1
    ),
    st.data(),
)
def test_a_call_that_is_cut_off_anywhere_is_told_to_pass_less(value, data) -> None:
    @gate
    async def read(**fields: object) -> None:
        """Read."""

    whole = json.dumps(value, ensure_ascii=False)
    begun = whole[: data.draw(st.integers(1, len(whole) - 1))]
    refused = read.check(ToolCall.of({"id": "t", "gate": "read", "args": begun}))
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("read: arguments are cut off in their JSON object: got ")
    assert "an answer ends at its limit of tokens: pass less at once" in refused.reason

"""A thread for others to read: the SPEC's fields, one turn a line, the same bytes each time."""

import json

import pytest

from cantrip_actors.loom import thread_jsonl
from tests.loom.histories import AT, header, turn
from tests.loom.test_view import FAMILY, loom_of

FIELDS = (
    "id parent_id cantrip_id entity_id sequence utterance observation gate_calls metadata reward terminated truncated"
)


def exported(loom, turn_id):
    return [json.loads(line) for line in thread_jsonl(loom.thread(turn_id)).decode().splitlines()]


@pytest.mark.rule("LOOM-10")
def test_a_line_has_the_fields_of_the_spec_and_no_others():
    for said in exported(loom_of(*FAMILY), "d1"):
        assert list(said) == FIELDS.split()


@pytest.mark.rule("LOOM-9", "D-005")
def test_a_turn_is_exported_in_full():
    loom = loom_of([header("e"), *turn("e", "t1", None, truncated=True)])
    assert exported(loom, "t1") == [
        {
            "id": "t1",
            "parent_id": None,
            "cantrip_id": "c0ffee",
            "entity_id": "e",
            "sequence": 1,
            "utterance": 'echo({"text":"hello"})',
            "observation": "hello",
            "gate_calls": [
                {
                    "gate": "echo",
                    "args": {"text": "hello"},
                    "result": "hello",
                    "is_error": False,
                    "tool_call_id": "call_1_1",
                }
            ],
            "metadata": {
                "tokens_prompt": 10,
                "tokens_completion": 5,
                "tokens_cached": 2,
                "duration_ms": 13.5,
                "timestamp": AT,
            },
            "reward": None,
            "terminated": False,
            "truncated": True,
        }
    ]


@pytest.mark.rule("LOOM-10")
def test_turns_come_from_the_root_to_the_leaf():
    assert [said["id"] for said in exported(loom_of(*FAMILY), "d1")] == ["a1", "a2", "c1", "d1"]


async def test_a_line_has_the_reward_of_its_turn():
    loom = loom_of(*FAMILY)
    await loom.reward("d1", 0.5)
    assert [said["reward"] for said in exported(loom, "d1")] == [None, None, None, 0.5]


def test_an_empty_thread_is_exported_as_zero_bytes():
    assert thread_jsonl([]) == b""


@pytest.mark.parametrize("value", [2**80, "\ud83d", [None], {"é": "ü\n"}, 1e300])
def test_every_recorded_history_can_be_exported(value):
    loom = loom_of([header("e"), *turn("e", "t1", None, text=value)])
    data = thread_jsonl(loom.thread("t1"))
    assert data.count(b"\n") == 1
    said = json.loads(data)
    assert said["gate_calls"][0]["result"] == value
    assert list(said) == FIELDS.split()

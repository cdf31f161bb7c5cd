"""Threads as chat JSONL, and the conversation that all exports are made from."""

import json
import tempfile
from dataclasses import replace

import pytest
from hypothesis import given

from cantrip_actors import Cantrip, Image, scripted
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import build_messages, conversation_of
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.machine.context import LEFT_OUT, NO_GATE, SKIPPED
from cantrip_actors.machine.project import make_fork_state
from cantrip_actors.machine.project.conversation import Said, build_conversation
from cantrip_actors.machine.state import Identity, Plan
from cantrip_actors.records.records import Committed, Folded, GateFinished, IntentGiven, Observation, Steered, Utterance
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.context import Fading
from cantrip_actors.terms.messages import ToolCall, Usage
from tests.loom.histories import AT, header, histories, turn
from tests.loom.test_view import loom_of
from tests.loom.told import cantrip, written_once
from tests.pictures import png


@pytest.fixture
def written():
    return written_once()


def lines(loom, *entities, **options):
    told = [conversation_of(loom, entity) for entity in entities or loom.entities()]
    return [json.loads(line) for line in chat_jsonl(told, **options)]


def replayed(loom, turn_id, made_with: Cantrip):
    """The context that a fork from this turn would begin with if nothing were folded, by the runtime's own rules."""
    plan = Plan.of(made_with, Identity("e"))
    unfolded = [record for record in loom.lineage(turn_id) if not isinstance(record, Folded)]
    context = make_fork_state(plan.shape, unfolded).conversation.context
    return [item.message if isinstance(item, Fading) else item for item in context]


class TestConversation:
    @pytest.mark.rule("LOOM-4", "LOOM-8", "LOOM-10")
    def test_the_export_equals_the_context_that_the_runtime_rebuilds(self, written):
        turns = [turn.id for entity in written.loom.entities() for turn in written.loom.turns(entity)]
        assert len(turns) == 19
        for turn_id in turns:
            told = conversation_of(written.loom, written.loom.owner(turn_id), until=turn_id)
            shown = [
                (m.role, m.tool_calls, m.tool_call_id, m.is_error) for m in build_messages(told, hide_ephemeral=True)
            ]
            expected = replayed(written.loom, turn_id, cantrip(scripted([])))
            assert shown == [(m.role, m.tool_calls, m.tool_call_id, m.is_error) for m in expected]
            assert [m.content for m in build_messages(told, hide_ephemeral=True)] == [m.content for m in expected]

    @pytest.mark.rule("V-41")
    def test_a_steering_message_with_an_image_is_exported_as_the_context_has_it(self):
        image = Image(png())
        steered = Steered("e", "mind the gap", AT, (image,))
        loom = loom_of([header("e"), IntentGiven("e", "go", AT), steered, *turn("e", "t", None)])
        messages = build_messages(conversation_of(loom, "e"))
        assert [(m.content, m.images, m.is_steering) for m in messages if m.role == "user"][:2] == [
            ("go", (), False),
            ("mind the gap", (image,), True),
        ]
        assert messages[1:] == [m for m in replayed(loom, "t", cantrip(scripted([]))) if m.role != "system"]

    @pytest.mark.rule("V-41")
    @given(histories())
    def test_the_export_of_any_history_equals_the_context_of_its_entity(self, history):
        loom = loom_of(*history.batches)
        made_with = cantrip(scripted([]))
        for turn_id in history.owners:
            told = conversation_of(loom, loom.owner(turn_id), until=turn_id)
            assert [m for m in build_messages(told) if m.role != "system"] == [
                m for m in replayed(loom, turn_id, made_with) if m.role != "system"
            ]

    @pytest.mark.rule("LOOM-8", "COMP-5")
    def test_an_utterance_with_a_child_is_one_message(self, written):
        said = conversation_of(written.loom, written.root).said[1]
        assert len(said.turns) == 2
        assert [one.gate for one in said.results] == ["peek", "call_agent", "echo"]
        assert said.results[1].children == (written.child,)

    def test_a_fork_counts_inherited_items(self, written):
        told = conversation_of(written.loom, written.forks[0])
        assert told.inherited == 3
        assert [getattr(item, "text", "") for item in told.items[told.inherited :]] == ["think again", ""]
        assert told.header.entity_id == written.forks[0]

    def test_a_turn_interrupted_by_a_crash_is_left_out(self):
        cut = Utterance(entity_id="e", turn_id="t2", content="and then", tool_calls=(), usage=Usage(), duration_ms=1.0)
        loom = loom_of([header("e"), IntentGiven("e", "go", AT), *turn("e", "t1", None), cut])
        assert [m.role for m in build_messages(conversation_of(loom, "e"))] == ["system", "user", "assistant", "tool"]

    def test_records_without_a_header_are_refused(self):
        with pytest.raises(ValueError, match="no header"):
            build_conversation([Steered("e", "x", AT)])

    @pytest.mark.rule("D-003", "D-004")
    def test_a_call_that_was_not_run_has_a_message_that_says_why(self):
        calls = (ToolCall("c1", "done", {"answer": 1}), ToolCall("c2", "echo", {}))
        finished = GateFinished.of("e", "t2", Observation("done", None, 1, tool_call_id="c1"))
        start = [
            header("e"),
            IntentGiven("e", "go", AT),
            Utterance(entity_id="e", turn_id="t1", content="just talk", tool_calls=(), usage=Usage(), duration_ms=1.0),
            Committed(turn_id="t1", entity_id="e", parent_id=None, sequence=1, at=AT, duration_ms=1.0),
            Utterance(entity_id="e", turn_id="t2", content=None, tool_calls=calls, usage=Usage(), duration_ms=1.0),
            finished,
        ]
        for ends, why in ((True, SKIPPED), (False, LEFT_OUT)):
            loom = loom_of(
                [
                    *start,
                    Committed(
                        turn_id="t2", entity_id="e", parent_id="t1", sequence=2, at=AT, duration_ms=1.0, terminated=ends
                    ),
                ]
            )
            contents = [m.content for m in build_messages(conversation_of(loom, "e"))]
            assert contents == ["be terse", "go", "just talk", NO_GATE, None, "1", why]

    @pytest.mark.rule("CIRCLE-4")
    def test_a_programs_result_is_exported_as_the_crystal_saw_it(self):
        began = header("e")
        loom = loom_of(
            [
                replace(began, circle={"medium": "python", "gates": ["echo"]}),
                IntentGiven("e", "go", AT, {"data": 1}),
                Utterance(
                    entity_id="e",
                    turn_id="t1",
                    content=None,
                    tool_calls=(),
                    usage=Usage(),
                    duration_ms=1.0,
                    code="print(echo('x'))",
                ),
                GateFinished.of("e", "t1", Observation("echo", {"text": "x"}, "x", tool_call_id="call_1_1")),
                GateFinished.of("e", "t1", Observation("python", None, {"output": "x\n", "value": 3})),
                Committed(turn_id="t1", entity_id="e", parent_id=None, sequence=1, at=AT, duration_ms=1.0),
            ]
        )
        told = conversation_of(loom, "e")
        assert [(m.role, m.content) for m in build_messages(told)] == [
            ("system", "be terse"),
            ("user", "go"),
            ("assistant", "print(echo('x'))"),
            ("user", "x\n=> 3"),
        ]
        assert [one.gate for one in told.said[0].others] == ["echo", "python"]


class TestChatLines:
    @pytest.mark.rule("LOOM-8", "LOOM-10")
    def test_a_thread_with_a_child_is_exported_in_full(self, written):
        (line,) = lines(written.loom, written.root)
        assert list(line) == ["messages", "tools"]
        assert line["messages"][6] == {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_2_1",
                    "type": "function",
                    "function": {"name": "peek", "arguments": '{"path":"a.txt"}'},
                },
                {
                    "id": "call_2_2",
                    "type": "function",
                    "function": {"name": "call_agent", "arguments": '{"intent":"look it up"}'},
                },
                {
                    "id": "call_2_3",
                    "type": "function",
                    "function": {"name": "echo", "arguments": '{"text":"after"}'},
                },
            ],
        }
        assert line["messages"][7] == {
            "role": "tool",
            "tool_call_id": "call_2_1",
            "content": "the whole of a.txt",
        }
        assert [tool["function"]["name"] for tool in line["tools"]] == ["done", "call_agent", "echo", "peek", "fail"]
        assert line["tools"][3]["function"]["parameters"]["required"] == ["path"]

    @pytest.mark.rule("CRYSTAL-4", "LOOP-1")
    def test_every_call_is_answered_right_after_it_and_in_order(self, written):
        for line in lines(written.loom):
            waiting = []
            for message in line["messages"]:
                if message["role"] == "tool":
                    assert message["tool_call_id"] == waiting.pop(0)
                    continue
                assert waiting == []
                waiting = [call["id"] for call in message.get("tool_calls", ())]
            assert waiting == []

    @pytest.mark.rule("D-010", "PROD-5")
    def test_an_ephemeral_result_is_whole_or_as_the_crystal_saw_it_later(self, written):
        told = json.dumps(lines(written.loom, written.root))
        assert "the whole of a.txt" in told
        hidden = json.dumps(lines(written.loom, written.root, hide_ephemeral=True))
        assert "the whole of a.txt" not in hidden
        assert "[ephemeral:peek]" in hidden

    @pytest.mark.rule("LOOM-5")
    def test_folds_remove_nothing_from_the_export(self, written):
        (line,) = lines(written.loom, written.notes)
        assert [m["content"] for m in line["messages"] if m["role"] == "tool"] == [*"0123456", "one", "two"]
        assert "[folded" not in json.dumps(line)

    def test_metadata_is_exported_only_on_request(self, written):
        (line,) = lines(written.loom, written.forks[0], metadata=True)
        last = written.loom.turns(written.forks[0])[-1]
        assert line["metadata"] == {
            "entity": written.forks[0],
            "turn": last.id,
            "crystal": "scripted",
            "terminated": True,
            "truncated": False,
            "rewards": {last.id: 1.0},
        }

    def test_an_entity_without_utterances_has_no_line(self):
        assert lines(loom_of([header("e"), IntentGiven("e", "go", AT)])) == []

    @given(histories())
    def test_chat_lines_have_the_same_bytes_from_memory_and_from_a_file(self, history):
        with tempfile.TemporaryDirectory() as folder:
            looms = [loom_of(*history.batches, url=url) for url in ("memory:", f"sqlite:{folder}/loom.db")]
            first, second = [
                b"".join(chat_jsonl(conversation_of(loom, entity) for entity in loom.entities())) for loom in looms
            ]
            assert first == second
            looms[1]._store.close()

    def test_chat_lines_of_a_redacted_loom_show_no_secret(self, written):
        loom = redacted_loom(written.loom, Redactor({"file": "the whole of a.txt"}))
        assert "[redacted:file]" in json.dumps(lines(loom, written.root))
        assert "whole of" not in json.dumps(lines(loom))
        assert isinstance(conversation_of(loom, written.root).items[-1], Said)

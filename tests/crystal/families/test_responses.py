"""OpenAI's Responses API; the traps are those of section 4.2 of the landscape."""

import json

import pytest

from cantrip_actors.crystal.constructors import openai
from cantrip_actors.crystal.testing import events
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import CONTEXT, request, said
from tests.crystal.streams import Said, decode, fed
from tests.crystal.streams import responses as stream

GPT = openai("gpt-5", api_key="k")
FULL = Said("hm", "Let me look.", (("read", {"path": "a"}),))


def over(*output, status="completed", **more):
    return {"type": f"response.{status}", "response": {"id": "r", "status": status, "output": list(output), **more}}


def call(arguments="{}", **more):
    return {"id": "fc", "type": "function_call", "call_id": "c1", "name": "read", "arguments": arguments, **more}


class TestDecoding:
    """The stream decoded."""

    def test_calls_are_identified_by_their_call_id(self):
        assert fed("openai", *stream(FULL)).tool_calls[0].id == "call_0"

    def test_encrypted_reasoning_is_taken_from_the_finished_item(self):
        response = fed("openai", *stream(FULL), model="gpt-5")
        (block,) = response.blocks
        assert block["content"][0]["encrypted_content"] == "whole"
        assert [item["type"] for item in block["content"]] == ["reasoning", "message", "function_call"]

    def test_item_ids_may_change_during_the_stream(self):
        sent = stream(FULL)
        for event in sent:
            if event["type"] == "response.output_item.done":
                event["item"] = {**event["item"], "id": f"other_{event['output_index']}"}
        for event in sent[-1:]:
            event["response"]["output"] = [
                {**item, "id": f"third_{n}"} for n, item in enumerate(event["response"]["output"])
            ]
        response = fed("openai", *sent)
        assert (response.content, response.thinking) == ("Let me look.", "hm")
        assert len(response.tool_calls) == 1

    def test_arguments_that_only_the_end_event_has_are_decoded(self):
        added = {"type": "response.output_item.added", "output_index": 0, "item": call("")}
        told = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"path": "a"}'}
        assert fed("openai", added, told, over()).tool_calls[0].args == {"path": "a"}
        done = {"type": "response.output_item.done", "output_index": 0, "item": call('{"path": "b"}')}
        assert fed("openai", done, over()).tool_calls[0].args == {"path": "b"}
        assert fed("openai", over(call('{"path": "c"}'))).tool_calls[0].args == {"path": "c"}

    def test_a_text_without_a_start_event_is_decoded(self):
        pieces = [{"type": "response.output_text.delta", "item_id": "m", "delta": word} for word in ("Hel", "lo")]
        response, payloads = decode("openai", [events(*pieces, over())])
        assert response.content == "Hello"
        assert [payload.type for payload in payloads].count("item_start") == 1
        words = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hello"}]}
        assert decode("openai", [events(*pieces, over(words))])[0].content == "Hello"

    def test_items_without_an_end_event_are_taken_from_the_final_output(self):
        sent = [one for one in stream(FULL) if one["type"] != "response.output_item.done"]
        response = fed("openai", *sent)
        assert (response.content, response.thinking, len(response.tool_calls)) == ("Let me look.", "hm", 1)
        reasoning, message, _ = response.blocks[0]["content"]
        assert (reasoning["encrypted_content"], message["content"][0]["text"]) == ("whole", "Let me look.")

    @pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter", "steered"])
    def test_an_incomplete_response_is_a_response(self, reason):
        sent = [*stream(FULL)[:-1], over(status="incomplete", incomplete_details={"reason": reason})]
        response = fed("openai", *sent)
        assert (response.content, response.metadata["stop_reason"]) == ("Let me look.", reason)
        with pytest.raises(CrystalError, match=reason):
            fed("openai", sent[-1])

    @pytest.mark.parametrize(
        ("event", "status", "retryable"),
        [
            (
                {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "sorry"}}},
                500,
                True,
            ),
            ({"type": "response.failed", "response": {"error": {"code": None, "message": "sorry"}}}, 500, True),
            ({"type": "error", "code": "rate_limit_exceeded", "message": "sorry", "param": None}, 429, True),
            ({"type": "error", "error": {"code": "insufficient_quota", "message": "sorry"}}, 429, False),
            ({"type": "error", "error": {"code": "invalid_prompt", "message": "sorry"}}, 400, False),
            ({"error": {"code": "server_error", "message": "sorry"}}, 500, True),
        ],
    )
    def test_a_stream_with_only_a_failure_is_an_error(self, event, status, retryable):
        with pytest.raises(ProviderError, match="sorry") as caught:
            fed("openai", event)
        assert (caught.value.status, caught.value.retryable) == (status, retryable)

    def test_a_failure_without_a_message_is_an_error(self):
        with pytest.raises(ProviderError, match="the response failed"):
            fed("openai", {"type": "response.failed", "response": {"error": None}})

    @pytest.mark.parametrize("name", ["parallel", "multi_tool_use.parallel"])
    def test_calls_wrapped_in_one_call_are_separated(self, name):
        uses = [{"recipient_name": "functions.read", "parameters": {"path": "a"}}, {"recipient_name": "done"}]
        arguments = json.dumps({"tool_uses": uses})
        response = fed("openai", over(call(arguments, name=name)))
        assert [(one.id, one.gate, one.args) for one in response.tool_calls] == [
            ("c1_1", "read", {"path": "a"}),
            ("c1_2", "done", {}),
        ]
        assert fed("openai", over(call(arguments, name=name)), tools=[name]).tool_calls[0].gate == name

    def test_a_commentary_and_an_answer_are_one_text_and_go_back_with_their_phases(self):
        output = [
            {"type": "message", "content": [{"type": "output_text", "text": text}], "phase": phase}
            for text, phase in (("I look.", "commentary"), ("Found.", "final_answer"))
        ]
        response = fed("openai", over(*output))
        assert response.content == "I look.\n\nFound."
        assert [item["phase"] for item in response.blocks[0]["content"]] == ["commentary", "final_answer"]

    def test_a_refusal_becomes_the_content(self):
        part = {"type": "refusal", "refusal": "I won't."}
        response = fed("openai", over({"type": "message", "content": [part]}))
        assert (response.content, response.metadata["refusal"]) == ("I won't.", "I won't.")

    def test_a_whole_body_is_decoded_like_a_stream(self):
        body = {"object": "response", "status": "completed", "output": [call('{"path": "a"}')], "model": "gpt"}
        assert fed("openai", body).tool_calls[0].args == {"path": "a"}

    def test_the_finished_text_is_used_and_not_its_pieces(self):
        sent = [event for event in stream(FULL) if not event["type"].endswith("text.delta")]
        assert fed("openai", *sent).content == "Let me look."


class TestEncoding:
    """Contexts encoded."""

    def test_every_call_is_answered_by_its_call_id(self):
        body = request(GPT, CONTEXT)
        assert body["instructions"] == "Be terse."
        kinds = [(item.get("type") or item["role"], item.get("call_id")) for item in body["input"]]
        assert kinds == [
            ("user", None),
            ("message", None),
            ("function_call", "one"),
            ("function_call", "two"),
            ("function_call_output", "one"),
            ("function_call_output", "two"),
            ("function_call", "three"),
            ("function_call_output", "three"),
            ("user", None),
        ]

    def test_reasoning_goes_back_without_ids_right_before_its_result(self):
        response = fed("openai", *stream(FULL), model="gpt-5")
        utterance = Message("assistant", response.content, response.tool_calls, blocks=response.blocks)
        context = [Message("user", "go"), utterance, Message("tool", "A", (), "call_0", "read")]
        items = request(GPT, context)["input"]
        assert items[1] == {
            "type": "reasoning",
            "encrypted_content": "whole",
            "summary": [{"type": "summary_text", "text": "hm"}],
        }
        assert [item.get("type") for item in items[2:]] == ["message", "function_call", "function_call_output"]
        assert not any("id" in item for item in items)
        other = request(openai("gpt-5-mini", api_key="k"), context)["input"]
        assert [item.get("type") for item in other] == [None, "message", "function_call", "function_call_output"]

    def test_reasoning_without_encrypted_content_is_not_sent_back(self):
        block = {"provider": "openai", "model": "gpt-5", "content": [{"type": "reasoning", "summary": []}]}
        items = request(GPT, [Message("user", "go"), said("x", blocks=[block]), Message("user", "on")])["input"]
        assert not any(item.get("type") == "reasoning" for item in items)

    def test_extra_fields_of_a_call_go_back_with_it(self):
        response = fed("openai", over(call(namespace="crm", caller={"type": "x"})), model="gpt-5")
        utterance = Message("assistant", None, response.tool_calls, blocks=response.blocks)
        sent = request(GPT, [Message("user", "go"), utterance])["input"][1]
        assert (sent["namespace"], sent["caller"]) == ("crm", {"type": "x"})

    def test_the_input_is_never_empty(self):
        assert request(GPT, [Message("system", "Be.")])["input"]

    def test_schemas_of_gates_are_not_strict(self):
        assert all(tool["strict"] is False for tool in request(GPT, CONTEXT)["tools"])

    def test_storing_is_turned_off_and_encrypted_reasoning_is_requested_of_reasoning_models(self):
        body = request(GPT, CONTEXT)
        assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
        assert "include" not in request(openai("gpt-4o", api_key="k"), CONTEXT)

    @pytest.mark.rule("CRYSTAL-5")
    def test_a_call_is_forced(self):
        body = request(GPT, CONTEXT, choice="required", effort="high", max_tokens=5, output_schema={"type": "object"})
        assert body["tool_choice"] == "required"
        assert body["reasoning"]["effort"] == "high"
        assert body["max_output_tokens"] == 5
        assert body["text"]["format"]["schema"] == {"type": "object"}

    def test_temperature_is_not_sent_to_reasoning_models(self):
        assert "temperature" not in request(GPT, CONTEXT, temperature=0.1)
        assert request(openai("gpt-4o", api_key="k"), CONTEXT, temperature=0.1)["temperature"] == 0.1


SHELL = {"type": "local_shell_call", "id": "x", "call_id": "c9", "action": {"command": ["ls"]}, "status": "completed"}


WEB = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
PROGRAM = {"type": "program", "id": "p_1", "call_id": "call_p", "code": "await read()", "fingerprint": "f"}


class TestBuiltInTools:
    """Tools of the provider's own that are the caller's to run."""

    def test_a_local_shell_call_is_a_gate_call(self):
        response = fed("openai", over(SHELL), model="gpt-5")
        (found,) = response.tool_calls
        assert (found.id, found.gate, found.args) == ("c9", "local_shell", {"action": {"command": ["ls"]}})
        utterance = Message("assistant", None, response.tool_calls, blocks=response.blocks)
        context = [Message("user", "go"), utterance, Message("tool", "a b", (), "c9", "local_shell")]
        items = request(GPT, context)["input"]
        assert [item.get("type") for item in items] == [None, "local_shell_call", "local_shell_call_output"]

    def test_items_of_the_providers_own_tools_go_back_with_their_ids(self):
        caller = {"type": "program", "caller_id": "call_p"}
        response = fed("openai", over(WEB, PROGRAM, call('{"path": "a"}', caller=caller)), model="gpt-5")
        utterance = Message("assistant", None, response.tool_calls, blocks=response.blocks)
        items = request(GPT, [Message("user", "go"), utterance])["input"]
        assert items[1:3] == [WEB, PROGRAM]
        assert (items[3]["caller"], "id" in items[3]) == (caller, False)

    def test_a_call_that_the_provider_ran_itself_is_not_a_gate_call(self):
        output = {"type": "local_shell_call_output", "call_id": "c9", "output": "a b"}
        words = {"type": "message", "content": [{"type": "output_text", "text": "I ran it."}]}
        assert fed("openai", over(SHELL, output, words)).tool_calls == ()

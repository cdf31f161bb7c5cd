"""Gemini; the traps are those of section 4.4 of the landscape."""

import pytest

from cantrip_actors.crystal.constructors import google
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Message, ToolDefinition
from tests.crystal.asking import CONTEXT, request, said
from tests.crystal.streams import fed

GEMINI = google("gemini-3-pro-preview", api_key="k")


def chunk(*parts, finish=None, usage=None, **more):
    candidate = {"content": {"role": "model", "parts": list(parts)}, **({"finishReason": finish} if finish else {})}
    return {"candidates": [candidate], "usageMetadata": usage or {}, **more}


def call(name=None, **more):
    return {"functionCall": {**({"name": name} if name else {}), **more}}


END = chunk({"text": ""}, finish="STOP")


class TestDecoding:
    @pytest.mark.rule("OTEL-02")
    def test_tokens_of_each_modality_are_kept(self):
        details = [{"modality": "TEXT", "tokenCount": 2}, {"modality": "IMAGE", "tokenCount": 258}, {"tokenCount": 1}]
        usage = {"promptTokenCount": 261, "candidatesTokenCount": 3, "promptTokensDetails": details}
        response = fed("google", chunk({"text": "x"}, finish="STOP", usage=usage))
        assert response.metadata["modality_tokens"] == {"input": {"text": 2, "image": 258}}

    """The stream decoded."""

    def test_calls_count_although_the_finish_reason_is_stop(self):
        response = fed("google", chunk(call("read", args={"path": "a"})), END)
        assert (response.tool_calls[0].gate, response.metadata["stop_reason"]) == ("read", "STOP")

    def test_calls_get_ids(self):
        response = fed("google", chunk(call("read", args={}), call("done", id="own", args={})), END, utterance=3)
        assert [one.id for one in response.tool_calls] == ["call_3_1", "own"]

    def test_signatures_stay_on_their_parts(self):
        first = {**call("read", args={"path": "a"}), "thoughtSignature": "c2ln"}
        sent = [chunk({"text": "Hm. ", "thought": True}), chunk(first, call("done", args={})), END]
        parts = fed("google", *sent, model="gemini-3").blocks[0]["content"]
        assert parts == [{"text": "Hm. ", "thought": True}, first, call("done", args={})]

    def test_a_signature_on_an_empty_text_is_stored(self):
        signed = {"text": "", "thoughtSignature": "c2ln"}
        response = fed("google", chunk({"text": "a"}), chunk({"text": "b"}), chunk(signed, finish="STOP"))
        assert response.content == "ab"
        assert response.blocks[0]["content"] == [{"text": "ab"}, signed]

    def test_the_highest_reported_counts_are_used(self):
        first = {
            "promptTokenCount": 9,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 30,
            "cachedContentTokenCount": 4,
        }
        last = {"promptTokenCount": 9, "candidatesTokenCount": 5, "toolUsePromptTokenCount": 3, "thoughtsTokenCount": 0}
        usage = fed("google", chunk({"text": "a"}, usage=first), chunk(finish="STOP", usage=last)).usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (12, 35, 4)

    def test_a_blocked_prompt_is_an_error(self):
        with pytest.raises(ProviderError, match="blocked: SAFETY") as caught:
            fed("google", {"promptFeedback": {"blockReason": "SAFETY"}})
        assert caught.value.retryable is False

    @pytest.mark.parametrize("ends", [True, False])
    def test_arguments_in_pieces_are_joined(self, ends):
        pieces = [
            {"jsonPath": "$.path", "stringValue": "a/", "willContinue": True},
            {"jsonPath": "$.path", "stringValue": "b"},
            {"jsonPath": "$.deep.list[0].n", "numberValue": 1},
            {"jsonPath": "$.deep.list[1]", "boolValue": True},
            {"jsonPath": "$['odd name']", "nullValue": "NULL_VALUE"},
        ]
        sent = [chunk(call("read", willContinue=True))]
        sent += [chunk(call(partialArgs=[piece], willContinue=True)) for piece in pieces]
        sent += [chunk(call())] if ends else []
        (found,) = fed("google", *sent, END).tool_calls
        assert found.args == {"path": "a/b", "deep": {"list": [{"n": 1}, True]}, "odd name": None}

    def test_empty_parts_and_a_final_chunk_without_content_are_accepted(self):
        response = fed(
            "google", chunk({"text": ""}), chunk({"text": "x"}), chunk(), {"candidates": [{"finishReason": "STOP"}]}
        )
        assert response.content == "x"
        assert response.blocks == ()
        signed = {"text": "x", "thoughtSignature": "c2ln"}
        kept = fed("google", chunk({"text": ""}), chunk(signed), chunk({"text": ""}, finish="STOP")).blocks
        assert kept[0]["content"] == [signed]

    def test_signed_texts_are_not_joined(self):
        one, two = ({"text": text, "thoughtSignature": text} for text in "ab")
        assert fed("google", chunk(one), chunk(two), END).blocks[0]["content"] == [one, two]

    @pytest.mark.parametrize(
        ("reason", "retryable"),
        [("MALFORMED_FUNCTION_CALL", True), ("STOP", True), ("SAFETY", False), ("MISSING_THOUGHT_SIGNATURE", False)],
    )
    def test_an_empty_answer_is_an_error(self, reason, retryable):
        with pytest.raises(ProviderError, match=f"neither content nor tool_calls.*{reason}") as caught:
            fed("google", chunk(finish=reason))
        assert caught.value.retryable is retryable

    def test_errors_inside_a_stream_are_raised(self):
        with pytest.raises(ProviderError, match="overloaded") as caught:
            fed(
                "google",
                chunk({"text": "he"}),
                {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}},
            )
        assert (caught.value.status, caught.value.retryable) == (503, True)


class TestEncoding:
    """Contexts encoded."""

    def test_roles_and_the_system_prompt_are_sent(self):
        body = request(GEMINI, CONTEXT)
        assert body["systemInstruction"] == {"parts": [{"text": "Be terse."}]}
        assert [one["role"] for one in body["contents"]] == ["user", "model", "user", "model", "user"]

    def test_results_are_objects_in_the_order_of_their_calls(self):
        results = [part["functionResponse"] for part in request(GEMINI, CONTEXT)["contents"][2]["parts"]]
        assert results == [
            {"name": "read", "response": {"error": "no such file"}},
            {"name": "read", "response": {"output": "B"}},
        ]

    def test_ids_go_back_only_to_the_model_that_gave_them(self):
        response = fed("google", chunk(call("read", id="own", args={})), END, model="gemini-3-pro-preview")
        utterance = Message("assistant", None, response.tool_calls, blocks=response.blocks)
        context = [Message("user", "go"), utterance, Message("tool", "A", (), "own", "read")]
        assert request(GEMINI, context)["contents"][2]["parts"][0]["functionResponse"]["id"] == "own"
        other = google("gemini-3-flash-preview", api_key="k")
        assert "id" not in request(other, context)["contents"][2]["parts"][0]["functionResponse"]

    def test_own_parts_go_back_unchanged_and_foreign_calls_get_the_placeholder_signature(self):
        first = {**call("read", args={"path": "a"}), "thoughtSignature": "c2ln"}
        response = fed("google", chunk(first), END, model="gemini-3-pro-preview")
        utterance = Message("assistant", None, response.tool_calls, blocks=response.blocks)
        assert request(GEMINI, [Message("user", "go"), utterance])["contents"][1]["parts"] == [first]
        foreign = request(GEMINI, CONTEXT)["contents"][1]["parts"]
        assert [part.get("thoughtSignature") for part in foreign] == [None, "skip_thought_signature_validator", None]
        old = request(google("gemini-2.5-pro", api_key="k"), CONTEXT)["contents"][1]["parts"]
        assert not any("thoughtSignature" in part for part in old)

    @pytest.mark.rule("CRYSTAL-5")
    def test_a_call_is_forced_if_there_are_tools(self):
        assert request(GEMINI, CONTEXT, choice="required")["toolConfig"]["functionCallingConfig"] == {"mode": "ANY"}
        assert "toolConfig" not in request(GEMINI, CONTEXT, tools=())

    def test_schemas_are_reduced_to_the_supported_keywords(self):
        inner = {"type": "string", "title": "Title", "examples": ["x"]}
        schema = {"type": "object", "properties": {"title": inner}, "additionalProperties": False, "title": "Args"}
        body = request(GEMINI, CONTEXT, tools=[ToolDefinition("read", "d", schema), ToolDefinition("ls", "d", {})])
        read, ls = body["tools"][0]["functionDeclarations"]
        assert read["parametersJsonSchema"] == {
            "type": "object",
            "properties": {"title": {"type": "string", "title": "Title"}},
            "additionalProperties": False,
            "title": "Args",
        }
        assert "parametersJsonSchema" not in ls
        old = request(google("gemini-2.0-flash", api_key="k"), CONTEXT, tools=[ToolDefinition("read", "d", schema)])
        (read,) = old["tools"][0]["functionDeclarations"]
        assert "additionalProperties" not in read["parametersJsonSchema"]

    def test_sampling_settings_are_sent_in_generation_config(self):
        body = request(
            GEMINI, CONTEXT, temperature=0, max_tokens=9, stop=["x"], effort="low", generationConfig={"seed": 1}
        )
        assert body["generationConfig"] == {
            "temperature": 0,
            "maxOutputTokens": 9,
            "stopSequences": ["x"],
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "low"},
            "seed": 1,
        }

    def test_an_empty_utterance_is_left_out(self):
        assert len(request(GEMINI, [Message("user", "go"), said("")])["contents"]) == 2

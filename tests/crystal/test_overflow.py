"""A context that is too long is recognised in the words of each provider, and the entity asks again with less."""

import httpx
import pytest

from cantrip_actors import Cantrip, Circle, Folding, Retry, Runtime, gate
from cantrip_actors.crystal.constructors import local
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.wards import max_turns
from tests.crystal.streams import Said, fed, framed
from tests.provider_rules import StrictProvider

pytestmark = pytest.mark.rule("V-03")


def body(message, **fields):
    return {"error": {"message": message, **fields}}


TOO_LONG = [
    (
        "Anthropic",
        400,
        body("prompt is too long: 210000 tokens > 200000 maximum"),
        200_000,
    ),
    ("Anthropic", 400, body("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"), 200_000),
    ("Anthropic", 413, body("Request exceeds the maximum size", type="request_too_large"), None),
    ("a proxy", 413, "<html>Request Entity Too Large</html>", None),
    ("OpenAI", 400, body("sorry", code="context_length_exceeded"), None),
    ("Responses", 400, body("Your input exceeds the context window of this model. Please adjust your input"), None),
    ("Responses, in a stream", None, body("sorry", code="context_length_exceeded"), None),
    (
        "vLLM",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        },
        4096,
    ),
    ("vLLM", 400, body("The decoder prompt (length 9000) is longer than the maximum model length of 8192."), 8192),
    ("SGLang", 400, body("The input (9000 tokens) is longer than the model's context length (8192 tokens)."), 8192),
    (
        "llama.cpp",
        400,
        body("the request exceeds the available context size", type="exceed_context_size_error", n_ctx=8192),
        8192,
    ),
    ("llama.cpp", 500, body("the request exceeds the available context size. try increasing it"), None),
    ("LM Studio", 400, body("the model is loaded with context length of only 4096 tokens, which is not enough"), 4096),
    ("Ollama", 400, {"error": "prompt too long; exceeded max context length by 42 tokens"}, None),
    ("Ollama", 400, {"error": "the input length exceeds the context length"}, None),
    (
        "Gemini",
        400,
        body("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", code=400),
        1_048_576,
    ),
    ("Vertex AI", 400, body("the input token count is 40000 but the model only supports up to 32768"), 32_768),
    ("Bedrock", 400, {"message": "Input is too long for requested model."}, None),
    (
        "Mistral",
        400,
        {"message": "Prompt contains 40870 tokens, too large for model with 32768 context"},
        32_768,
    ),
    ("Cohere", 400, {"message": "too many tokens: size limit exceeded by 11326 tokens."}, None),
    (
        "OpenRouter",
        400,
        body("Provider returned error", code=400, metadata={"raw": '{"message":"prompt is too long: 9 tokens > 8"}'}),
        8,
    ),
    ("xAI", 400, body("This model's maximum prompt length is 131072 but the request contains 537812 tokens."), 131_072),
    ("Groq", 413, body("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7000"), None),
    ("Moonshot", 400, body("Invalid request: Your request exceeded model token limit: 262144"), 262_144),
]
OTHERS = [
    (429, {"message": "Too many tokens, please wait before trying again."}),
    (400, body("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens")),
    (400, body("'max_tokens' is too large: 8192. This model's maximum context length is 8192 tokens")),
    (400, body("max_tokens is too large: 99999. This model supports at most 4096 completion tokens")),
    (400, body("image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes")),
    (404, body("no model with a maximum context length")),
    (429, body("Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29000")),
]


@pytest.mark.parametrize(("provider", "status", "answer", "window"), TOO_LONG)
def test_a_refusal_for_its_length_says_that_the_context_overflows(provider, status, answer, window) -> None:
    error = make_failure(provider, status, answer)
    assert (error.overflows, error.retryable, error.window) == (True, False, window)


@pytest.mark.parametrize(("status", "answer"), OTHERS)
def test_another_refusal_does_not(status, answer) -> None:
    assert not make_failure("p", status, answer).overflows


def test_an_empty_answer_of_a_full_window_overflows() -> None:
    events = [
        {"type": "message_start", "message": {"id": "m", "model": "c", "content": []}},
        {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
        {"type": "message_stop"},
    ]
    with pytest.raises(Exception, match="neither content") as caught:
        fed("anthropic", *events)
    assert caught.value.overflows


class TestEntity:
    """Asks again with less, and goes on."""

    @staticmethod
    def cantrip(provider, *gates, **more):
        crystal = local("http://127.0.0.1:9/v1", "m", client=provider.client)
        return Cantrip(crystal, circle=Circle(["done", *gates], [max_turns(9)]), retry=Retry(max_retries=0), **more)

    @staticmethod
    def holding(most):
        """A model that holds so many characters."""
        too_long = body(f"This model's maximum context length is {most} tokens. Please reduce the length.")
        return lambda asked: (
            httpx.Response(400, json=too_long)
            if sum(len(message["content"] or "") for message in asked["messages"]) > most
            else None
        )

    async def test_an_entity_whose_memory_has_outgrown_its_model_answers_every_intent(self):
        provider = StrictProvider("local", framed("openai-chat", Said("", "noted")), refuse=self.holding(400))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(self.cantrip(provider), "begin", name="n")
            replies = [(await entity.send(f"note {n}: {'x' * 20}")).result for n in range(40)]
        assert replies == ["noted"] * 40
        assert len(provider.refused) < 20

    async def test_the_longest_results_are_shown_in_part_where_nothing_can_be_folded(self):
        @gate
        async def read(size: int) -> str:
            """Read."""
            return "a" * size + "THE END"

        calls = Said("", "", (("read", {"size": 50_000}), ("read", {"size": 300})))
        answers = [framed("openai-chat", calls), framed("openai-chat", Said("", "fine"))]
        provider = StrictProvider("local", *answers, refuse=self.holding(4_000))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(self.cantrip(provider, read), "go", name="n")
            assert (await entity.episode()).result == "fine"
            refusals = len(provider.refused)
            assert (await entity.send("and now?")).result == "fine"
            observed = (await entity.episode()).thread[0].gate_calls[0].result
        long, short = (m["content"] for m in provider.requests[-1]["messages"] if m["role"] == "tool")
        assert "characters left out: the context was too long" in long
        assert long.endswith("THE END")
        assert short == "a" * 300 + "THE END"
        assert len(provider.refused) == refusals <= 6
        assert observed == "a" * 50_000 + "THE END"  # the loom has all of it

    async def test_an_intent_that_no_window_holds_fails_and_the_next_one_does_not(self):
        provider = StrictProvider("local", framed("openai-chat", Said("", "fine")), refuse=self.holding(2_000))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(self.cantrip(provider), "go", name="n")
            await entity.episode()
            with pytest.raises(ProviderError, match="the context is too long for the model"):
                await entity.send("x" * 5_000)
            assert (await entity.send("and now?")).result == "fine"

    async def test_the_window_of_a_local_model_is_learnt_from_its_refusal(self):
        provider = StrictProvider("local", framed("openai-chat", Said("", "fine")), refuse=self.holding(900))
        cantrip = self.cantrip(provider, folding=Folding(keep_turns=1))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip, "go", name="n")
            for n in range(9):
                await entity.send(f"{n} {'x' * 200}")
        assert cantrip.crystal.context_window == 900

"""An empty answer is asked again, in all families alike, and the tokens of every failed answer are booked."""

import json
from contextlib import suppress

import anyio
import httpx
import pytest

from cantrip_actors import Cantrip, Circle, Folding, Retry, Runtime, Usage, scripted
from cantrip_actors.crystal import replayed
from cantrip_actors.crystal.clouds import bedrock
from cantrip_actors.crystal.constructors import anthropic, cohere, google, local, mistral, ollama, openai
from cantrip_actors.crystal.policy.limited import limited
from cantrip_actors.crystal.testing import events
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.wards import max_depth, max_tokens, max_turns, timeout
from tests.crystal.streams import STREAMS, Said, framed, frames
from tests.provider_rules import StrictProvider

MAKERS = {
    "anthropic": lambda client: anthropic("claude-sonnet-4-5", client=client, api_key="k"),
    "openai": lambda client: openai("gpt-5", client=client, api_key="k"),
    "openai-chat": lambda client: local("http://127.0.0.1:9/v1", "m", client=client),
    "google": lambda client: google("gemini-2.5-pro", client=client, api_key="k"),
    "mistral": lambda client: mistral("mistral-large-latest", client=client, api_key="k"),
    "cohere": lambda client: cohere("command-a-03-2025", client=client, api_key="k"),
    "ollama": lambda client: ollama("qwen3", client=client),
    "bedrock": lambda client: bedrock("us.anthropic.claude-sonnet-4-5", region="us-east-1", client=client, api_key="k"),
}
EMPTY = [Said(), Said("Let me think.")]


def cantrip(crystal, retries):
    return Cantrip(crystal, circle=Circle(["done"], [max_turns(3)]), retry=Retry(max_retries=retries))


@pytest.mark.rule("V-06", "V-33")
@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("empty", EMPTY, ids=["nothing", "only thinking"])
async def test_an_answer_with_nothing_in_it_is_asked_again_and_paid_for(family, empty) -> None:
    provider = StrictProvider(family, framed(family, empty), framed(family, empty), framed(family, Said("", "fine")))
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip(MAKERS[family](provider.client), 2), "go")
    assert (episode.result, len(provider.requests)) == ("fine", 3)
    assert (episode.usage.prompt_tokens, episode.usage.completion_tokens) == (30, 21)


@pytest.mark.rule("V-06", "V-33")
@pytest.mark.parametrize("family", MAKERS)
async def test_an_entity_gives_up_after_its_retries_and_its_error_has_the_tokens(family) -> None:
    provider = StrictProvider(family, framed(family, Said()))
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError, match="neither content nor tool_calls") as caught:
            await runtime.cast(cantrip(MAKERS[family](provider.client), 1), "go")
    assert len(provider.requests) == 2
    assert (caught.value.usage.prompt_tokens, caught.value.usage.completion_tokens) == (20, 14)


def fail(family):
    """A stream that names its tokens and then fails."""
    said = STREAMS[family](Said("", "par"))
    usage = {"input_tokens": 10, "output_tokens": 7}
    error = {"code": "server_error", "message": "sorry"}
    if family == "openai":
        return events(said[0], {"type": "response.failed", "response": {"error": error, "usage": usage}})
    if family == "openai-chat":
        usage = {"prompt_tokens": 10, "completion_tokens": 7}
        return events(said[0], {"error": error, "usage": usage})
    if family == "google":
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 7}
        return events({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": usage})
    return events(*[event for event in said if event["type"] != "message_stop"])


@pytest.mark.rule("V-33")
@pytest.mark.parametrize("family", ["anthropic", "openai", "openai-chat", "google"])
async def test_the_tokens_of_an_answer_that_fails_after_it_named_them_are_booked(family) -> None:
    provider = StrictProvider(family, fail(family))
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError) as caught:
            await runtime.cast(cantrip(MAKERS[family](provider.client), 0), "go")
        (root,) = runtime.loom.entities()
        assert runtime.loom.usage(root).total_tokens == 17
    assert (caught.value.usage.prompt_tokens, caught.value.usage.completion_tokens) == (10, 7)


LIMITS = {
    "end_turn": "max_tokens",
    "stop": "length",
    "STOP": "MAX_TOKENS",
    "COMPLETE": "MAX_TOKENS",
    "completed": "incomplete",
}
"""The reasons to stop of complete answers, and those of answers that a limit has cut."""


def cut_by_limit(family):
    """A stream that a limit ends while the model thinks."""
    text = json.dumps(STREAMS[family](Said("Let me think.")))
    for complete, cut in LIMITS.items():
        text = text.replace(f'"{complete}"', f'"{cut}"')
    values = json.loads(text)
    if family == "bedrock":
        return frames(*values)
    if family == "ollama":
        return b"".join(json.dumps(value).encode() + b"\n" for value in values)
    return events(*values, done=family in ("openai-chat", "mistral"))


def blocked(family):
    """A whole answer without content, for a reason of the provider's own."""
    if family == "google":
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 7}
        return events({"candidates": [{"finishReason": "SAFETY", "index": 0}], "usageMetadata": usage})
    text = json.dumps(STREAMS[family](Said()))
    for complete, reason in {"end_turn": "refusal", "stop": "content_filter", "COMPLETE": "ERROR_TOXIC"}.items():
        text = text.replace(f'"{complete}"', f'"{reason}"')
    if family == "bedrock":
        return frames(*json.loads(text))
    if family == "ollama":
        return b"".join(json.dumps(value).encode() + b"\n" for value in json.loads(text))
    return events(*json.loads(text), done=family in ("openai-chat", "mistral"))


def name_usage_early(family):
    """The beginning of a stream that has named 10 and 7 tokens; None for a family that names them at the end only."""
    if family == "anthropic":
        message = {"id": "m", "model": "c", "role": "assistant", "content": []}
        usage = {"input_tokens": 10, "output_tokens": 7}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return events({"type": "message_start", "message": {**message, "usage": usage}}, block)
    if family == "google":
        return events(STREAMS[family](Said("", "par"))[0])
    if family in ("openai-chat", "mistral"):
        usage = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
        return events({**STREAMS[family](Said("", "par"))[0], "usage": usage})
    return None


EARLY = [family for family in MAKERS if name_usage_early(family) is not None]


def stream(start, then):
    """A response that sends `start`, and then waits or raises."""

    async def content():
        yield start
        await then()

    return lambda _body: httpx.Response(200, content=content())


async def break_off():
    raise httpx.ReadError("the connection is gone")


WAYS = {
    **{(family, "cut by a limit"): cut_by_limit for family in MAKERS},
    **{(family, "blocked"): blocked for family in MAKERS},
    **{(family, "broken"): lambda family: stream(name_usage_early(family), break_off) for family in EARLY},
    **{(family, "failed"): fail for family in ("anthropic", "openai", "openai-chat", "google")},
}
"""For each family and each way in which its answers can fail after they have named 17 tokens, such an answer."""


@pytest.mark.rule("V-33")
@pytest.mark.parametrize(("family", "way"), WAYS, ids=str)
@pytest.mark.parametrize("succeeds", [True, False], ids=["answered later", "given up"])
async def test_every_failed_answer_is_paid_for(family, way, succeeds) -> None:
    failure, fine = WAYS[family, way](family), framed(family, Said("", "fine"))
    provider = StrictProvider(family, failure, *([fine] if succeeds else ()))
    async with Runtime.open("memory:") as runtime:
        with suppress(CrystalError):
            await runtime.cast(cantrip(MAKERS[family](provider.client), 1), "go")
        (root,) = runtime.loom.entities()
        assert runtime.loom.usage(root).total_tokens == 17 * len(provider.requests)


@pytest.mark.rule("V-33")
@pytest.mark.parametrize("family", EARLY)
@pytest.mark.parametrize("how", ["interrupt", "stop", "timeout", "deadline"])
async def test_the_tokens_that_a_cancelled_query_has_named_are_booked(family, how) -> None:
    broken, stalled = stream(name_usage_early(family), break_off), stream(name_usage_early(family), anyio.sleep_forever)
    provider = StrictProvider(family, broken, stalled)
    crystal = MAKERS[family](provider.client)
    if how == "deadline":
        crystal = limited(crystal, deadline=50.0)
    wards = [max_turns(3), *([timeout(50.0)] if how == "timeout" else ())]
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(Cantrip(crystal, circle=Circle(["done"], wards)), "go")
        await anyio.sleep(30)
        assert len(provider.requests) == 2
        if how == "interrupt":
            await entity.interrupt("enough", now=True)
        elif how == "stop":
            await entity.stop("enough")
        with suppress(CrystalError):
            await entity.episode()
        assert runtime.loom.usage(entity.id).total_tokens == 34


@pytest.mark.rule("V-33")
async def test_the_tokens_of_an_answer_that_overflows_are_booked_with_the_fold_that_mends_it() -> None:
    full = json.loads(json.dumps(STREAMS["anthropic"](Said())).replace("end_turn", "model_context_window_exceeded"))
    calls = [framed("anthropic", Said("", "", (("echo", {"text": "x"}),)))] * 2
    provider = StrictProvider("anthropic", *calls, events(*full), framed("anthropic", Said("", "fine")))
    circle = Circle(["done", "echo"], [max_turns(9)])
    async with Runtime.open("memory:") as runtime:
        crystal = MAKERS["anthropic"](provider.client)
        episode = await runtime.cast(Cantrip(crystal, circle=circle, folding=Folding(summary=False)), "go")
    assert (episode.result, len(provider.requests)) == ("fine", 4)
    assert episode.usage.total_tokens == 4 * 17


PAID = {"usage": {"prompt_tokens": 90, "completion_tokens": 10}}


@pytest.mark.rule("V-33")
@pytest.mark.parametrize("is_cut", [False, True])
async def test_the_tokens_of_a_summary_that_fails_or_is_interrupted_are_booked(is_cut) -> None:
    async def summarise(context):
        if not is_cut:
            return PAID  # neither content nor tool calls
        try:
            await anyio.sleep(3600)
        finally:
            return {**PAID, "content": "late"}  # noqa: B012  # a provider that answers in the last moment

    answers = [{"tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}] * 6 + [{"content": "fine"}]
    circle = Circle(["done", "echo"], [max_turns(9)])
    folding = Folding(trigger_after_turns=4, summary=scripted(summarise))
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(Cantrip(scripted(answers), circle=circle, folding=folding), "go")
        await anyio.sleep(1)
        if is_cut:
            await entity.interrupt(now=True)
        assert (await entity.episode()).usage.total_tokens == 100


@pytest.mark.rule("V-33", "PROD-3")
@pytest.mark.parametrize("gate", ["call_agent", "call_agent_batch"])
async def test_a_budget_stops_a_parent_whose_children_fail(gate) -> None:
    def policy(context):
        if context[0].content != "go":
            error = CrystalError("no")
            error.usage = Usage(90, 10)
            raise error
        args = {"intent": "child"} if gate == "call_agent" else {"intents": ["a", "b"]}
        return {"tool_calls": [{"gate": gate, "args": args}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    circle = Circle(["done", gate], [max_turns(50), max_depth(1), max_tokens(350)])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(scripted(policy), circle=circle), "go")
        usage = runtime.loom.subtree_usage(episode.entity_id)
    assert (episode.truncated, episode.ward) == (True, "max_tokens")
    assert 350 <= usage.total_tokens <= 550


@pytest.mark.rule("V-33")
@pytest.mark.parametrize(
    ("content", "reason"), [("fine", "stop"), (None, "length"), ("", "content_filter")], ids=["whole", "cut", "blocked"]
)
async def test_the_tokens_of_a_replayed_answer_are_booked_whatever_it_says(content, reason) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 7}
    body = {"choices": [{"message": {"content": content}, "finish_reason": reason}], "usage": usage}
    async with Runtime.open("memory:") as runtime:
        with suppress(CrystalError):
            await runtime.cast(cantrip(replayed("openai", body), 0), "go")
        (root,) = runtime.loom.entities()
        assert runtime.loom.usage(root).total_tokens == 17


@pytest.mark.rule("V-33")
@pytest.mark.parametrize("how", ["interrupt", "undo"])
async def test_the_tokens_of_an_answer_that_comes_as_its_query_is_cut_are_booked(how) -> None:
    async def policy(_context):
        with anyio.CancelScope(shield=True):  # the provider has begun to send it
            await anyio.sleep(10)
        return {"content": "late", "usage": {"prompt_tokens": 10, "completion_tokens": 7}}

    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(cantrip(scripted(policy), 0), "go")
        await anyio.sleep(8)
        await (entity.undo() if how == "undo" else entity.interrupt(now=True))
        await anyio.sleep(60)
        assert runtime.loom.subtree_usage(entity.id).total_tokens == 17

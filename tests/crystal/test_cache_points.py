"""Marks for the caches of providers: where they stand, and what is counted and paid (R-22)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.crystals import CachePoints, Prices, anthropic, openrouter
from cantrip_actors.terms.context import Shared, View
from cantrip_actors.terms.messages import Message
from cantrip_actors.wards import max_turns
from tests.crystal.asking import request, result, said

pytestmark = pytest.mark.rule("R-22")
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
TALK = [
    Message("system", "Be terse."),
    Message("user", "one"),
    said("first"),
    Message("user", "two"),
    said("second"),
    Message("user", "three"),
]


def marked(body: dict[str, Any]) -> list[str]:
    """Where the marks of a request stand."""
    found = [
        f"tool {tool.get('name') or tool['function']['name']}" for tool in body["tools"] if "cache_control" in tool
    ]
    if any("cache_control" in part for part in body.get("system", ())):
        found.append("system")
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            place = "system" if message["role"] == "system" else part.get("text", part["type"])
            found += [place] if "cache_control" in part else []
    return found


def asked(cache: Any, messages: Any = TALK) -> list[str]:
    return marked(request(anthropic("claude-x", api_key="k", cache=cache), messages))


class TestAnthropic:
    """Where the marks stand."""

    @pytest.mark.parametrize(
        ("cache", "places"),
        [
            (None, []),
            ("5m", ["system", "three"]),
            (CachePoints(messages=0), ["system"]),
            (CachePoints(system=False, messages=2), ["tool done", "two", "three"]),
            (CachePoints(tools=True, messages=2), ["tool done", "system", "two", "three"]),
            (CachePoints(tools=False, system=False, messages=4), ["one", "two", "three"]),
        ],
    )
    def test_cache_points_mark_tools_system_and_the_newest_messages(self, cache: Any, places: list[str]) -> None:
        assert asked(cache) == places

    def test_tools_are_marked_without_a_system_prompt(self) -> None:
        assert asked("5m", TALK[1:]) == ["tool done", "three"]

    def test_each_mark_names_its_ttl(self) -> None:
        body = request(anthropic("claude-x", api_key="k", cache="1h"), TALK)
        assert body["system"][0]["cache_control"] == body["messages"][-1]["content"][-1]["cache_control"] == HOUR

    def test_after_a_turn_with_many_calls_the_last_mark_is_set_again(self) -> None:
        calls = [(f"c{n}", "read", {"path": str(n)}) for n in range(10)]
        many = [*TALK, said(None, *calls), *(result(f"c{n}", "found") for n in range(10))]
        assert asked("5m", many) == ["system", "three", "tool_result"]
        few = [*TALK, said(None, *calls[:3]), *(result(f"c{n}", "found") for n in range(3))]
        assert asked("5m", few) == ["system", "tool_result"]

    def test_marks_move_on_in_a_context_that_grows(self) -> None:
        crystal = anthropic("claude-x", api_key="k", cache=CachePoints(messages=2))
        shared = Shared(TALK[:2])
        assert marked(request(crystal, View(shared))) == ["system", "one"]
        shared = shared.extend(TALK[2:4])
        assert marked(request(crystal, View(shared))) == ["system", "one", "two"]
        shared = shared.extend(TALK[4:])
        grown = request(crystal, View(shared))
        assert marked(grown) == ["system", "two", "three"]
        fresh = anthropic("claude-x", api_key="k", cache=CachePoints(messages=2))
        assert grown == request(fresh, TALK)


class TestOpenRouter:
    """Claude behind OpenRouter is marked by itself, and other models are not."""

    def test_claude_models_get_marks(self) -> None:
        body = request(openrouter("anthropic/claude-sonnet-4.5", api_key="k"), TALK)
        assert marked(body) == ["system", "three"]
        assert body["messages"][0]["content"] == [{"type": "text", "text": "Be terse.", "cache_control": MARK}]
        two = openrouter("anthropic/claude-sonnet-4.5", api_key="k", cache=CachePoints("1h", messages=2))
        assert marked(request(two, TALK)) == ["system", "two", "three"]

    def test_results_of_gates_are_marked_unless_they_are_empty(self) -> None:
        crystal = openrouter("anthropic/claude-sonnet-4.5", api_key="k")
        talk = [*TALK[:2], said(None, ("c1", "read", {})), result("c1", "found")]
        assert marked(request(crystal, talk)) == ["system", "found"]
        assert marked(request(crystal, [*talk[:-1], result("c1", "")])) == ["system"]

    @pytest.mark.parametrize(("model", "cache"), [("meta/llama", "auto"), ("anthropic/claude-x", None)])
    def test_other_models_and_cache_none_get_no_marks(self, model: str, cache: Any) -> None:
        body = request(openrouter(model, api_key="k", cache=cache), TALK)
        assert marked(body) == []
        assert body["messages"][0]["content"] == "Be terse."


@pytest.mark.parametrize(
    "make",
    [
        lambda: anthropic("m", cache="2h"),
        lambda: openrouter("m", cache="soon"),
        lambda: openrouter("m", cache=CachePoints(tools=True)),
        lambda: CachePoints("2h"),
        lambda: CachePoints(messages=-1),
        lambda: CachePoints(tools=True, messages=3),
    ],
)
def test_an_invalid_cache_point_is_refused(make: Any) -> None:
    with pytest.raises(InvalidCantrip, match="cache: "):
        make()


@pytest.mark.real_time
async def test_cache_reads_and_writes_are_counted_and_priced() -> None:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 500}
    text = {"type": "text", "text": "ok"}
    message = {"type": "message", "id": "m", "model": "mine", "content": [text], "stop_reason": "end_turn"}
    body = {**message, "usage": {**usage, "output_tokens": 10}}
    prices = Prices({"mine": {"input": 4.0, "output": 20.0, "cached": 0.4, "written": 5.0}})
    async with FaultyServer([Reply(orjson.dumps(body), content_type="application/json")]) as server:
        crystal = anthropic("mine", base_url=server.url, api_key="k", prices=prices)
        circle = Circle(gates=["done"], wards=[max_turns(2)])
        async with Runtime.open() as runtime:
            episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
    told = episode.thread[0].metadata
    assert (told.tokens_prompt, told.tokens_cached, told.tokens_cache_written) == (1600, 1000, 500)
    assert episode.usage.cost == pytest.approx((100 * 4 + 1000 * 0.4 + 500 * 5 + 10 * 20) / 1e6)


@pytest.mark.real_time
async def test_openrouter_reports_the_tokens_that_claude_wrote_to_the_cache() -> None:
    details = {"cached_tokens": 1000, "cache_write_tokens": 500}
    usage = {"prompt_tokens": 1600, "completion_tokens": 10, "cost": 0.25, "prompt_tokens_details": details}
    chunk = {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}
    async with FaultyServer([Reply(events(chunk, done=True))]) as server:
        crystal = openrouter("anthropic/claude-x", base_url=server.url, api_key="k")
        response = await crystal.invoke(TALK)
    assert (response.usage.cached_tokens, response.metadata["cache_written_tokens"]) == (1000, 500)
    assert response.usage.cost == 0.25

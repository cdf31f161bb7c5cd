"""An assistant that lives for weeks among everything that misbehaves: it answers each intent or says why not."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from cantrip_actors import (
    Cantrip,
    CantripError,
    Circle,
    Companion,
    Entity,
    Folding,
    Image,
    Quarantined,
    Retry,
    Runtime,
    RuntimeClosed,
    Unavailable,
    gate,
)
from cantrip_actors.crystal.constructors import anthropic
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.opening import open_store
from cantrip_actors.mcp.servers import McpServer
from cantrip_actors.terms.tool_server import LostServer, Tool, ToolResult, ToolServer, ToolServerError
from cantrip_actors.wards import max_depth, max_turns
from tests.crystal.streams import Said, framed
from tests.exhaustive import EXHAUSTIVE
from tests.pictures import png
from tests.provider_rules import StrictProvider
from tests.runtime.test_cluster import crashing

INTENTS, DAYS = (2000, 30) if EXHAUSTIVE else (40, 1)
WINDOW = 60_000
"""The bytes of a request that the provider takes; it refuses a longer one as it refuses too long a context."""

CUT = "an answer that is cut off"
"""The text of a stream that is cut. One that ends after its reason to stop is whole, and then this is the answer."""

TOOL = Tool("add", "Add.", {"type": "object", "properties": {"n": {"type": "integer"}}})


class World:
    """The surroundings of the assistant. `happened` counts their faults."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.is_broken_until = -1.0
        self.billed = 0
        """The tokens that the provider has put on the bill, also those of answers that were cut off."""
        self.provider = StrictProvider("anthropic", self.answer, refuse=self.refuse)

    def happens(self, what: str, share: float) -> bool:
        """Return whether something happens, which has this probability."""
        if self.chance.random() >= share:
            return False
        self.happened[what] += 1
        return True

    # the provider

    def refuse(self, body: dict[str, Any]) -> httpx.Response | None:
        """Refuse what a provider refuses at times, and what it always refuses."""
        text = json.dumps(body)
        if len(text) > WINDOW:
            self.happened["the context is too long"] += 1
            return self._error(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
        if Image(BROKEN).base64() in text:
            self.happened["a picture is refused"] += 1
            return self._error(400, "invalid_request_error", "Could not process image")
        for what, share, status, kind in (
            ("too many requests", 0.02, 429, "rate_limit_error"),
            ("overloaded", 0.02, 529, "overloaded_error"),
            ("a server error", 0.02, 500, "api_error"),
            ("the key was revoked", 0.002, 401, "authentication_error"),
            ("the account is empty", 0.002, 400, "invalid_request_error"),
        ):
            if self.happens(what, share):
                return self._error(status, kind, what)
        if self.happens("the network is away", 0.01):
            raise httpx.ConnectError("unreachable")
        return None

    def _error(self, status: int, kind: str, message: str) -> httpx.Response:
        content = {"type": "error", "error": {"type": kind, "message": message}}
        return httpx.Response(status, json=content, headers={"retry-after": "3"} if status == 429 else {})

    def answer(self, body: dict[str, Any]) -> bytes:
        """Answer a query, and put its tokens on the bill."""
        size = b'"input_tokens": %d' % (len(json.dumps(body)) // 4)
        stream = self.make_answer(body).replace(b'"input_tokens": 10', size)
        self.billed += count_tokens(stream)
        return stream

    def make_answer(self, body: dict[str, Any]) -> bytes:
        """Answer the newest intent, mostly after some calls."""
        if self.happens("a stream is cut", 0.01):
            whole = framed("anthropic", Said("", CUT))
            return whole[: self.chance.randrange(len(whole))]
        if self.happens("an empty answer", 0.01):
            return framed("anthropic", Said())
        if self.happens("only thinking", 0.01):
            return framed("anthropic", Said("hm"))
        if self.chance.random() < 0.5:
            calls = tuple(self.call() for _ in range(self.chance.choice((1, 1, 2, 3))))
            return framed("anthropic", Said("", self.chance.choice(("", "let me see")), calls))
        numbers = re.findall(r"intent (\d+)", json.dumps(body["messages"]))
        return framed("anthropic", Said("", "", (("done", {"answer": f"answer {numbers[-1]}"}),)))

    def call(self) -> tuple[str, dict[str, Any]]:
        """Return a call as a model makes it: often a good one, sometimes of no gate at all."""
        anything = self.chance.choice(({}, {"": ""}, {"n": "x"}, {"text": None}, {"intents": ["a", ""]}))
        calls: list[tuple[str, dict[str, Any]]] = [
            ("look", {}),
            ("large", {}),
            ("picture", {}),
            ("failing", {}),
            ("slow", {}),
            ("tools__add", {"n": 1}),
            ("call_agent", {"intent": "look at it"}),
            ("call_agent_batch", anything),
            (self.chance.choice(("browser.tabs.open", "$lookup", "größe", "", "x" * 200, "look ")), anything),
            ("look", anything),
        ]
        return self.chance.choice(calls)

    # the database of the companion

    async def use_database(self) -> None:
        """Raise if the database is away: for a while that it names, or as a bug."""
        if anyio.current_time() < self.is_broken_until:
            raise ConnectionError("the database refuses connections")
        if self.happens("a companion's service is away", 0.01):
            raise Unavailable("the database is away", retry_after=30.0)
        if self.happens("a companion crashes", 0.002):
            self.is_broken_until = anyio.current_time() + self.chance.choice((1.0, 600.0, 7200.0))
            raise ConnectionError("the database refuses connections")


def count_tokens(stream: bytes) -> int:
    """Return the tokens that the events of a stream report; an event is whole without the blank line after it, too."""
    prompt = completion = 0
    for line in stream.decode().split("\n\n"):
        try:
            event = json.loads(line.partition("data: ")[2])
        except ValueError:  # the stream is cut inside of it
            continue
        usage = event.get("usage") or event.get("message", {}).get("usage") or {}
        prompt, completion = usage.get("input_tokens", prompt), usage.get("output_tokens", completion)
    return prompt + completion


BROKEN = png(9, 9)[:-20]


class Diary(Companion):
    """A companion whose database is away at times."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def begins(self, here: Any) -> None:
        await self.world.use_database()

    async def recalls(self, here: Any, last: int) -> None:
        await self.world.use_database()

    async def ends(self, here: Any, outcome: Any) -> None:
        await self.world.use_database()


class Unsteady(ToolServer):
    """A server that ends, refuses and forgets at times."""

    async def hold(self, ready: Any, elicit: Any) -> None:
        lost, world = anyio.Event(), WORLDS[-1]

        class Line:
            is_lost = False

            async def tools(self) -> list[Tool]:
                return [TOOL]

            async def call(self, *_: Any) -> ToolResult:
                if world.happens("a tool server dies", 0.05):
                    lost.set()
                    await anyio.sleep_forever()
                if world.happens("a tool server is lost before a call", 0.05):
                    lost.set()
                    raise LostServer("it was restarted")
                if world.happens("a tool server refuses", 0.05):
                    raise ToolServerError("no such session")
                return ToolResult("3")

        ready(Line())
        await lost.wait()


WORLDS: list[World] = []
"""The world of the test that runs: a tool server is a value, and is made anew from it."""


def make_assistant(world: World) -> Cantrip:
    @gate
    async def look() -> str:
        """Look."""
        return "x" * world.chance.randrange(2000)

    @gate
    async def large() -> str:
        """Return a large result."""
        world.happened["a large result"] += 1
        return "long " * 30_000

    @gate
    async def picture() -> Image:
        """Return a picture that is broken."""
        return Image(BROKEN)

    @gate
    async def failing() -> str:
        """Fail."""
        raise ZeroDivisionError("a bug")

    @gate(timeout=5.0)
    async def slow() -> str:
        """Take too long."""
        await anyio.sleep(60)
        return "late"

    server: Any = Unsteady(name="tools")
    assert not isinstance(server, McpServer)
    return Cantrip(
        anthropic("claude-sonnet-4-5", client=world.provider.client, api_key="k"),
        circle=Circle(
            ["done", "call_agent", "call_agent_batch", look, large, picture, failing, slow, server],
            [max_turns(12), max_depth(1)],
            companion=Diary(world),
        ),
        retry=Retry(max_retries=2),
        folding=Folding(trigger_after_turns=20),
        name="assistant",
    )


async def ask(entity: Entity, number: int, reasons: Counter[str]) -> str:
    """Send an intent until it is answered; return the answer, or the error."""
    while True:
        try:
            episode = await entity.send(f"intent {number}", key=f"{number}")
        except Quarantined:
            reasons["quarantined, and asked again"] += 1
            await anyio.sleep(600)
        except RuntimeClosed:
            raise
        except CantripError as error:
            reasons[type(error).__name__] += 1
            return f"{type(error).__name__}: {error}"
        else:
            reasons["answered" if episode.terminated else f"truncated by {episode.ward}"] += 1
            return str(episode.result) if episode.terminated else f"truncated by {episode.ward}"


@pytest.mark.rule("V-10", "V-11", "V-13", "V-30", "LOOM-1")
@pytest.mark.parametrize("seed", range(20) if EXHAUSTIVE else range(1))
async def test_an_assistant_of_weeks_answers_each_intent_or_says_why_not(tmp_path: Path, seed: int) -> None:
    world, reasons = World(seed), Counter[str]()
    WORLDS.append(world)
    url, answers = f"jsonl:{tmp_path / 'loom.jsonl'}", list[str]()
    assistant = make_assistant(world)
    number, id = 0, None
    while number < INTENTS:
        async with crashing(Runtime.open(url, cantrips=[assistant], recover="resume", passivate_after=600)) as runtime:
            entity = await runtime.ensure("anna", assistant)
            assert id in (None, entity.id), "it is the same entity after every restart"
            id = entity.id
            for _ in range(world.chance.randrange(1, 60)):
                number += 1
                answers.append(await ask(entity, number, reasons))
                await anyio.sleep(world.chance.random() * 2 * 86_400 * DAYS / INTENTS)
                if number == INTENTS:
                    break
    async with Runtime.open(url, cantrips=[assistant], recover="resume") as runtime:
        await anyio.sleep(7200)
        assert runtime.loom.state(str(id)) == "idle"
        assert await ask(await runtime.ensure("anna", assistant), 0, reasons)
        usage = await runtime.read(lambda: runtime.loom.subtree_usage(str(id)))
    WORLDS.remove(world)
    sys.stdout.write(f"{INTENTS} intents: {dict(reasons)}; what happened: {dict(world.happened)}\n")
    for at, answer in enumerate(answers, start=1):
        is_answer = answer in (f"answer {at}", CUT)
        assert is_answer or re.match(r"\w+: .+", answer) or answer.startswith("truncated by "), answer
    assert reasons["answered"] > 0.8 * INTENTS
    assert usage.total_tokens == world.billed
    with open_store(url) as store:
        assert not verify_loom(store).faults

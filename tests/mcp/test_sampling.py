"""A crystal that answers a server during a call: who pays, what is recorded, and when there is no answer."""

from typing import Any

import anyio
import pytest

from cantrip_actors import AllowanceSpent, Cantrip, Circle, InvalidCantrip, Runtime, scripted
from cantrip_actors.looms import Sampled
from cantrip_actors.mcp import http, inproc
from cantrip_actors.observe.backfill import build_spans
from cantrip_actors.wards import max_tokens, max_turns
from tests.mcp.test_gates import ERAS, seen
from tests.mcp.tools import tools
from tests.observe.spans import Sdk, parent_of
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("MCP-10")

COSTS = {"prompt_tokens": 30, "completion_tokens": 12}


def sage(contexts: list[Any] | None = None, seconds: float = 0, **more: Any) -> Any:
    """A crystal that answers servers; `contexts` gets what it is asked."""

    async def answer(context: Any) -> Any:
        if contexts is not None:
            contexts.append(context)
        await anyio.sleep(seconds)
        return {"content": "42", "usage": COSTS, **more}

    return scripted(answer, name="sage")


def asking(
    *says: Any, era: Any = "modern", crystal: Any = None, wards: Any = (), seen_by: Any = None, **o: Any
) -> Cantrip:
    server = inproc("t", tools(seen_by), era=era, sampling=crystal, **o)
    says = tuple({"usage": {"prompt_tokens": 1, "completion_tokens": 1}, **one} for one in (*says, done("ok")))
    return Cantrip(scripted([*says]), circle=Circle(["done", server], [max_turns(9), *wards]), name="asker")


def booked(runtime: Runtime, entity_id: str) -> list[Sampled]:
    return [one for one in runtime.loom.records(entity_id) if isinstance(one, Sampled)]


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_gets_no_answer_by_default(era: Any) -> None:
    noticed: list[str] = []
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(asking(say("t__wonder", about="life"), era=era, seen_by=noticed), "go")
        assert seen(outcome)[0][1]
        assert noticed == ["wonders"]
        assert not booked(runtime, outcome.entity_id)


@pytest.mark.parametrize("era", ERAS)
async def test_a_crystal_answers_a_server_and_the_entity_pays(era: Any) -> None:
    contexts: list[Any] = []
    cantrip = asking(say("t__wonder", about="life"), era=era, crystal=sage(contexts))
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(cantrip, "go")
        assert seen(outcome)[0] == ("42 (sage, endTurn)", False)
        (record,) = booked(runtime, outcome.entity_id)
        told = (record.server, record.crystal, record.answer, record.turn_id, record.usage.total_tokens)
        assert told == ("t", "sage", "42", outcome.thread[0].id, 42)
        assert record.asked.endswith("life")
        assert outcome.usage.total_tokens == 42 + 2 * 2
        assert runtime.loom.subtree_usage(outcome.entity_id).total_tokens == 42 + 2 * 2
    (context,) = contexts
    assert [(one.role, one.content) for one in context] == [("user", "OBEY the server."), ("user", "life")]


async def test_the_answers_to_a_server_count_in_the_allowance_of_the_sender() -> None:
    cantrip = asking(say("t__wonder", about="life"), crystal=sage(usage={"cost": 2.0}))
    async with Runtime.open() as runtime:
        runtime.set_allowance(1.0, by="anna")
        await runtime.cast(cantrip, "go", by="anna")
        with pytest.raises(AllowanceSpent):
            await runtime.cast(cantrip, "go", by="anna")


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_gets_no_answer_that_the_budget_has_no_room_for(era: Any) -> None:
    contexts: list[Any] = []
    cantrip = asking(say("t__wonder", about="life", times=4), era=era, crystal=sage(contexts), wards=[max_tokens(80)])
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(cantrip, "go")
        assert len(contexts) == 2
        assert len(booked(runtime, outcome.entity_id)) == 2
    result, is_error = seen(outcome)[0]
    assert is_error
    assert "the budget of the entity is used up" in str(result)
    assert outcome.truncated
    assert outcome.ward == "max_tokens"


async def test_the_entity_pays_for_an_answer_that_its_server_cannot_get() -> None:
    broken = scripted([{"usage": COSTS}] * 2, name="sage")  # neither content nor tool calls
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(asking(say("t__wonder", about="life"), crystal=broken), "go")
        assert seen(outcome)[0][1]
        assert outcome.usage.total_tokens == 42 + 2 * 2


async def test_answers_count_in_the_budget_after_a_restart(tmp_path: Any) -> None:
    loom, contexts = f"sqlite:{tmp_path}/loom.db", list[Any]()
    cantrip = asking(
        say("t__wonder", about="life"), done("one"), say("t__wonder", about="more"), crystal=sage(contexts),
        wards=[max_tokens(46)],
    )  # fmt: skip
    async with Runtime.open(loom) as runtime:
        entity = await runtime.invoke(cantrip, "go", name="asker")
        assert (await entity.result()).terminated
    async with Runtime.open(loom, cantrips=[cantrip]) as runtime:
        outcome = await runtime.entity("asker").send("again")
        assert (outcome.truncated, outcome.ward) == (True, "max_tokens")
    assert len(contexts) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_one_call_gets_ten_answers_at_most(era: Any) -> None:
    contexts: list[Any] = []
    async with Runtime.open() as runtime:
        cantrip = asking(say("t__wonder", about="life", times=11), era=era, crystal=sage(contexts))
        result, is_error = seen(await runtime.cast(cantrip, "go"))[0]
    assert is_error
    assert "at most 10 answers" in str(result)
    assert len(contexts) == 10


async def test_of_two_calls_at_once_an_older_server_gets_no_answer() -> None:
    noticed: list[str] = []
    server = inproc("t", tools(noticed), era="handshake", sampling=sage())
    async with Runtime.open() as runtime:

        def cantrip(*says: Any) -> Cantrip:
            return Cantrip(scripted([*says, done("ok")]), circle=Circle(["done", server], [max_turns(9)]))

        waiting = await runtime.start(cantrip(say("t__wait", seconds=30)), "go")
        while "waits" not in noticed:
            await anyio.sleep(0.1)
        outcome = await runtime.cast(cantrip(say("t__wonder", about="life")), "go")
        result, is_error = seen(outcome)[0]
        assert is_error
        assert "2 calls are running: it is not known which of them pays" in str(result)
        assert not booked(runtime, outcome.entity_id) + booked(runtime, waiting.id)
        await waiting.result()


async def test_of_two_calls_at_once_each_entity_pays_its_own_answers() -> None:
    server = inproc("t", tools(), sampling=sage(seconds=5))
    async with Runtime.open() as runtime:
        cantrip = [
            Cantrip(
                scripted([say("t__wonder", about=f"life {n}"), done("ok")]),
                circle=Circle(["done", server], [max_turns(9)]),
            )
            for n in range(2)
        ]
        entities = [await runtime.start(one, "go") for one in cantrip]
        for number, entity in enumerate(entities):
            await entity.result()
            (record,) = booked(runtime, entity.id)
            assert record.asked.endswith(f"life {number}")


@pytest.mark.parametrize("era", ERAS)
async def test_an_interrupt_ends_the_answer_and_books_nothing(era: Any) -> None:
    noticed: list[str] = []
    cantrip = asking(say("t__wonder", about="life"), done("later"), era=era, crystal=sage(seconds=30), seen_by=noticed)
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip, "go")
        while "wonders" not in noticed:
            await anyio.sleep(0.1)
        await anyio.sleep(1)
        await entity.interrupt(now=True)
        assert (await entity.episode()).reason == "interrupted"
        await anyio.sleep(60)
        assert noticed == ["wonders"]
        assert not booked(runtime, entity.id)
        assert (await entity.send("go on")).terminated


async def test_answers_before_a_question_to_a_person_are_not_bought_again(tmp_path: Any) -> None:
    """The server asks a model and a person at once; the person answers after a restart."""
    from mcp.server.mcpserver import Context, MCPServer
    from mcp_types import (
        CreateMessageRequest,
        CreateMessageRequestParams,
        ElicitRequest,
        ElicitRequestFormParams,
        InputRequiredResult,
        SamplingMessage,
        TextContent,
    )

    server = MCPServer("both")

    @server.tool(structured_output=False)
    async def both(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask a model and a person."""
        if not ctx.input_responses:
            question = SamplingMessage(role="user", content=TextContent(type="text", text="life"))
            form = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
            requests: Any = {
                "a model": CreateMessageRequest(params=CreateMessageRequestParams(messages=[question], max_tokens=9)),
                "a person": ElicitRequest(params=ElicitRequestFormParams(message="Size?", requested_schema=form)),
            }
            return InputRequiredResult(input_requests=requests, request_state="x")
        model, person = (ctx.input_responses[name] for name in ("a model", "a person"))
        return f"{model.content.text} {person.content['size']}"  # type: ignore[union-attr,index]

    contexts: list[Any] = []

    def answer(context: Any) -> Any:
        return done(context[-1].content) if context[-1].role == "tool" else say("t__both")

    circle = Circle(["done", inproc("t", server, sampling=sage(contexts))], [max_turns(5)])
    cantrip, loom = Cantrip(scripted(answer), circle=circle, name="asker"), f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(loom) as runtime, runtime.requests(follow=True) as feed:
        await runtime.invoke(cantrip, "go", name="asker")
        request = await anext(feed)
    async with Runtime.open(loom, cantrips=[cantrip]) as runtime:
        await runtime.decide(request.id, answer={"size": 3})
        outcome = await runtime.entity("asker").result()
        assert outcome.result == "42 3"
        assert len(contexts) == len(booked(runtime, outcome.entity_id)) == 1


async def test_programs_of_a_code_circle_pay_for_their_servers_too() -> None:
    server = inproc("t", tools(), sampling=sage())
    circle = Circle(["done", server], [max_turns(3)], "python")
    says = [{"code": "submit_answer(t__wonder(about='life'))"}]
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(Cantrip(scripted(says), circle=circle), "go")
        assert outcome.result == "42 (sage, endTurn)"
        assert len(booked(runtime, outcome.entity_id)) == 1


def test_sampling_is_part_of_the_content_id_and_has_to_be_a_crystal() -> None:
    def made(sampling: Any) -> str:
        server = http("t", "https://example.org/mcp", sampling=sampling)
        return Cantrip(scripted([done("ok")]), circle=Circle(["done", server], [max_turns(1)])).id

    assert len({made(None), made("openai:gpt-4o"), made(sage())}) == 3
    with pytest.raises(InvalidCantrip, match="server t: sampling: expected 'family:model'"):
        made("gpt")


@pytest.mark.rule("OTEL-14")
async def test_the_tokens_of_an_answer_to_a_server_are_in_a_span_below_its_call() -> None:
    sdk = Sdk()
    cantrip = asking(say("t__wonder", about="life"), crystal=sage(seconds=2))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        outcome = await runtime.cast(cantrip, "go")
        usage = runtime.loom.usage(outcome.entity_id)
        made = build_spans(runtime.loom.records(outcome.entity_id), runtime.loom.header(outcome.entity_id))
    answer = sdk.one("chat sage")
    assert parent_of(answer) == sdk.one("execute_tool t__wonder").context.span_id
    assert answer.attributes["cantrip.sampling"] is True
    assert answer.end_time - answer.start_time == pytest.approx(2e9, rel=0.01)
    for spans in (sdk.spans, made):
        for name, field in (("input", "prompt_tokens"), ("output", "completion_tokens")):
            counted = sum((span.attributes or {}).get(f"gen_ai.usage.{name}_tokens", 0) for span in spans)
            assert counted == getattr(usage, field) > 2

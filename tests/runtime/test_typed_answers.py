"""Typed answers: `examples/typed_answers.py` has each kind of type, these are the doors, the ends and the restarts."""

import pickle
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, computed_field

from cantrip_actors import AnswerMisfit, Cantrip, Circle, Runtime, Truncated, gate, scripted, wrap
from cantrip_actors.terms.messages import ToolCall
from cantrip_actors.wards import max_depth, max_turns
from tests.exhaustive import EXHAUSTIVE
from tests.http.serving import served
from tests.mcp_server.clients import connected
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("Y-11")


class Bill(BaseModel):
    total: int = Field(gt=0)
    items: list[str] = []
    due: date | None = None


class Square(BaseModel):
    """A model that pydantic writes with other names, and with more, than it reads."""

    model_config = ConfigDict(extra="forbid")

    side: int = Field(validation_alias="Side")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        """The area."""
        return self.side**2


WRONG, RIGHT = done({"total": 0}), done({"total": "3", "due": "2026-11-28"})
BILL = Bill(total=3, due=date(2026, 11, 28))


def make_biller(answers: Any, **parts: Any) -> Cantrip[Bill]:
    return Cantrip(
        scripted(answers), answer=Bill, name="biller", **({"max_turns": 4} if "circle" not in parts else {}) | parts
    )


async def test_a_wrong_answer_is_an_observation_and_is_corrected() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_biller([WRONG, done("three"), RIGHT]), "go")
    assert [turn.gate_calls[0].is_error for turn in episode.thread] == [True, True, False]
    assert "greater than 0" in str(episode.thread[0].observation)
    assert (episode.result, episode.raw_result) == (BILL, {"total": 3, "items": [], "due": "2026-11-28"})


async def test_an_answer_in_plain_text_is_asked_to_call_done() -> None:
    def answer(context: Any) -> Any:
        return RIGHT if "call done" in str(context[-1].content) else {"content": "It is 3."}

    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_biller(answer), "go")
    assert (len(episode.thread), episode.result) == (2, BILL)


async def test_a_truncated_or_interrupted_episode_has_no_result_and_says_why() -> None:
    async with Runtime.open() as runtime:
        cut_off = await runtime.cast(make_biller([WRONG] * 4), "go")
        entity = await runtime.invoke(make_biller([{**RIGHT, "delay": 10.0}]), "go")
        await entity.interrupt("never mind", now=True)
        interrupted = await entity.episode()
    with pytest.raises(Truncated, match=r"max_turns\(4\)") as truncated:
        _ = cut_off.result
    assert (truncated.value.ward, truncated.value.reason) == ("max_turns", "truncated")
    assert truncated.value.entity_id == cut_off.entity_id
    with pytest.raises(Truncated, match="never mind") as truncated:
        _ = interrupted.result
    assert (truncated.value.ward, truncated.value.reason) == (None, "interrupted")
    assert interrupted.raw_result is None
    with pytest.raises(ValidationError):
        interrupted.result_as(Bill)


async def test_an_episode_without_a_type_keeps_its_result_of_none() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted([say("echo", text="x")]), gates=["echo"], max_turns=1), "go")
    assert (episode.truncated, episode.result) == (True, None)


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (Annotated[int, AfterValidator(lambda number: number * 2)], 3, 6),
        (Annotated[list[str], BeforeValidator(lambda text: text.split(","))], "a,b", ["a", "b"]),
        (Square, {"Side": 3}, Square(Side=3)),  # type: ignore[call-arg]  # by its alias
        (set[int], [2, 1, 2], {1, 2}),
        (bytes, "abc", b"abc"),
    ],
)
async def test_validators_run_once_on_what_the_model_wrote(kind: Any, answer: Any, value: Any) -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted([done(answer)]), answer=kind, max_turns=1), "go")
    assert episode.result == value
    assert episode.result == value


@settings(max_examples=100 if EXHAUSTIVE else 25)
@given(
    answer=st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists)
)
def test_an_answer_of_any_kind_has_one_value_or_is_refused(answer: Any) -> None:
    gate_done = Cantrip("local:b", answer=int | list[int] | str, max_turns=1)
    bound = gate_done.circle.open_gates["done"].check(ToolCall("1", "done", {"answer": answer}))
    if hasattr(bound, "args"):
        value = gate_done.read_answer(bound.args["answer"])
        assert gate_done.read_answer(value) == value


@pytest.mark.rule("COMP-5")
async def test_a_child_answers_in_the_type_of_its_parent() -> None:
    def answer(context: Any) -> Any:
        if context[0].content == "child":
            return RIGHT if context[-1].role == "tool" else WRONG
        return done(context[-1].content) if context[-1].role == "tool" else say("call_agent", intent="child")

    circle = Circle(["done", "call_agent"], [max_turns(4), max_depth(1)])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_biller(answer, circle=circle), "go")
        (child_id,) = runtime.loom.children(episode.thread[0].id)
        child = await runtime.find(child_id).episode()
        assert (child.result, len(child.thread)) == (BILL, 2)
    assert episode.thread[1].gate_calls[0].result == {"total": 3, "items": [], "due": "2026-11-28"}


@pytest.mark.rule("COMP-1")
async def test_a_parent_may_ask_a_child_for_an_answer_that_fits_a_schema() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}

    def answer(context: Any) -> Any:
        is_first = context[-1].role != "tool"
        if context[0].content == "child":
            return (
                {"content": "no call"}
                if is_first and context[-1].role == "user" and len(context) == 1
                else done([1, 2])
            )
        return say("call_agent", intent="child", answer=schema) if is_first else RIGHT

    circle = Circle(["done", "call_agent"], [max_turns(4), max_depth(1)])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_biller(answer, circle=circle), "go")
        (child_id,) = runtime.loom.children(episode.thread[0].id)
        child = await runtime.find(child_id).episode()
        assert (child.result, len(child.thread)) == ([1, 2], 2)
    assert episode.result == BILL
    assert episode.thread[1].gate_calls[0].result == [1, 2]


@pytest.mark.rule("V-30", "D-011")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strnig"}, "strnig"),
        ({"enum": ["x" * 30_000]}, "characters"),
        ("integer", "should be an object"),
    ],
)
async def test_a_wrong_schema_for_a_child_is_an_observation(schema: Any, why: str) -> None:
    circle = Circle(["done", "call_agent"], [max_turns(2), max_depth(1)])
    async with Runtime.open() as runtime:
        answers = [say("call_agent", intent="child", answer=schema), done(1)]
        episode = await runtime.cast(Cantrip(scripted(answers), circle=circle), "go")
    assert why in str(episode.thread[0].observation)


async def test_a_child_is_not_asked_for_another_answer_than_the_authors_done_gate() -> None:
    @gate(name="done")
    async def finish(answer: Bill) -> None:
        """Finish."""

    answers = [say("call_agent", intent="child", answer={"type": "integer"}), RIGHT]
    async with Runtime.open() as runtime:
        circle = Circle([finish, "call_agent"], [max_turns(2), max_depth(1)])
        episode = await runtime.cast(Cantrip(scripted(answers), circle=circle), "go")
    assert "yours is the only one here" in str(episode.thread[0].observation)


async def test_steps_around_done_stay_and_see_the_typed_answer() -> None:
    seen: list[Any] = []
    circle = Circle([wrap("done", pre=[lambda call: seen.append(call.args["answer"])])], [max_turns(4)])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_biller([WRONG, RIGHT], circle=circle), "go")
    assert episode.result == BILL
    assert seen == [{"total": 3, "items": [], "due": "2026-11-28"}]


@pytest.mark.rule("N-38")
async def test_results_are_typed_in_a_process_that_did_not_run_the_entity(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    cantrip = make_biller([RIGHT] * 3)
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        await runtime.cast(cantrip, "go", key="one")
        entity = await runtime.invoke(cantrip, "go", name="desk")
        receipt = await entity.post("more", key="two")
        assert [(await entity.episode()).result, (await receipt.episode()).result] == [BILL, BILL]
    async with Runtime.open(url, cantrips=[make_biller([])]) as runtime:
        again = await runtime.cast(make_biller([]), "go", key="one")
        desk = runtime.entity("desk")
        assert desk is not None
        results = [again, await desk.episode(), await runtime.receipt("desk", "two").episode()]
        assert [episode.result for episode in results] == [BILL] * 3
    async with Runtime.open(url) as runtime:  # it knows no cantrip of the entity
        assert (await runtime.find(again.entity_id).episode()).result == {"total": 3, "items": [], "due": "2026-11-28"}


async def test_forks_batches_and_submissions_are_typed() -> None:
    cantrip = make_biller(lambda _context: RIGHT)
    async with Runtime.open(cantrips=[cantrip]) as runtime:
        first = await runtime.cast(cantrip, "go")
        forked = await runtime.fork(first.thread[0].id, intent="again")
        submitted = await (await runtime.submit("biller", "go")).episode()
        assert (forked.result, submitted.result) == (BILL, BILL)


@pytest.mark.real_time
def test_results_are_typed_without_await() -> None:
    with Runtime.blocking() as runtime:
        assert runtime.cast(make_biller([RIGHT]), "go").result == BILL
        assert runtime.invoke(make_biller([RIGHT]), "go").episode().result == BILL


@pytest.mark.parametrize("medium", ["python", "javascript"])
async def test_programs_are_held_to_the_type(medium: Any) -> None:
    programs: dict[str, Callable[[str], str]] = {
        "python": lambda answer: f"done(answer={answer})",
        "javascript": lambda answer: f"done({{answer: {answer}}})",
    }
    write = programs[medium]
    answers = [{"code": write('{"total": 0}')}, {"code": write('{"total": 3, "due": "2026-11-28"}')}]
    circle = Circle(["done"], [max_turns(4)], medium=medium)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_biller(answers, circle=circle), "go")
    assert (episode.result, len(episode.thread)) == (BILL, 2)


@pytest.mark.rule("MCP-13")
async def test_the_tool_of_an_mcp_server_has_the_schema_and_the_json_of_the_answer() -> None:
    async with connected("2026-07-28", [make_biller([WRONG, RIGHT])]) as (client, _):
        tool = (await client.list_tools()).tools[0]
        assert tool.output_schema is not None
        schema = tool.output_schema["properties"]["result"]
        schema = tool.output_schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema
        assert set(schema["properties"]) == {"total", "items", "due"}
        answer: Any = (await client.call_tool("biller", {"intent": "go"})).structured_content
        assert answer["result"] == {"total": 3, "items": [], "due": "2026-11-28"}


@pytest.mark.real_time
async def test_http_returns_the_json_of_the_answer_and_takes_its_schema_from_typed_clients() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "Bill", "schema": Bill.model_json_schema(), "strict": True}}
    async with served([make_biller([WRONG, RIGHT, RIGHT])]) as on:
        cast = await on.post("casts", {"cantrip": "biller", "intent": "go", "wait": 10}, 200)
        assert cast["result"] == {"total": 3, "items": [], "due": "2026-11-28"}
        chat = {"model": "biller", "messages": [{"role": "user", "content": "go"}], "response_format": form}
        answer = await on.client.post("/v1/chat/completions", json=chat)
        assert Bill.model_validate_json(answer.json()["choices"][0]["message"]["content"]) == BILL


async def test_a_done_gate_of_the_users_own_is_kept() -> None:
    @gate(name="done")
    async def finish(answer: Bill) -> None:
        """Finish."""

    cantrip = Cantrip(scripted([RIGHT]), gates=[finish], max_turns=4)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    assert episode.result == {"total": 3, "items": [], "due": "2026-11-28"}
    assert episode.result_as(Bill) == BILL


class Receipt(BaseModel):
    total: int
    currency: str


@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
async def test_an_answer_of_an_earlier_release_that_does_not_fit_the_new_type_says_so(
    tmp_path: Path, store: str
) -> None:
    def make_desk(kind: Any, answer: Any) -> Cantrip[Any]:
        return Cantrip(scripted(lambda context: done(answer)), answer=kind, max_turns=2, name="desk")

    url, old = f"{store}:{tmp_path / 'loom'}", make_desk(Bill, {"total": 3})
    async with Runtime.open(url, cantrips=[old]) as runtime:
        entity = await runtime.ensure("anna", old)
        assert (await entity.send("first", key="1")).result == Bill(total=3)
    new = make_desk(Receipt, {"total": 4, "currency": "NOK"})
    async with Runtime.open(url, cantrips=[new]) as runtime:
        entity = await runtime.ensure("anna", new)
        repeated = await entity.send("first", key="1")
        pickled = pickle.loads(pickle.dumps(repeated))
        assert (await entity.send("second")).result == Receipt(total=4, currency="NOK")
    for episode in (repeated, pickled):
        with pytest.raises(AnswerMisfit, match=r'missing required argument "answer\.currency".*raw_result'):
            _ = episode.result
        assert episode.raw_result["total"] == 3

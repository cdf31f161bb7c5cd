"""The crystal contract: how crystals are called, and what of their answers is accepted."""

import asyncio
import contextlib
import functools
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import Query, ask, attempt_now, scripted
from cantrip_actors.crystal.query import Look, PostingCrystal, Watch
from cantrip_actors.stream.wire import ItemDelta, ItemStart
from cantrip_actors.terms.context import Shared, View
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import NO_USAGE, Invocation, Message, Response, ToolCall, ToolDefinition, Usage
from cantrip_actors.terms.retry import Retry

TOOLS = (ToolDefinition("done", "", {"type": "object"}),)
NO_RETRY = Retry(max_retries=0)


def query(*texts, tools=TOOLS, tool_choice=None, **options):
    context = [Message("user", text) for text in texts or ("hi",)]
    return Query(Invocation(context, tools, tool_choice), options)


def crystal_of(invoke):
    return SimpleNamespace(invoke=invoke)


async def answer(invoke, asked=None):
    return await ask(crystal_of(invoke), asked or query(), retry=NO_RETRY)


class TestCalling:
    """`invoke` is called as its signature wants."""

    @pytest.mark.rule("CRYSTAL-1")
    async def test_a_crystal_gets_the_whole_context_at_every_query(self):
        seen = []

        async def invoke(messages, tools, tool_choice):
            seen.append(([m.content for m in messages], [t.name for t in tools], tool_choice))
            return {"content": "x"}

        await answer(invoke, query("a"))
        await answer(invoke, query("a", "b", tool_choice="auto"))
        assert seen == [(["a"], ["done"], None), (["a", "b"], ["done"], "auto")]

    @pytest.mark.rule("CRYSTAL-2")
    async def test_a_long_context_is_not_copied(self):
        context = View(Shared(Message("user", str(n)) for n in range(100_000)))
        got = []

        async def invoke(messages, tools, tool_choice):
            got.append(messages)
            return {"content": str(len(messages))}

        response = await answer(invoke, Query(Invocation(context)))
        assert response.content == "100000"
        assert got[0] is context

    @pytest.mark.parametrize(
        "kind", ["by name", "only keywords", "other names", "positional only", "star", "kwargs", "one"]
    )
    async def test_parameters_get_their_values_by_name_or_position(self, kind):
        async def by_name(tool_choice, messages, tools):
            return [messages, tools, tool_choice]

        async def only_keywords(*, messages, tools, tool_choice):
            return [messages, tools, tool_choice]

        async def other_names(history, gates, choice, temperature=0.5):
            assert temperature == 0.5
            return [history, gates, choice]

        async def positional_only(messages, tools, tool_choice, /):
            return [messages, tools, tool_choice]

        async def star(*args):
            return list(args)

        async def kwargs(messages, **given):
            return [messages, given["tools"], given["tool_choice"]]

        async def one(messages):
            return [messages, TOOLS, "required"]

        functions = {f.__name__.replace("_", " "): f for f in (by_name, only_keywords, other_names, positional_only)}
        functions |= {f.__name__: f for f in (star, kwargs, one)}
        got = []

        @functools.wraps(functions[kind])
        async def invoke(*args, **kwargs):
            got.append(await functions[kind](*args, **kwargs))
            return {"tool_calls": [{"gate": "done", "args": {}}]}

        asked = query("hi", tool_choice="required")
        await answer(invoke, asked)
        assert got == [[asked.invocation.messages, TOOLS, "required"]]

    async def test_a_method_can_be_a_crystal(self):
        class Mine:
            name = "mine"

            async def invoke(self, messages, tools=None, tool_choice=None):
                return {"content": f"{self.name} {len(messages)} {len(tools)}"}

        assert (await ask(Mine(), query(), retry=NO_RETRY)).content == "mine 1 1"

    async def test_two_objects_of_one_class_are_two_crystals(self):
        class Mine:
            def __init__(self, word):
                self.word = word

            async def invoke(self, messages):
                return self.word

        assert [(await ask(Mine(word), query(), retry=NO_RETRY)).content for word in "ab"] == ["a", "b"]

    async def test_options_are_passed_only_to_crystals_that_take_them(self):
        async def with_options(messages, tools, tool_choice, options):
            return f"{options['temperature']}"

        async def without(messages, tools, tool_choice):
            return "none"

        assert (await answer(with_options, query(temperature=0.2))).content == "0.2"
        assert (await answer(without, query(temperature=0.2))).content == "none"

    async def test_a_plain_function_may_block_without_holding_up_the_loop(self):
        threads = []

        def invoke(messages, tools, tool_choice):
            threads.append(threading.current_thread())
            time.sleep(0.01)
            return {"content": "x"}

        assert (await answer(invoke)).content == "x"
        assert threads != [threading.current_thread()]

    async def test_a_plain_function_may_return_an_awaitable(self):
        async def later():
            await anyio.sleep(1)
            return "x"

        assert (await answer(lambda messages: later())).content == "x"

    async def test_a_callable_object_can_be_a_crystal(self):
        class Invoke:
            async def __call__(self, messages, tools, tool_choice):
                return "x"

        assert (await answer(Invoke())).content == "x"


class TestAnswers:
    """CRYSTAL-3, CRYSTAL-4: what a crystal may answer, and what it may not."""

    @pytest.mark.parametrize("given_", ["text", {"content": "text"}, Response(content="text")])
    async def test_a_response_may_be_a_text_a_mapping_or_a_response(self, given_):
        async def invoke(messages):
            return given_

        response = await answer(invoke)
        assert replace(response, usage=NO_USAGE) == Response(content="text")

    @pytest.mark.rule("CRYSTAL-3")
    @pytest.mark.parametrize("given_", [{"content": None, "tool_calls": None}, {}, {"content": ""}, "", Response()])
    async def test_an_empty_response_breaks_the_contract(self, given_):
        async def invoke(messages):
            return given_

        with pytest.raises(CrystalError, match="crystal returned neither content nor tool_calls"):
            await answer(invoke)

    @pytest.mark.rule("CRYSTAL-4")
    async def test_two_calls_with_one_id_break_the_contract(self):
        async def invoke(messages):
            return {
                "tool_calls": [{"id": "call_1", "gate": "a", "args": {}}, {"id": "call_1", "gate": "b", "args": {}}]
            }

        with pytest.raises(CrystalError, match='duplicate tool call ID "call_1"'):
            await answer(invoke)

    @pytest.mark.rule("CRYSTAL-4")
    async def test_a_call_has_an_id_a_gate_and_arguments_as_a_json_string(self):
        async def invoke(messages):
            return {"tool_calls": [{"id": "c", "gate": "echo", "args": {"text": "a"}}]}

        (call,) = (await answer(invoke)).with_ids(1).tool_calls
        assert (call.id, call.gate, call.arguments) == ("c", "echo", '{"text":"a"}')

    @pytest.mark.parametrize(
        ("given_", "told"),
        [
            (None, "returned NoneType"),
            (7, "returned int"),
            (["x"], "returned list"),
            ({"contents": "x"}, 'unknown field "contents": did you mean "content"'),
            ({"content": 7}, "content of type int"),
            ({"tool_calls": [{"args": {}}]}, "without a gate's name"),
            ({"tool_calls": "done"}, "tool_calls"),
            ({"tool_calls": ["done"]}, "tool call"),
            ({"tool_calls": 7}, "tool_calls"),
            ({"content": "x", "usage": {"prompt_tokens": -1}}, "usage prompt_tokens=-1"),
            ({"content": "x", "usage": 7}, "usage"),
            ({"content": "x", "metadata": 7}, "metadata"),
        ],
    )
    async def test_each_way_to_break_the_contract_is_an_error_of_the_cast(self, given_, told):
        async def invoke(messages):
            return given_

        with pytest.raises(CrystalError) as caught:
            await answer(invoke)
        assert told in str(caught.value)

    @pytest.mark.rule("D-002")
    async def test_the_old_names_of_the_delegation_gates_become_the_new_ones(self):
        async def invoke(messages):
            return {"tool_calls": [{"gate": "call_entity", "args": {}}, {"gate": "call_entity_batch", "args": {}}]}

        assert [call.gate for call in (await answer(invoke)).tool_calls] == ["call_agent", "call_agent_batch"]

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
    async def test_any_return_value_is_a_response_or_an_error_of_the_cast(self, junk):
        fields = ("content", "tool_calls", "usage", "thinking", "code", "blocks", "metadata")
        for value in (junk, {"content": "x", "tool_calls": junk}, *({name: junk} for name in fields)):

            async def invoke(messages, value=value):
                return value

            with contextlib.suppress(CrystalError):
                assert isinstance(await answer(invoke), Response)


class TestRaising:
    """What a crystal raises becomes the cast's error, with its cause."""

    async def test_any_exception_of_a_crystal_is_a_crystal_error(self):
        async def invoke(messages):
            raise RuntimeError("no good")

        with pytest.raises(CrystalError, match="crystal raised RuntimeError: no good") as caught:
            await answer(invoke)
        assert isinstance(caught.value.__cause__, RuntimeError)

    async def test_a_crystal_error_is_raised_unchanged(self):
        mine = CrystalError("mine")

        async def invoke(messages):
            raise mine

        with pytest.raises(CrystalError) as caught:
            await answer(invoke)
        assert caught.value is mine

    @pytest.mark.parametrize(
        "error", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), ConnectionResetError("x"), TimeoutError("x")]
    )
    async def test_a_connection_error_is_a_provider_error_without_a_status(self, error):
        async def invoke(messages):
            raise ExceptionGroup("from a task group", [error])

        with pytest.raises(ProviderError, match="could not be reached") as caught:
            await answer(invoke)
        assert caught.value.status is None

    async def test_an_http_error_is_a_provider_error_with_its_status(self):
        async def invoke(messages):
            request = httpx.Request("POST", "https://provider.example/")
            httpx.Response(429, headers={"retry-after": "7"}, request=request).raise_for_status()

        with pytest.raises(ProviderError) as caught:
            await answer(invoke)
        assert (caught.value.status, caught.value.retry_after) == (429, 7.0)

    async def test_cancellation_is_raised_unchanged(self):
        async def invoke(messages):
            await anyio.sleep_forever()

        with anyio.move_on_after(1) as scope:
            await answer(invoke)
        assert scope.cancelled_caught

    async def test_a_stray_cancellation_is_an_error_of_the_cast(self, anyio_backend_name):
        if anyio_backend_name != "asyncio":
            pytest.skip("trio lets nobody cancel a task that others wait for")

        async def invoke(messages):
            task = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

        with pytest.raises(CrystalError, match="was cancelled"):
            await answer(invoke)


class TestAtOnce:
    """`attempt_now`: crystals that never wait need no task."""

    def test_a_scripted_crystal_answers_at_once(self):
        assert attempt_now(scripted(["hi"]), query()) == Response(content="hi")

    def test_a_crystal_that_must_be_awaited_does_not_answer_at_once(self):
        async def invoke(messages):
            return "x"

        assert attempt_now(crystal_of(invoke), query()) is None

    @pytest.mark.rule("D-006")
    async def test_ask_retries_after_a_failure_of_the_attempt_at_once(self):
        slept = []

        async def sleep(seconds):
            slept.append(seconds)

        crystal = scripted([{"error": {"status": 429, "message": "slow down"}}, "hi"])
        with pytest.raises(ProviderError) as caught:
            attempt_now(crystal, query())
        response = await ask(crystal, query(), retry=Retry(), failed=caught.value, sleep=sleep, chance=lambda: 1.0)
        assert response.content == "hi"
        assert slept == [1.0]

    def test_an_exception_in_a_crystal_is_an_error_of_the_cast(self):
        def policy(context):
            raise RuntimeError("no good")

        with pytest.raises(CrystalError, match="crystal raised RuntimeError: no good"):
            attempt_now(scripted(policy), query())


class TestRequired:
    """CRYSTAL-5: where a call has to come and does not, the crystal is asked again, inside the turn."""

    CALL = {"tool_calls": [{"gate": "done", "args": {}}], "usage": {"prompt_tokens": 20, "completion_tokens": 2}}  # noqa: RUF012

    @pytest.mark.rule("CRYSTAL-5")
    async def test_a_crystal_gets_the_tool_choice(self):
        crystal = scripted([self.CALL])
        await ask(crystal, query(tool_choice="required"), retry=NO_RETRY)
        assert crystal.invocations[0].tool_choice == "required"

    @pytest.mark.rule("CRYSTAL-5", "PROD-2")
    async def test_a_crystal_is_asked_again_until_it_calls(self):
        asked = query("do it", tool_choice="required")
        crystal = scripted(
            [{"content": "I would rather talk", "usage": {"prompt_tokens": 10, "completion_tokens": 1}}, self.CALL]
        )
        response = await ask(crystal, asked, retry=NO_RETRY)
        assert [call.gate for call in response.tool_calls] == ["done"]
        again = crystal.invocations[1]
        assert [m.role for m in again] == ["user", "assistant", "user"]
        assert again[1].content == "I would rather talk"
        assert "done" in again[2].content
        assert again.tools == TOOLS
        assert len(asked.invocation.messages) == 1

    @pytest.mark.rule("CRYSTAL-5", "PROD-3")
    async def test_usage_of_all_attempts_is_added_up(self):
        talk = {"content": "hm", "usage": {"prompt_tokens": 10, "completion_tokens": 1}}
        response = await ask(scripted([talk, talk, self.CALL]), query(tool_choice="required"), retry=NO_RETRY)
        assert response.usage == Usage(40, 4)

    @pytest.mark.rule("CRYSTAL-5")
    async def test_a_crystal_that_never_calls_breaks_the_contract(self):
        crystal = scripted(lambda context: "no")
        with pytest.raises(CrystalError, match="no tool call although tool_choice is required") as caught:
            await ask(crystal, query(tool_choice="required"), retry=Retry())
        assert not isinstance(caught.value, ProviderError)
        assert len(crystal.invocations) == 4

    @pytest.mark.rule("CRYSTAL-5")
    async def test_a_required_call_is_asked_for_again_after_an_answer_at_once(self):
        crystal = scripted(["hm", self.CALL])
        with pytest.raises(ProviderError) as caught:
            attempt_now(crystal, query(tool_choice="required"))
        response = await ask(crystal, query(tool_choice="required"), retry=NO_RETRY, failed=caught.value)
        assert response.tool_calls

    async def test_code_counts_as_a_required_call(self):
        response = await ask(scripted([{"code": "done(1)"}]), query(tool_choice="required"), retry=NO_RETRY)
        assert response.code == "done(1)"

    @pytest.mark.parametrize("choice", [None, "auto", "none"])
    async def test_text_is_accepted_when_no_call_is_required(self, choice):
        assert (await ask(scripted(["hm"]), query(tool_choice=choice), retry=NO_RETRY)).content == "hm"

    async def test_a_failure_between_two_requests_for_a_call_is_retried(self):
        script = ["hm", {"error": {"status": 503}}, self.CALL]
        crystal = scripted(script)
        response = await ask(crystal, query(tool_choice="required"), retry=Retry())
        assert response.tool_calls == (ToolCall("", "done", {}),)
        assert [len(one) for one in crystal.invocations] == [1, 3, 3]


@pytest.mark.rule("U-59")
def test_a_discarded_attempt_emits_no_more_events() -> None:
    seen = []
    watch = Watch(seen.append)
    first = watch.prepare(query()).emit
    first(ItemStart("0", "message"))
    watch.discard("it failed")
    second = watch.prepare(query()).emit
    first(ItemDelta("0", "late"))
    second(ItemDelta("0", "in time"))
    assert seen[2:] == [ItemDelta("0", "in time")]


async def test_a_cancelled_wait_ends_the_work_on_the_query_that_was_posted_last() -> None:
    """The first answer did not fit, so the query was posted again."""
    ended: list[str] = []

    class Post(PostingCrystal):
        async def post(self, query):
            return "first"

        async def look(self, handles):
            return Look([handles == ["first"]], 60.0)

        async def collect(self, handle, query):
            return Response(handle="second")

        async def abandon(self, handle):
            ended.append(handle)

    with anyio.move_on_after(1.0):
        await Post().invoke([Message("user", "hi")])
    assert ended == ["second"]

"""The scripted crystal: lists handed out in request order, functions of the context, and scripts that cannot be."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import Query, ask, attempt_now, scripted
from cantrip_actors.terms.context import Shared, View
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import CantripError, CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Invocation, Message, Response, ToolCall, Usage
from cantrip_actors.terms.retry import Retry


def query(text="hi", **more):
    return Query(Invocation([Message("user", text)], **more))


def said(crystal, text="hi"):
    response = attempt_now(crystal, query(text))
    assert response is not None
    return response.content


def test_a_scripted_crystal_satisfies_the_protocol():
    assert isinstance(scripted([]), Crystal)


class TestList:
    def test_a_script_gives_one_response_for_each_query(self):
        crystal = scripted(["a", {"content": "b"}, Response(content="c")])
        assert [said(crystal) for _ in range(3)] == ["a", "b", "c"]

    @pytest.mark.rule("COMP-8")
    def test_an_exhausted_script_raises(self):
        crystal = scripted(["a"])
        said(crystal)
        with pytest.raises(CrystalError, match="scripted crystal has no response left: it was given 1"):
            said(crystal)

    def test_a_response_may_have_calls_code_and_usage(self):
        crystal = scripted(
            [
                {"tool_calls": [{"id": "c", "gate": "echo", "args": {"text": "x"}}]},
                {"code": "done(1)", "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            ]
        )
        assert attempt_now(crystal, query()) == Response(tool_calls=(ToolCall("c", "echo", {"text": "x"}),))
        assert attempt_now(crystal, query()) == Response(code="done(1)", usage=Usage(3, 4))

    def test_the_default_usage_is_used_for_responses_without_usage(self):
        crystal = scripted(["a", {"content": "b", "usage": {"prompt_tokens": 9}}], usage={"prompt_tokens": 1})
        assert [attempt_now(crystal, query()).usage.prompt_tokens for _ in range(2)] == [1, 9]

    @pytest.mark.rule("D-006")
    def test_an_error_response_is_a_provider_error(self):
        crystal = scripted([{"error": {"status": 429, "message": "rate limited", "retry_after": 3}}])
        with pytest.raises(ProviderError, match="rate limited") as caught:
            said(crystal)
        assert (caught.value.status, caught.value.retry_after) == (429, 3.0)

    @pytest.mark.rule("CRYSTAL-3", "CRYSTAL-4")
    @pytest.mark.parametrize(
        ("response", "told"),
        [
            ({"content": None, "tool_calls": None}, "neither content nor tool_calls"),
            ({"tool_calls": [{"id": "1", "gate": "a"}, {"id": "1", "gate": "a"}]}, "duplicate tool call ID"),
        ],
    )
    def test_a_scripted_response_may_break_the_contract(self, response, told):
        crystal = scripted([response])
        with pytest.raises(CrystalError, match=told):
            said(crystal)

    async def test_a_delay_is_waited_for(self):
        crystal = scripted(["a", {"content": "b", "delay": 30}, {"error": {"status": 500}, "delay": 5}])
        assert crystal.respond is None
        began = anyio.current_time()
        for expected in "ab":
            assert (await ask(crystal, query(), retry=Retry())).content == expected
        assert anyio.current_time() - began == pytest.approx(30)
        with pytest.raises(ProviderError):
            await ask(crystal, query(), retry=Retry(max_retries=0))
        assert anyio.current_time() - began == pytest.approx(35)


class TestFunction:
    def test_a_function_gets_the_context(self):
        crystal = scripted(lambda context: f"{len(context)} {context[-1].content} {context[-1]['role']}")
        assert said(crystal, "hello") == "1 hello user"

    def test_a_function_can_read_the_tool_choice(self):
        crystal = scripted(lambda context: context.tool_choice)
        assert attempt_now(crystal, query(tool_choice="auto")).content == "auto"

    async def test_an_async_function_may_wait(self):
        async def policy(context):
            await anyio.sleep(7)
            return {"content": "slow", "delay": 3}

        crystal = scripted(policy)
        assert attempt_now(crystal, query()) is None
        began = anyio.current_time()
        assert (await ask(crystal, query(), retry=Retry())).content == "slow"
        assert anyio.current_time() - began == pytest.approx(10)

    async def test_an_object_with_an_async_call_can_be_the_function(self):
        class Policy:
            async def __call__(self, context):
                return "x"

        assert (await ask(scripted(Policy()), query(), retry=Retry())).content == "x"

    def test_a_function_may_return_a_provider_error(self):
        crystal = scripted(lambda context: {"error": {"status": 503, "message": "down"}})
        with pytest.raises(ProviderError, match="down"):
            said(crystal)

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (None, "returned NoneType"),
            ({"text": "x"}, 'unknown field "text"'),
            ({"error": "x"}, "scripted response of the function: error"),
            ({"content": "x", "delay": 1}, "has to be an async def"),
            ({"content": "x", "delay": -1}, "delay: expected seconds >= 0"),
        ],
    )
    def test_an_invalid_return_value_is_an_error_of_the_cast(self, answer, told):
        with pytest.raises(CrystalError) as caught:
            said(scripted(lambda context: answer))
        assert told in str(caught.value)

    @pytest.mark.rule("CRYSTAL-1")
    def test_binding_a_function_returns_the_same_crystal(self):
        crystal = scripted(lambda context: "x")
        assert crystal.bind() is crystal


class TestBind:
    """Reading 11: response i is for the i-th entity that asked for this crystal."""

    @pytest.mark.rule("COMP-3")
    def test_reserved_responses_do_not_depend_on_the_order_of_queries(self):
        crystal = scripted(["a", "b", "c"])
        first, second, third = (crystal.bind() for _ in range(3))
        assert (said(third), said(first), said(second)) == ("c", "a", "b")

    @pytest.mark.rule("COMP-3")
    def test_later_queries_take_unreserved_responses(self):
        crystal = scripted(["a", "b", "c", "d"])
        first, second = crystal.bind(), crystal.bind()
        assert [said(first), said(first), said(second), said(second)] == ["a", "c", "b", "d"]

    def test_more_entities_than_responses_is_an_error_of_the_later_ones(self):
        crystal = scripted(["a"])
        first, second = crystal.bind(), crystal.bind()
        with pytest.raises(CrystalError, match="no response left"):
            said(second)
        assert said(first) == "a"

    def test_bound_crystals_share_the_list_of_invocations(self):
        crystal = scripted(["a", "b"], name="mine", context_window=1000)
        bound = crystal.bind()
        said(bound)
        said(crystal.bind())
        assert len(crystal.invocations) == 2
        assert bound.invocations is crystal.invocations
        assert (bound.name, bound.context_window) == ("mine", 1000)

    @pytest.mark.rule("COMP-3")
    @given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6))
    def test_each_bound_crystal_gets_its_own_responses_in_any_order(self, order, later):
        crystal = scripted([str(n) for n in range(12)])
        bound = [crystal.bind() for _ in range(6)]
        assert {n: said(bound[n]) for n in order} == {n: str(n) for n in range(6)}
        assert [said(bound[n]) for n in later] == [str(6 + n) for n in range(len(later))]


class TestInvocations:
    def test_invocations_hold_what_each_query_received(self):
        crystal = scripted(["a", "b"])
        tools = ()
        said(crystal, "one")
        attempt_now(crystal, query("two", tools=tools, tool_choice="auto"))
        assert [one[0].content for one in crystal.invocations] == ["one", "two"]
        assert crystal.invocations[1].tool_choice == "auto"
        assert crystal.invocations[1]["tools"] is tools

    def test_invocations_do_not_copy_the_context(self):
        view = View(Shared([Message("user", "x")]))
        crystal = scripted(["a"])
        attempt_now(crystal, Query(Invocation(view)))
        assert crystal.invocations[0].messages is view

    def test_failed_attempts_are_queries_as_well(self):
        crystal = scripted([{"error": {"status": 500}}])
        with pytest.raises(ProviderError):
            said(crystal)
        assert len(crystal.invocations) == 1

    def test_invocations_are_not_recorded_with_record_false(self):
        crystal = scripted(["a", "b"], record=False)
        said(crystal.bind())
        said(crystal)
        assert crystal.invocations == []

    async def test_a_scripted_crystal_can_be_invoked_directly(self):
        crystal = scripted(["a", {"content": "b", "delay": 1}])
        assert (await crystal.invoke([Message("user", "x")])).content == "a"
        quick = scripted(["a"])
        assert (await quick.invoke([Message("user", "x")], (), "auto")).content == "a"
        assert quick.invocations[0].tool_choice == "auto"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([{"contents": "x"}], 'scripted response 0: unknown field "contents": did you mean "content"'),
        (["ok", 7], "scripted response 1: expected a mapping"),
        ([{"content": 7}], "scripted response 0: returned content of type int"),
        ([{"tool_calls": {"gate": "x"}}], "scripted response 0: returned tool_calls of type dict"),
        ([{"tool_calls": ["x"]}], "tool call of type str"),
        ([{"tool_calls": [{"args": {}}]}], "without a gate's name"),
        ([{"error": 429}], "error: expected"),
        ([{"error": {"status": "429"}}], "error: status: expected an HTTP status"),
        ([{"error": {"status": 7}}], "error: status"),
        ([{"error": {"code": 429}}], 'error: unknown field "code"'),
        ([{"error": {"retry_after": -1}}], "retry_after: expected seconds"),
        ([{"content": "x", "delay": "1"}], "delay: expected seconds"),
        ([{"content": "x", "usage": 7}], "usage of type int"),
        ([{"content": "x", "usage": {"prompt_tokens": "7"}}], "prompt_tokens='7'"),
        ("text", "expected a list of responses or a function of the context, got 'text'"),
        ({"content": "x"}, "got {'content': 'x'}"),
        (None, "got None"),
        (7, "got 7"),
    ],
)
def test_a_malformed_script_is_refused_when_it_is_made(script, told):
    with pytest.raises(InvalidCantrip) as caught:
        scripted(script)
    assert told in str(caught.value)


def test_a_malformed_default_usage_is_refused():
    with pytest.raises(InvalidCantrip, match="prompt_tokens"):
        scripted([], usage={"prompt_tokens": -1})


def test_repr_counts_responses_and_invocations():
    crystal = scripted(["a"], name="mine")
    said(crystal)
    assert repr(crystal) == "<mine: 1 responses, 1 invocations>"
    assert repr(scripted(lambda context: "x")) == "<scripted: a function, 0 invocations>"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
calls = st.fixed_dictionaries(
    {"gate": st.text(max_size=5) | junk}, optional={"id": st.text(max_size=2) | junk, "args": junk}
)
responses = st.fixed_dictionaries(
    {},
    optional={
        "content": st.none() | st.text(st.characters(codec=None), max_size=5) | junk,
        "tool_calls": st.none() | st.lists(calls | junk, max_size=3) | junk,
        "code": st.none() | st.text(max_size=5),
        "usage": st.none()
        | st.dictionaries(st.sampled_from(["prompt_tokens", "cost", "x"]), st.integers() | st.floats()),
        "error": st.none() | st.fixed_dictionaries({}, optional={"status": st.integers(0, 700), "message": junk}),
        "metadata": junk,
    },
)


@given(st.lists(responses | junk, max_size=4))
def test_any_script_is_refused_or_plays_to_its_end(script):
    try:
        crystal = scripted(script)
    except InvalidCantrip:
        return
    for _ in script:
        try:
            response = attempt_now(crystal, query())
        except CrystalError:
            continue
        assert response.content or response.tool_calls or response.code
        assert response.with_ids(1).tool_calls == () or all(call.id for call in response.with_ids(1).tool_calls)
    with pytest.raises(CantripError, match="no response left"):
        said(crystal)

"""Gates on demand: an entity finds their definitions when it needs them, and calls them as every gate."""

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    DeltaEvent,
    Gate,
    InvalidCantrip,
    ItemEndEvent,
    Message,
    Refused,
    Runtime,
    ToolCall,
    ask_first,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.mcp import inproc
from cantrip_actors.recipes import InvalidRecipe, load_recipe
from cantrip_actors.stream.wire import FinalFunctionCall, ItemDelta, ItemDone, ItemStart
from cantrip_actors.terms.gate_search import GateIndex
from cantrip_actors.terms.messages import ToolDefinition
from cantrip_actors.terms.on_demand import resolve_call, restore_call
from cantrip_actors.wards import max_calls, max_depth, max_turns, remove_gate
from tests.mcp.tools import tools
from tests.runtime.spells import done

pytestmark = pytest.mark.rule("V-22")


@gate
async def pay(cents: int, to: str = "anna") -> str:
    """Transfer money to a person's account."""
    return f"{cents} to {to}"


@gate
async def search_invoices(words: str) -> list[str]:
    """Look for invoices that have these words."""
    return [words]


@gate(read_only=True)
async def get_weather(city: str) -> str:
    """Tell the weather of a place."""
    return f"rain in {city}"


GATES = [pay, search_invoices, get_weather]


def say(name: str, /, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args}]}


def use(name: str, **args: Any) -> dict[str, Any]:
    return say("use_gate", name=name, args=args)


def call(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [one for each in calls for one in each["tool_calls"]]}


def make(*says: Any, wards: Any = (), gates: Any = (), on_demand: Any = GATES, **parts: Any) -> Cantrip:
    circle = Circle(["done", *gates], [max_turns(9), *wards], on_demand=on_demand, **parts)
    return Cantrip(scripted([*says, done("ok")]), circle=circle)


async def observe(cantrip: Cantrip) -> list[Any]:
    """Return the observations of one episode, without that of `done`."""
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "go")
    return [seen for turn in episode.thread for seen in turn.gate_calls if seen.gate != "done"]


def list_shown(cantrip: Cantrip) -> list[str]:
    return [definition.name for definition in cantrip.circle.definitions]


async def find(query: str, on_demand: Any = GATES, **args: Any) -> dict[str, Any]:
    (seen,) = await observe(make(say("find_gates", query=query, **args), on_demand=on_demand))
    result: dict[str, Any] = seen.result
    return result


def list_found(result: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in result["gates"]]


def make_gates(count: int, words: int = 0) -> list[Gate]:
    """Return gates for the colours of things; each definition has so many further words."""
    schema = {"type": "object", "properties": {"colour": {"type": "string", "description": "it gets " * words}}}
    return [
        Gate.of(None, name=f"paint_thing_{n}", description=f"Paint thing {n}.", parameters=schema, kind="deferred")
        for n in range(count)
    ]


# What an entity is shown, and what it finds


async def test_an_entity_is_shown_two_gates_and_finds_the_definitions_of_the_others() -> None:
    cantrip = make(say("find_gates", query="transfer money"), use("pay", cents=5))
    assert list_shown(cantrip) == ["done", "find_gates", "use_gate"]
    found, paid = await observe(cantrip)
    assert found.result["gates"][0] == {
        "name": "pay",
        "description": "Transfer money to a person's account.",
        "parameters": pay.parameters,
    }
    assert (paid.gate, paid.args, paid.result) == ("pay", {"cents": 5}, "5 to anna")


async def test_the_tools_of_every_query_are_the_same() -> None:
    cantrip = make(say("find_gates", query="money"), use("pay", cents=5))
    await observe(cantrip)
    offered = [[tool.name for tool in query.tools] for query in cantrip.crystal.invocations]  # type: ignore[union-attr]
    assert offered == [["done", "find_gates", "use_gate"]] * 3


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("pay", "pay"),
        ("invoice", "search_invoices"),
        ("SearchInvoices", "search_invoices"),
        ("serch_invoces", "search_invoices"),
        ("which city", "get_weather"),
        ("what is the weather?", "get_weather"),
        ("get_wether", "get_weather"),
        ("please use get_weather, pay", "get_weather"),
    ],
)
async def test_the_best_match_of_names_descriptions_and_parameters_comes_first(query: str, best: str) -> None:
    assert list_found(await find(query))[0] == best


async def test_a_query_that_matches_nothing_says_how_to_go_on() -> None:
    result = await find("zzzzqqqq")
    assert (result["found"], result["gates"]) == (0, [])
    assert "other words" in result["note"]


async def test_an_empty_query_returns_all_gates_page_by_page() -> None:
    gates = make_gates(20)
    pages = [await find("", gates, page=page) for page in (1, 2, 3, 4)]
    assert [list_found(page) for page in pages[:3]] == [
        [gate.name for gate in part] for part in (gates[:8], gates[8:16], gates[16:])
    ]
    assert [page.get("next_page") for page in pages] == [2, 3, None, None]
    assert pages[3]["note"] == "expected a page from 1 to 3"


async def test_a_page_is_bounded_by_the_size_of_its_definitions() -> None:
    result = await find("thing", make_gates(9, words=600))
    assert 1 <= len(result["gates"]) <= 3
    assert len(json.dumps(result)) < 17_000
    assert result["found"] == 9
    assert (await find("", make_gates(2, words=4000)))["next_page"] == 2


def test_two_thousand_gates_are_searched_within_milliseconds() -> None:
    schema = {"type": "object", "properties": {"colour": {"type": "string", "description": "it gets this one"}}}
    index = GateIndex([ToolDefinition(f"do_{n}", f"Treat the {n}th thing.", schema) for n in range(2000)])
    began = time.process_time()
    assert index.search("do_1234")[0].name == "do_1234"
    assert index.search("1777th")[0].name == "do_1777"
    assert len(index.search("coluor")) == 2000
    assert time.process_time() - began < 0.5


# A call of use_gate is a call of the gate


async def test_the_loom_has_the_gate_and_the_crystal_sees_its_own_call_again() -> None:
    cantrip = make(use("pay", cents=5))
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "go")
        lines = list(chat_jsonl([conversation_of(runtime.loom, episode.entity_id)]))
    turn = episode.thread[0]
    assert [(made.gate, made.args) for made in turn.tool_calls] == [("pay", {"cents": 5})]
    (shown,) = cantrip.crystal.invocations[1].messages[1].tool_calls  # type: ignore[union-attr]
    assert (shown.gate, shown.args) == ("use_gate", {"name": "pay", "args": {"cents": 5}})
    exported = json.loads(lines[0])
    assert exported["messages"][1]["tool_calls"][0]["function"]["name"] == "use_gate"
    assert [tool["function"]["name"] for tool in exported["tools"]] == ["done", "find_gates", "use_gate"]


async def test_a_ward_counts_the_calls_of_the_gate() -> None:
    first, second, third = await observe(
        make(call(use("pay", cents=1), use("pay", cents=2), say("pay", cents=3)), wards=[max_calls("pay", 1)])
    )
    assert first.result == "1 to anna"
    assert [("its calls are used up" in seen.result, seen.gate) for seen in (second, third)] == [(True, "pay")] * 2


async def test_a_removed_gate_cannot_be_used() -> None:
    (seen,) = await observe(make(use("pay", cents=1), wards=[remove_gate("pay")]))
    assert (seen.gate, seen.is_error) == ("pay", True)
    assert "gate not available: pay" in seen.result


async def test_a_person_decides_about_the_call_of_the_gate() -> None:
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(make(use("pay", cents=7), on_demand=[ask_first(pay)]), "go", name="clerk")
        while not (requests := runtime.requests()):
            await anyio.sleep(1)
        assert [(request.gate, request.args) for request in requests] == [("pay", {"cents": 7})]
        await runtime.decide(requests[0].id, "allow", args={"cents": 6}, by="anna")
        episode = await entity.episode()
    assert episode.thread[0].gate_calls[0].result == "6 to anna"


async def test_steps_around_the_gate_see_its_call() -> None:
    seen: list[str] = []

    def refuse_large(call: Any) -> Refused | None:
        seen.append(call.gate)
        return Refused("too much") if call.args["cents"] > 9 else None

    wrapped = wrap(pay, pre=[refuse_large])
    small, large = await observe(make(call(use("pay", cents=1), use("pay", cents=10)), on_demand=[wrapped]))
    assert seen == ["pay", "pay"]
    assert (small.result, large.is_error) == ("1 to anna", True)


async def test_a_program_answers_a_deferred_gate_and_a_person_a_question() -> None:
    @gate(deferred=True)
    async def render(page: int) -> str:  # type: ignore[empty-body]
        """Render a page elsewhere."""

    asked = use("question", text="Which colour?", schema={"enum": ["red", "blue"]})
    cantrip = make(use("render", page=3), asked, on_demand=[render, "question"])
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(cantrip, "go", name="x")
        for answer in ("rendered", "blue"):
            while not (requests := runtime.requests()):
                await anyio.sleep(1)
            if requests[0].gate == "render":
                await runtime.deliver(requests[0].id, answer)
            else:
                await runtime.decide(requests[0].id, answer=answer, by="anna")
        thread = (await entity.episode()).thread
    seen = [turn.gate_calls[0] for turn in thread[:2]]
    assert [(call.gate, call.result) for call in seen] == [("render", "rendered"), ("question", "blue")]


class Streaming:
    """A crystal that streams a call of use_gate, piece by piece."""

    name = "test:stream"

    async def invoke(self, messages: Any, tools: Any, tool_choice: Any, options: Any = None, emit: Any = None) -> Any:
        if len(messages) > 1:
            return done("ok")
        args = {"name": "pay", "args": {"cents": 5}}
        text = json.dumps(args)
        emit(ItemStart("0", "function_call", None, "use_gate", "c1"))
        for at in range(0, len(text), 7):
            emit(ItemDelta("0", text[at : at + 7]))
        emit(ItemDone("0", FinalFunctionCall("use_gate", "c1", args)))
        return {"tool_calls": [{"id": "c1", "gate": "use_gate", "args": args}]}


async def test_a_stream_shows_the_call_of_the_gate() -> None:
    circle = Circle(["done"], [max_turns(3)], on_demand=GATES)
    async with Runtime.open("memory:") as runtime, runtime.stream(Cantrip(Streaming(), circle=circle), "go") as run:
        events = [event async for event in run.events()]
    deltas = [event for event in events if isinstance(event, DeltaEvent)]
    assert [(delta.gate, delta.tool_call_id) for delta in deltas if delta.is_start] == [("pay", "c1")]
    assert '{"cents":5}'.startswith("".join(delta.text for delta in deltas))  # the end may begin a secret
    (end,) = [event for event in events if isinstance(event, ItemEndEvent)]
    assert end.final == FinalFunctionCall("pay", "c1", {"cents": 5})
    assert not any(getattr(event, "gate", "") == "use_gate" for event in events)


# Names and arguments that are wrong


async def test_a_gate_can_be_called_before_it_was_found_and_by_its_own_name() -> None:
    direct, named = await observe(make(call(say("pay", cents=1), use("pay", cents=2))))
    assert (direct.result, named.result) == ("1 to anna", "2 to anna")


async def test_wrong_arguments_are_answered_with_the_signature_of_the_gate() -> None:
    (seen,) = await observe(make(use("pay", pence=1)))
    assert (seen.gate, seen.is_error) == ("pay", True)
    assert 'expected pay(cents: integer, to: string = "anna")' in seen.result


async def test_an_unknown_gate_is_answered_with_the_nearest_names() -> None:
    (seen,) = await observe(make(use("serch_invoice", words="x"), on_demand=[*GATES, *make_gates(60)]))
    assert seen.is_error
    assert "on demand: search_invoices" in seen.result
    assert "find_gates finds all 63" in seen.result
    assert len(seen.result) < 400


@pytest.mark.parametrize(
    ("args", "gate_name", "result"),
    [
        ({"name": "pay", "args": '{"cents": 4}'}, "pay", "4 to anna"),
        ({"name": " pay ", "args": {"cents": 4}}, "pay", "4 to anna"),
        ({"name": "use_gate", "args": {"name": "pay", "args": {"cents": 4}}}, "pay", "4 to anna"),
        ({"name": "pay", "args": "{cents"}, "pay", "not a JSON object"),
        ({"name": "pay"}, "pay", "missing required argument"),
        ({"name": "pay", "args": None}, "pay", "missing required argument"),
        ({"name": "pay", "args": [4]}, "use_gate", "expected use_gate(name: string, args?: object)"),
        ({"name": 4, "args": {}}, "use_gate", "expected use_gate("),
        ({"name": " ", "args": {}}, "use_gate", "expected name and args"),
        ({"cents": 4}, "use_gate", "missing required argument"),
        ({"name": "pay", "cents": 4}, "use_gate", "expected use_gate("),
    ],
)
async def test_every_form_of_arguments_is_a_call_or_an_observation(args: Any, gate_name: str, result: str) -> None:
    (seen,) = await observe(make(say("use_gate", **args)))
    assert seen.gate == gate_name
    assert result in seen.result


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "args", "x"]), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["name", "args", "x"]), values))
def test_a_call_that_is_restored_stands_for_the_same_call(args: dict[str, Any]) -> None:
    recorded = resolve_call(ToolCall("c1", "use_gate", args))
    assert resolve_call(restore_call(recorded)) == recorded
    assert restore_call(recorded).gate == "use_gate"


# Circles that are refused


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"gates": ["done", pay], "on_demand": [pay]}, 'two gates are called "pay"'),
        ({"gates": [], "on_demand": ["done"]}, 'has to see the gate "done"'),
        ({"gates": ["done", gate(name="find_gates")(get_weather.function)], "on_demand": [pay]}, '"find_gates"'),
        ({"gates": ["done", wrap("use_gate", pre=[lambda _: None])], "on_demand": [pay]}, "wrap that gate instead"),
        ({"gates": ["done", ask_first("use_gate")], "on_demand": [pay]}, "ask_first: a call of use_gate"),
        ({"gates": ["done"], "on_demand": "pay"}, "on_demand: expected a list"),
        ({"gates": ["done"], "on_demand": ["pey"]}, 'unknown gate "pey"'),
        ({"gates": ["done"], "on_demand": [pay], "wards": [max_calls("use_gate", 1)]}, "max_calls"),
    ],
)
def test_a_circle_that_cannot_work_is_refused(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidCantrip, match=problem.replace("(", r"\(")):
        Circle(**parts)


def test_a_tool_choice_cannot_name_a_gate_on_demand() -> None:
    for part in (pay, inproc("t", tools())):
        choice = "gate:pay" if part is pay else "gate:t__add"
        with pytest.raises(InvalidCantrip, match="on demand"):
            Cantrip(scripted([]), Call(tool_choice=choice), Circle(["done"], [max_turns(2)], on_demand=[part]))


# Children, forks, restarts and deploys


async def cast_parent(request: dict[str, Any], *says: Any, **parts: Any) -> tuple[Any, Any]:
    """Return the crystal of a child and the parent's observation of it."""
    child = scripted([*says, done("child")])
    circle = Circle(["done", "call_agent"], [max_turns(5), max_depth(1)], on_demand=GATES, **parts)
    parent = Cantrip(
        scripted([say("call_agent", intent="sub", **request), done("ok")]), circle=circle, child_crystal=child
    )
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(parent, "go")
        thread = [turn for child_id in runtime.loom.below(episode.entity_id) for turn in runtime.loom.turns(child_id)]
    return child, (thread, next(seen for turn in episode.thread for seen in turn.gate_calls))


def list_offered(crystal: Any) -> list[str]:
    return [tool.name for tool in crystal.invocations[0].tools]


async def test_a_child_finds_and_uses_the_gates_of_its_parent() -> None:
    child, (thread, _) = await cast_parent({}, say("find_gates", query="money"), use("pay", cents=3))
    assert list_offered(child) == ["done", "find_gates", "use_gate"]
    assert thread[0].gate_calls[0].result["gates"][0]["name"] == "pay"
    assert thread[1].gate_calls[0].result == "3 to anna"


async def test_a_child_is_shown_the_gates_on_demand_that_its_parent_names() -> None:
    child, (thread, _) = await cast_parent({"gates": ["pay"]}, call(say("pay", cents=3), say("get_weather", city="x")))
    assert list_offered(child) == ["pay", "done"]
    paid, weather = thread[0].gate_calls
    assert (paid.result, weather.is_error) == ("3 to anna", True)


async def test_a_child_finds_only_what_it_was_granted() -> None:
    granted = {"gates": ["find_gates", "use_gate", "pay"]}
    child, (thread, _) = await cast_parent(granted, call(say("find_gates"), use("get_weather", city="x")))
    assert list_offered(child) == ["find_gates", "use_gate", "done"]
    found, weather = thread[0].gate_calls
    assert (list_found(found.result), weather.is_error) == (["pay"], True)


async def test_a_child_cannot_be_granted_a_gate_that_its_parent_does_not_have() -> None:
    _, (_, refused) = await cast_parent({"gates": ["pey"]})
    assert 'cannot grant gate "pey": the parent\'s gates are done, call_agent' in refused.result
    assert refused.result.endswith("pay")


async def test_forks_and_restarts_call_what_was_found_before(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    crystal = scripted(
        [
            say("find_gates", query="money"),
            done("found"),
            use("pay", cents=5),
            done("paid"),
            use("pay", cents=6),
            done(0),
        ]
    )
    cantrip = Cantrip(crystal, circle=Circle(["done"], [max_turns(9)], on_demand=GATES), name="clerk")
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "go", name="clerk")
        found = (await entity.episode()).thread[-1].id
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.ensure("clerk", cantrip)
        paid = await entity.send("pay it")
        assert paid.thread[-2].gate_calls[0].result == "5 to anna"
        branch = await runtime.fork(found, intent="and more")
        assert branch.thread[-2].gate_calls[0].result == "6 to anna"


async def test_a_deploy_may_show_a_gate_that_was_on_demand(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    before = Cantrip(
        scripted([use("pay", cents=5), done("paid")]),
        circle=Circle(["done"], [max_turns(9)], on_demand=GATES),
        name="clerk",
    )
    after = Cantrip(
        scripted([say("pay", cents=6), done("again")]), circle=Circle(["done", *GATES], [max_turns(9)]), name="clerk"
    )
    assert before.id != after.id
    async with Runtime.open(url, cantrips=[before]) as runtime:
        await (await runtime.invoke(before, "go", name="clerk")).episode()
    async with Runtime.open(url, cantrips=[after]) as runtime:
        reply = await (await runtime.ensure("clerk", after)).send("again")
    assert reply.thread[-2].gate_calls[0].result == "6 to anna"
    messages: list[Message] = [*after.crystal.invocations[0].messages]  # type: ignore[union-attr]
    assert [made.gate for message in messages for made in message.tool_calls] == ["use_gate", "done"]


# Code circles


@pytest.mark.parametrize(
    ("medium", "code"),
    [
        ("python", "found = find_gates('money')['gates'][0]['name']\npaid = pay(cents=5)\ndone([found, paid])"),
        ("javascript", "const found = find_gates('money').gates[0].name; done([found, pay({cents: 5})])"),
    ],
)
async def test_a_program_calls_a_gate_on_demand_as_a_function(medium: Any, code: str) -> None:
    circle = Circle(["done"], [max_turns(2)], medium=medium, on_demand=GATES)
    crystal = scripted([{"code": code}])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
    assert episode.result == ["pay", "5 to anna"]
    prompt = crystal.invocations[0].messages[0].content or ""
    assert "find_gates" in prompt
    assert "Your programs can call each at once." in prompt
    assert "get_weather" not in prompt
    assert "use_gate" not in prompt


@pytest.mark.real_time
async def test_a_gate_on_demand_is_a_command_of_a_shell() -> None:
    circle = Circle(["done"], [max_turns(2)], medium="shell", on_demand=GATES)
    crystal = scripted([{"code": 'find_gates money; done "$(pay --cents 5)"'}])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
    assert episode.thread[0].gate_calls[0].result["gates"][0]["name"] == "pay"
    assert "Your programs can call each at once." in (crystal.invocations[0].messages[0].content or "")
    assert episode.result == "5 to anna"


# Servers of tools


async def test_the_tools_of_a_server_are_found_and_called() -> None:
    server = inproc("math", tools(), only=["add", "say"])
    cantrip = make(say("find_gates", query="add numbers"), use("math__add", a=1, b=2), on_demand=[server])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "go")
        recorded = runtime.loom.header(episode.entity_id).circle["gates"]
    found, added = (turn.gate_calls[0] for turn in episode.thread[:2])
    assert list_found(found.result)[0] == "math__add"
    assert added.result == {"result": 3}
    assert [entry["name"] for entry in recorded if entry.get("on_demand")] == ["math__add", "math__say"]
    shown = cantrip.crystal.invocations[0].tools[1].description  # type: ignore[union-attr]
    assert "among them those of math (2)" in shown


async def test_a_person_decides_about_a_servers_tool_on_demand() -> None:
    server = inproc("math", tools(), only=["add"])
    cantrip = make(use("math__add", a=1, b=2), on_demand=[server, ask_first("math__add")])
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(cantrip, "go", name="x")
        while not (requests := runtime.requests()):
            await anyio.sleep(1)
        await runtime.decide(requests[0].id, "deny", by="anna")
        episode = await entity.episode()
    assert "anna denied it" in episode.thread[0].gate_calls[0].result


async def test_the_system_prompt_of_a_code_circle_has_no_words_of_a_server() -> None:
    server = inproc("math", tools(), only=["add"])
    child = scripted([{"code": "done(math__add(a=1, b=2))"}])
    code = "print(find_gates('two numbers')['gates'])\ncall_agent('add', gates=['math__add'])"
    crystal = scripted([{"code": code}, {"code": "done('ok')"}])
    circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(1)], medium="python", on_demand=[server])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle, child_crystal=child), "go")
    assert "Add two numbers." in episode.thread[-2].observation
    for asked in (crystal, child):
        assert "Add two numbers" not in (asked.invocations[0].messages[0].content or "")
    assert "def math__add(a: int, b: int)" in (child.invocations[0].messages[0].content or "")


# Recipes


@pytest.mark.parametrize("short", [True, False])
def test_a_recipe_has_gates_on_demand(tmp_path: Path, short: bool) -> None:
    gates = "gates: [done], on_demand: [{name: read, root: .}, {name: write, root: ., ask_first: true}]"
    parts = f"{gates}, max_turns: 3" if short else f"circle: {{{gates}, wards: [{{max_turns: 3}}]}}"
    (tmp_path / "agent.yaml").write_text(f"{{crystal: {{scripted: []}}, {parts}}}")
    cantrip = load_recipe(tmp_path / "agent.yaml")
    assert list_shown(cantrip) == ["done", "find_gates", "use_gate"]
    assert [name for name, gate in cantrip.circle.open_gates.items() if gate.on_demand] == ["read", "write"]


def test_a_wrong_recipe_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("crystal: {scripted: []}\nmax_turns: 3\non_demand:\n  - raed\n")
    with pytest.raises(InvalidRecipe, match=r"agent.yaml:4.*raed"):
        load_recipe(tmp_path / "agent.yaml")

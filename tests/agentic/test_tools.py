"""The registry of tools, and the gates made of tools."""

import functools
import re

import anyio
import pytest
from pydantic import BaseModel

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.agentic import ToolRegistry, UnknownTool
from cantrip_actors.wards import max_turns
from cantrip_demos.arithmetic import AddArgs, MulArgs, make_tool_registry
from tests.agentic.players import Counted


class Word(BaseModel):
    text: str


class TestCalls:
    @pytest.mark.rule("A-39")
    def test_a_call_runs_the_function_once(self):
        tools = Counted()
        assert tools.registry.call("add", AddArgs(a=1, b=2)).value == 3
        assert tools.ran == [("add", AddArgs(a=1, b=2))]

    @pytest.mark.rule("A-39")
    def test_an_unknown_tool_raises_on_call_and_is_none_on_get(self):
        registry = make_tool_registry()
        with pytest.raises(RuntimeError, match=r"Unknown tool: div \(there are: add, sub, mul\)") as error:
            registry.call("div", AddArgs(a=1, b=2))
        assert error.type is UnknownTool
        assert registry.get("div") is None

    @pytest.mark.rule("A-39")
    @pytest.mark.parametrize("args", [MulArgs(a=1, b=2), {"a": 1, "b": 2}, None])
    def test_arguments_of_another_type_are_a_type_error_and_nothing_runs(self, args):
        tools = Counted()
        with pytest.raises(TypeError, match="Args for 'add' must be AddArgs"):
            tools.registry.call("add", args)
        assert tools.ran == []

    @pytest.mark.rule("A-39")
    def test_arguments_of_a_subclass_are_accepted(self):
        class Same(AddArgs):
            pass

        assert make_tool_registry().call("add", Same(a=1, b=2)).value == 3

    @pytest.mark.rule("A-39")
    def test_a_tools_exception_is_raised_unchanged(self):
        def fails(_):
            raise ZeroDivisionError("no")

        with pytest.raises(ZeroDivisionError, match="no"):
            Counted(add=fails).registry.call("add", AddArgs(a=1, b=2))


class TestRegistering:
    @pytest.mark.rule("A-40")
    def test_a_name_registers_once(self):
        registry = make_tool_registry()
        before = registry.get("add")
        with pytest.raises(ValueError, match='"add" is registered already'):
            registry.register("add", "another", lambda args: args, AddArgs)
        assert registry.get("add") is before or registry.get("add") == before

    @pytest.mark.rule("A-40")
    @pytest.mark.parametrize("name", ["done", "call_agent", "call_agent_batch"])
    def test_the_names_of_the_runtimes_gates_are_refused(self, name):
        with pytest.raises(ValueError, match="runtime's own"):
            ToolRegistry().register(name, "x", lambda args: args, AddArgs)

    @pytest.mark.rule("A-40")
    @pytest.mark.parametrize("name", ["a b", "", "x" * 65, None, 5])
    def test_a_name_that_a_gate_cannot_have_is_refused(self, name):
        with pytest.raises(ValueError, match=re.escape(f"gate name {name!r}: expected a name of letters")):
            ToolRegistry().register(name, "x", lambda args: args, AddArgs)

    @pytest.mark.rule("A-39")
    def test_a_registry_refuses_a_value_that_is_not_a_function(self):
        with pytest.raises(TypeError, match='tool "add": expected a function of its arguments, got 5'):
            ToolRegistry().register("add", "", 5, AddArgs)

    def test_arguments_that_are_not_a_model_are_refused(self):
        with pytest.raises(TypeError, match="expected a pydantic model"):
            ToolRegistry().register("add", "x", lambda args: args, dict)

    def test_a_registry_lists_its_tools(self):
        registry = make_tool_registry()
        assert len(registry) == 3
        assert "add" in registry
        assert "div" not in registry
        description, function, arg_type = registry.get("add")
        assert description == "Add two whole numbers."
        assert function(arg_type(a=1, b=1)).value == 2
        assert repr(registry) == "<ToolRegistry of add, sub, mul>"


async def said_by(registry, *calls):
    """Return the observations of an entity that calls these tools, each (name, args)."""
    script = [{"tool_calls": [{"gate": name, "args": args}]} for name, args in calls]
    end = {"tool_calls": [{"gate": "done", "args": {"answer": 1}}]}
    spell = Cantrip(scripted([*script, end]), circle=Circle(["done", *registry.gates()], [max_turns(20)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "use them")
    return [seen for turn in episode.thread[:-1] for seen in turn.gate_calls]


class TestGates:
    def test_gates_of_tools_return_the_tools_results(self):
        gates = {gate.name: gate for gate in make_tool_registry().gates()}
        assert gates["sub"].description == "Subtract b from a."
        assert gates["sub"].parameters["required"] == ["a", "b"]
        assert gates["sub"].signature == "sub(a: integer, b: integer)"

    async def test_an_entity_uses_a_tool_by_its_gate(self):
        tools = Counted()
        (seen,) = await said_by(tools.registry, ("mul", {"a": 6, "b": 7}))
        assert (seen.result, seen.is_error) == ({"value": 42}, False)
        assert tools.ran == [("mul", MulArgs(a=6, b=7))]

    @pytest.mark.rule("A-13", "A-24")
    @pytest.mark.parametrize("args", [{"a": 1}, {"a": "1", "b": 2}, {"a": True, "b": 2}, {"a": 1, "b": 2, "c": 3}])
    async def test_arguments_that_do_not_fit_are_an_observation_and_nothing_runs(self, args):
        tools = Counted()
        (seen,) = await said_by(tools.registry, ("add", args))
        assert seen.is_error
        assert "expected add(a: integer, b: integer)" in seen.result
        assert tools.ran == []

    @pytest.mark.rule("A-03")
    async def test_large_numbers_are_exact_in_and_out(self):
        tools = Counted()
        (seen,) = await said_by(tools.registry, ("mul", {"a": 10**40, "b": 10**40}))
        assert tools.ran == [("mul", MulArgs(a=10**40, b=10**40))]
        assert seen.args == {"a": 10**40, "b": 10**40}
        assert seen.content == f'{{"value": {10**80}}}'

    async def test_text_and_none_are_returned_as_json(self):
        registry = ToolRegistry()
        registry.register("shout", "Shout.", lambda word: word.text.upper(), Word)
        registry.register("mute", "Say nothing.", lambda _: None, Word)
        shouted, muted = await said_by(registry, ("shout", {"text": "12"}), ("mute", {"text": "x"}))
        assert (shouted.content, muted.content) == ('"12"', "null")

    async def test_a_tool_may_be_async(self):
        async def slow(word: Word) -> str:
            await anyio.sleep(3600)
            return word.text

        async def fails(_: Word) -> str:
            raise ZeroDivisionError("no")

        registry = ToolRegistry()
        registry.register("slow", "Wait.", slow, Word)
        registry.register("bound", "Wait too.", functools.partial(slow), Word, blocking=False)
        registry.register("fails", "Fail.", fails, Word)
        calls = [(name, {"text": "x"}) for name in ("slow", "bound", "fails")]
        heard = await said_by(registry, *calls)
        assert [(seen.content, seen.is_error) for seen in heard] == [
            ('"x"', False),
            ('"x"', False),
            ("ZeroDivisionError: no", True),
        ]

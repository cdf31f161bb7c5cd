"""Features of the Python medium only: awaited gates, names, errors, limits, the type check, the capability text."""

from __future__ import annotations

import ast
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.circle.medium import (
    Answer,
    Exceeded,
    Finished,
    ProgramLimits,
    Raised,
    Sandbox,
    Stepped,
    Suspended,
    medium,
)
from cantrip_actors.circle.python.gates import name_callables, render
from cantrip_actors.circle.python.steps import KEEPING
from cantrip_actors.gates import fetch, read, write
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import ToolDefinition
from cantrip_actors.terms.own_gates import CALL_AGENT, CALL_AGENT_BATCH
from tests.slowness import measure_slowness

LIMITS = ProgramLimits(seconds=0.5, output=200, gate_calls=20)


@gate
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the notes."""
    raise AssertionError("answered by the test")


GATES = [one.definition for one in (search, CALL_AGENT, CALL_AGENT_BATCH, DONE)]


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> ToolDefinition:
    return ToolDefinition(name, "", {"type": "object", "properties": properties, "required": list(required)})


def opened(*gates: ToolDefinition, limits: ProgramLimits = LIMITS) -> Sandbox:
    return medium("python").open(gates or GATES, limits)


def value(step: Stepped) -> Any:
    assert isinstance(step, Finished), step
    return step.value


def error(step: Stepped) -> str:
    assert isinstance(step, Raised), step
    return step.error


def call(step: Stepped) -> Suspended:
    assert isinstance(step, Suspended), step
    return step


# ------------------------------------------------------------------------------------------------------- calling gates


def test_a_gate_can_be_awaited_as_well():
    sandbox = opened()
    first = call(sandbox.begin("a = await search('a')\nb = search('b')\n[a, b]"))
    second = call(sandbox.answer(first, Answer(1)))
    assert value(sandbox.answer(second, Answer(2))) == [1, 2]


def test_an_awaited_gates_failure_is_caught_like_any_other():
    sandbox = opened()
    step = call(sandbox.begin("try:\n    await search('a')\nexcept RuntimeError as e:\n    t = str(e)\nt"))
    assert value(sandbox.answer(step, Answer("no", is_error=True))) == "no"


def test_an_awaited_call_is_restored_from_its_snapshot():
    step = call(opened().begin("a = await search('a')\na + 1"))
    assert step.image is not None
    other = opened()
    assert value(other.answer(other.resume(step.image), Answer(1))) == 2


def test_a_gate_is_a_value_that_persists():
    sandbox = opened()
    sandbox.begin("find = search\ntools = {'s': search}\ndef twice(f):\n    return [f('1'), f('2')]")
    step: Stepped = sandbox.begin("twice(tools['s']) + [find('3', limit=1)]")
    asked = []
    while isinstance(step, Suspended):
        asked.append(dict(step.args))
        step = sandbox.answer(step, Answer(len(asked)))
    assert asked == [{"query": "1"}, {"query": "2"}, {"query": "3", "limit": 1}]
    assert value(step) == [1, 2, 3]


def test_a_programs_own_name_shadows_a_gate():
    assert value(opened().begin("def search(q):\n    return 'mine'\nsearch('a')")) == "mine"


@pytest.mark.rule("D-002")
def test_older_gate_names_are_aliases():
    step = call(opened().begin("call_entity('look')"))
    assert (step.gate, dict(step.args)) == ("call_agent", {"intent": "look"})


def test_names_that_are_not_python_identifiers_are_adapted():
    sandbox = opened(tool("look-up", word={"type": "string"}), tool("import", word={"type": "string"}))
    assert call(sandbox.begin("look_up('a')")).gate == "look-up"
    assert call(sandbox.begin("import_('a')")).gate == "import"


def test_positional_arguments_fill_the_required_ones_first():
    sandbox = opened(tool("put", ("text",), mode={"type": "string"}, text={"type": "string"}))
    assert dict(call(sandbox.begin("put('a', 'b')")).args) == {"text": "a", "mode": "b"}


def test_objects_cross_as_their_attributes():
    code = (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: list\n"
        "search(P(1, [P(2, [])]), limit=(1, {2, 1}))"
    )
    assert dict(call(opened().begin(code)).args) == {
        "query": {"x": 1, "y": [{"x": 2, "y": []}]},
        "limit": [1, [1, 2]],
    }


@pytest.mark.parametrize("argument", ["len", "int", "3j", "...", "{1: 0, '1': 0}", "ValueError('x')"])
def test_an_argument_that_is_not_json_raises_where_it_is_passed(argument: str):
    sandbox = opened()
    text = error(sandbox.begin(f"x = 1\nsearch({argument})"))
    assert text.startswith("TypeError: search() argument 'query' is not a JSON value")
    assert "line 2" in text


@pytest.mark.parametrize(
    ("making", "kind"),
    [
        ("a = []\na.append(a)", "a list"),
        ("a = [1]\na.append({'x': (a,)})", "a list"),
        ("a = {}\na['x'] = [a]", "a dict"),
        ("b = []\na = (1, b)\nb.append(a)", "a tuple"),
        ("class Node:\n    pass\na = Node()\na.children = [a]", "an object"),
    ],
)
def test_an_argument_that_contains_itself_is_refused(making: str, kind: str):
    box = opened(*GATES)
    step = box.begin(f"{making}\nsearch(a)")
    assert f"argument 'query' is not a JSON value: {kind} that contains itself" in error(step)


@pytest.mark.parametrize("text", ["[...]", "{...}", "(...)", "..."])
def test_a_text_that_reads_like_a_circle_is_passed_on_where_none_can_be(text: str):
    assert call(opened(*GATES).begin(f"search({text!r})")).args == {"query": text}
    inside = {"list": [["..."]], "dict": {"a": "[...]"}}
    assert call(opened(*GATES).begin(f"search({inside!r})")).args == {"query": inside}


@pytest.mark.parametrize("where", ["sorted([1, 2], key=search)", "list(map(search, ['a']))", "max(['a'], key=search)"])
def test_a_gate_in_a_callback_is_refused_with_advice(where: str):
    assert "use a loop" in error(opened().begin(where))


def test_gates_are_suspended_in_every_other_position():
    sandbox = opened()
    code = (
        "class Notes:\n    def __init__(self):\n        self.first = search('init')\n    def all(self):\n"
        "        with_default = lambda q=search('default'): search(q)\n"
        "        return [search(str(i)) for i in range(2)] + [with_default('lambda')]\n"
        "try:\n    n = Notes()\nfinally:\n    last = search('finally')\nn.all() + [n.first, last]"
    )
    step: Stepped = sandbox.begin(code)
    asked = []
    while isinstance(step, Suspended):
        asked.append(step.args["query"])
        step = sandbox.answer(step, Answer(step.args["query"].upper()))
    assert asked == ["init", "finally", "default", "0", "1", "lambda"]
    assert value(step) == ["0", "1", "LAMBDA", "INIT", "FINALLY"]


# ------------------------------------------------------------------------------------------------------ what is shown


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class P:\n    def __init__(self):\n        self.x = [1]\nP()", "P(x=[1])"),
        ("len", "<function len>"),
        ("{(1, 2): None}", {"(1, 2)": None}),
        ("{'b', 'a'}", ["a", "b"]),
        ("10 ** 30", "1" + "0" * 30),
        ("float('nan')", "NaN"),
        ("b'text'", "text"),
        ("from datetime import date\ndate(2026, 1, 2)", "2026-01-02"),
        ("a = [1]\na.append(a)\na", [1, "[...]"]),
    ],
)
def test_values_are_rendered_as_json_or_as_their_text(code: str, expected: Any):
    assert value(opened().begin(code)) == expected


def test_an_error_names_only_lines_of_the_program():
    sandbox = opened()
    sandbox.begin("def half(n):\n    return 1 / n")
    text = error(sandbox.begin("x = 1\n\ndef outer():\n    return half(0)\nouter()"))
    assert text.splitlines() == [
        "ZeroDivisionError: division by zero",
        "  line 5: outer()",
        "  line 4, in outer: return half(0)",
        "  line 2 of an earlier program, in half: return 1 / n",
    ]


def test_long_errors_are_cut():
    deep = "def f(n):\n    if n == 0:\n        raise ValueError('x' * 100000)\n    f(n - 1)\nf(50)"
    text = error(opened().begin(deep))
    assert len(text) < 5_000
    assert len(text.splitlines()) <= 6


def test_an_unsupported_language_feature_is_reported_before_anything_runs():
    sandbox = opened()
    text = error(sandbox.begin("x = 1\nclass A(Exception):\n    pass"))
    assert text.startswith("NotImplementedError: this Python does not have class inheritance")
    assert "line 2" in text
    assert "NameError" in error(sandbox.begin("x"))


def test_output_is_cut_over_the_whole_turn():
    sandbox = opened()
    step = call(sandbox.begin("print('a' * 150)\nsearch('x')\nprint('b' * 150)"))
    after = sandbox.answer(step, Answer(None))
    assert step.output == "a" * 150 + "\n"
    assert after.output == "b" * 49 + "\n[102 more characters of output were cut]"


# --------------------------------------------------------------------------------------------------- clocks, chance


@pytest.mark.parametrize("code", ["import time\ntime.time()", "from datetime import datetime\ndatetime.now()"])
def test_reading_the_clock_is_an_error(code: str):
    assert "clock" in error(opened().begin(code))


def test_sleeping_takes_no_time():
    started = time.monotonic()
    assert value(opened().begin("import time\ntime.sleep(3600)\n'woke'")) == "woke"
    assert time.monotonic() - started < 5


def test_random_numbers_are_the_same_for_the_same_program():
    code = "import random\n[random.random() for i in range(3)]"
    first, again, other = (opened().begin(one) for one in (code, code, code + "  # other"))
    assert value(first) == value(again) != value(other)


def test_random_numbers_differ_with_the_context():
    code = "import random\nrandom.random()"
    assert value(opened().begin(code, {"context": 1})) != value(opened().begin(code, {"context": 2}))


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("kind", ["TimeoutError", "MemoryError", "RecursionError"])
def test_an_exception_of_a_limits_type_counts_as_the_limit(kind: str):
    sandbox = opened()
    sandbox.begin("x = 1")
    assert isinstance(sandbox.begin(f"x = 2\nraise {kind}('mine')"), Exceeded)
    assert value(sandbox.begin("x")) == 1


def test_a_caught_recursion_error_is_not_a_limit():
    assert value(opened().begin("def f():\n    f()\ntry:\n    f()\nexcept RecursionError:\n    x = 1\nx")) == 1


def test_time_is_counted_over_the_whole_turn():
    sandbox = opened(limits=ProgramLimits(seconds=0.3, gate_calls=10_000))
    step: Stepped = sandbox.begin("while True:\n    for i in range(200_000):\n        pass\n    search('a')")
    started = time.monotonic()
    while isinstance(step, Suspended):
        time.sleep(0.005)  # the gate's time does not count
        step = sandbox.answer(step, Answer(None))
    assert step == Exceeded("0.3 s of computing")
    assert 0.3 < time.monotonic() - started < 20


def test_a_state_that_is_too_large_to_be_kept_undoes_the_turn():
    sandbox = opened()
    sandbox.begin("x = 1")
    assert sandbox.begin("x = 'a' * 40_000_000\nNone") == Exceeded(f"64 MiB of memory{KEEPING}")
    assert sandbox.begin("y = 'a' * 80_000_000\nNone") == Exceeded("64 MiB of memory")
    assert value(sandbox.begin("x")) == 1


def test_a_context_of_ten_megabytes_can_be_given_and_kept():
    sandbox = opened(limits=ProgramLimits())
    context = "word " * 2_000_000
    assert value(sandbox.begin("len(context)", {"context": context})) == len(context)
    step = call(sandbox.begin("part = context[:10]\nsearch(part)"))
    assert value(sandbox.answer(step, Answer(len(context) - 1))) == len(context) - 1
    assert value(sandbox.begin("context.count('word')")) == 2_000_000


def test_a_program_of_a_million_lines_ends_in_time():
    sandbox = opened()
    started = time.monotonic()
    step = sandbox.begin("x = 1\n" * 1_000_000)
    assert isinstance(step, (Finished, Raised, Exceeded))
    assert time.monotonic() - started < LIMITS.seconds + 1.5 * measure_slowness()  # the code itself has to cross


def test_a_loaded_sandbox_keeps_the_lower_limits():
    wide, narrow = opened(limits=ProgramLimits(seconds=30)), opened(limits=ProgramLimits(seconds=0.2))
    wide.begin("x = 1")
    narrow.load(wide.dump() or b"")
    assert narrow.begin("while True:\n    pass") == Exceeded("0.2 s of computing")


def test_a_damaged_snapshot_raises_value_error():
    sandbox, other = opened(), opened()
    sandbox.begin("x = 1")
    step = call(sandbox.begin("search('a')"))
    assert step.image is not None
    other.begin("x = 2")
    with pytest.raises(ValueError, match="damaged"):
        other.load(sandbox.dump()[:-40])  # type: ignore[index]
    assert other.begin("x") == Finished(2), "it is what it was"
    with pytest.raises(ValueError, match="damaged"):
        other.resume(step.image[:-40])
    with pytest.raises(ValueError, match="not a gate of this sandbox"):
        opened(tool("look")).resume(step.image)
    assert value(sandbox.answer(step, Answer(1))) == 1


# --------------------------------------------------------------------------------------------------------- signatures


def test_the_standard_gates_have_the_expected_signatures():
    (line, *_) = render(CALL_AGENT.definition).splitlines()
    assert line.startswith("def call_agent(intent: str, context: Any = None, system_prompt: str | None = None, ")
    assert render(search.definition) == "def search(query: str, limit: int = 5) -> any\n    Search the notes."
    for one in (fetch, read, write, CALL_AGENT_BATCH, DONE):
        ast.parse(f"{render(one.definition).splitlines()[0]}: ...")


SCHEMAS = st.recursive(
    st.sampled_from(
        [{}, True, {"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["a", 1, None]}, {"const": 2}]
    )
    | st.just({"$ref": "#/$defs/Round"}),
    lambda inner: (
        st.builds(lambda one: {"type": "array", "items": one}, inner)
        | st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=6,
)


@given(
    properties=st.dictionaries(st.sampled_from(["a", "b", "from", "x-y", "c"]), SCHEMAS, max_size=5),
    required=st.sets(st.sampled_from(["a", "b", "from", "x-y", "c"])),
    more=st.sampled_from([True, False, None]),
)
def test_every_schema_makes_a_signature_that_python_can_read(properties: Any, required: set[str], more: bool | None):
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": sorted(required & set(properties)),
    }
    schema["$defs"] = {"Round": {"type": "array", "items": {"$ref": "#/$defs/Round"}}}
    if more is not None:
        schema["additionalProperties"] = more
    definition = ToolDefinition("a-gate", "What it does.\n\nMore.", schema)
    assert [*name_callables([definition])] == ["a_gate"]
    ast.parse(render(definition).splitlines()[0] + ": ...")


def test_the_capability_text_is_short():
    assert len(medium("python").capability(GATES, ProgramLimits())) < 4_000
    assert "functions. Call" not in medium("python").capability([], ProgramLimits())


# -------------------------------------------------------------------------------------------------------------- offer


def test_without_the_interpreter_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    for name in [name for name in sys.modules if name.startswith("cantrip_actors.circle.python.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidCantrip, match=r"cantrip-actors\[python\]"):
        medium("python")


def test_importing_circles_does_not_load_the_interpreter():
    import subprocess

    code = "import sys, cantrip_actors.circle; sys.exit('pydantic_monty' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_many_threads_may_each_have_a_sandbox():
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        sandbox = opened(limits=ProgramLimits(seconds=5))
        sandbox.begin(f"x = {number}")
        for _ in range(5):
            step = call(sandbox.begin("x += search('a')\nx"))
            step_after = sandbox.answer(step, Answer(number))
        results[number] = value(step_after)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number * 6 for number in range(16)}


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("class Bad(Exception):\n    pass", "raise ValueError"),
        ("def numbers():\n    yield 1", "build a list"),
        ("x = {1: 2}\ndel x[1]", "d.pop(key)"),
        ("class A:\n    @property\n    def x(self): return 1", "plain method"),
        ("import statistics", "these are here, in part: base64"),
        ("from dataclasses import asdict", "write yourself"),
        ("from enum import Enum", "these are here"),
        ("from datetime import datetime\ndatetime.now()", "functions that you were given"),
        ("open('notes.txt').read()", "functions that you were given"),
        ("import asyncio\nawait asyncio.gather(len('x'))", "without gather"),
        ("async def f():\n    async with x as y: pass", "nothing here has to be awaited"),
        ("import re\nre.sub('a', lambda m: 'b', 'a')", "re.finditer"),
        ("import sys\nsys.exit(0)", "done(answer)"),
        ("input('name?')", "there is no input"),
        ("type Names = list[str]", "leave the annotation out"),
    ],
)
def test_a_missing_python_feature_is_an_error_with_an_alternative(code, advice):
    step = medium("python").open([], ProgramLimits()).begin(code)
    assert isinstance(step, Raised)
    assert advice in step.error.partition("; instead: ")[2].splitlines()[0]


def test_a_programs_own_error_message_gets_no_advice():
    step = medium("python").open([], ProgramLimits()).begin("raise ValueError('there is no module')")
    assert isinstance(step, Raised)
    assert "instead" not in step.error


def test_the_modules_named_in_advice_are_those_of_the_capability_text():
    step = medium("python").open([], ProgramLimits()).begin("import requests")
    assert isinstance(step, Raised)
    named = step.error.partition("in part: ")[2].partition(";")[0]
    assert named in " ".join(medium("python").capability([], ProgramLimits()).split())

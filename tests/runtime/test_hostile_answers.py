"""Models that answer anything: whatever their answer holds is an observation, a refusal or an error of the cast.

The crystal answers once with what a test gives it, and then with `done`. Entities are long-lived: a crash would end
them for good.
"""

import contextlib
import json
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    CantripError,
    Circle,
    CrystalError,
    Message,
    Response,
    Runtime,
    ToolCall,
    Usage,
)
from cantrip_actors.gates import background, skills
from cantrip_actors.terms.gate import MODULES, standard
from cantrip_actors.terms.on_demand_gates import find_gates, use_gate
from cantrip_actors.wards import max_depth, max_turns
from supervisors.testing import virtual
from tests.runtime.spells import done

pytestmark = [
    pytest.mark.rule("V-30", "CIRCLE-5", "COMP-8", "D-011"),
    pytest.mark.filterwarnings("ignore::cantrip_actors.terms.risk.LethalTrifecta"),
]

SKILL = skills(Path(__file__).parent / "skills")
ON_DEMAND = [find_gates, use_gate]
registered = {name: standard(name) for name in MODULES}
KNOWN = {**registered, **{gate.name: gate for gate in (*background, SKILL, *ON_DEMAND)}}
SCHEMAS = {name: gate.parameters for name, gate in KNOWN.items()}
GATES = sorted(SCHEMAS.keys() - {"fetch", "person"})
"""Every standard gate, that of skills, and those for gates on demand; but not the one that needs a network, and the one
that no model calls (`person`)."""


def nested(levels: int) -> object:
    value: object = 0
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


LEAVES: list[Any] = [
    *("", " ", "\0", "\ud800", "x" * 300, "a", "done", "call_agent", "/etc", "../..", "*", "[", "(a+)+$"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-12:00", 0, -1, 1, 0.5, 1e308, float("nan"), float("inf")),
    *(10**30, -(10**400), 10**5000, True, None, [], {}, [""], ["a", ""], {"": ""}, {"\ud800": 1}, [{"intent": " "}]),
    *({"$ref": "#"}, {"$ref": "http://x/y"}, {"type": 5}, {"type": "string", "pattern": "["}, {"required": "x"}),
    *map(nested, (90, 101, 250, 3_000)),
]  # fmt: skip

values = st.recursive(
    st.integers(0, len(LEAVES) - 1).map(lambda index: LEAVES[index]),  # Hypothesis shows no value that has no repr
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["", "a", "intent", "type"]), parts),
    max_leaves=4,
)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Return a call of a standard gate: most of its arguments have a name of its schema, and any value."""
    name = draw(st.sampled_from(GATES))
    schema = SCHEMAS[name]
    required = dict.fromkeys(schema.get("required", ()), values)
    optional = {key: values for key in [*schema.get("properties", {}), "self", ""] if key not in required}
    return {"gate": name, "args": draw(st.fixed_dictionaries(required, optional=optional) | values)}


class Answering:
    """A crystal of a user's: children answer at once, and the entity answers `first`, and then `done`."""

    name = "answering"

    def __init__(self, first: object) -> None:
        self.first = first
        self.queries = 0

    async def invoke(self, messages: list[Message], **_: object) -> object:
        intent, last = messages[0].content, messages[-1]
        if intent not in ("go", "more") and messages[0].role == "user":
            return done("a child's answer")
        if last.content == "more":
            return done("and more")
        self.queries += 1
        assert self.queries < 6, "an entity that crashes pays for its answer again and again"
        return self.first if self.queries == 1 else done("survived")


def answer(first: object, medium: str, root: str) -> Cantrip:
    injected: dict[str, dict[str, object]] = {"post": {"to": ["*"]}, "ask": {"to": ["*"]}, "question": {"expires": 5}}
    gates = [
        KNOWN[name].with_(**injected.get(name, {"root": root} if "root" in KNOWN[name].injected else {}))
        for name in GATES
        if name in registered and name != "recall"
    ]
    circle = Circle([*gates, SKILL], [max_turns(6), max_depth(1)], medium=medium, on_demand=["recall"])
    return Cantrip(Answering(first), circle=circle)


async def survive(first: object, medium: str = "tools", root: str = "/nowhere") -> str:
    """Return how the entity's first episode ended: it may fail, but the entity takes the next intent."""
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(answer(first, medium, root), "go", name="x")
        try:
            ended = str((await entity.episode()).result)
        except CrystalError as error:
            ended = f"refused: {error}"
        assert (await entity.send("more")).result == "and more"
    return ended


def on(backend: str, program: Callable[..., Awaitable[Any]], *args: object) -> Any:
    name, options = virtual(backend)
    return anyio.run(program, *args, backend=name, backend_options=options)


backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@backends
def test_a_call_with_any_arguments_is_observed_by_its_entity(backend: str, tmp_path: Path) -> None:
    @settings(max_examples=15)
    @given(st.lists(calls(), min_size=1, max_size=12))
    @example([{"gate": "call_agent_batch", "args": {"intents": ["a", ""]}}])
    def holds(first: list[dict[str, Any]]) -> None:
        ended = on(backend, survive, {"tool_calls": first}, "tools", str(tmp_path))
        assert ended == "survived" or any(call["gate"] == "done" for call in first)

    holds()


@backends
def test_an_answer_of_any_shape_is_taken_or_is_an_error_of_the_cast(backend: str) -> None:
    fields = st.fixed_dictionaries({}, optional=dict.fromkeys(Response.__struct_fields__, values))
    tool_calls = st.builds(ToolCall, values, values, values, values)
    responses = st.builds(Response, values, st.tuples(tool_calls), st.builds(Usage, values), values, values)

    @settings(max_examples=15)
    @given(values | fields | responses | st.lists(values).map(lambda made: {"tool_calls": made}))
    @example(Response("a text", usage=Usage(10**5000)))
    def holds(first: object) -> None:
        on(backend, survive, first)

    holds()


PROGRAMS: Mapping[str, tuple[str, Callable[[str, str, Any], str]]] = {
    "python": (
        "deep = 0\nfor _ in range(3000): deep = [deep]\nnan = inf = 1e999\n",
        lambda name, argument, value: (
            f"try: {name}(**{{{argument!r}: {value!r}}}), {name}(**{{{argument!r}: deep}})\n"
            "except Exception as error: print(error)"
        ),
    ),
    "javascript": (
        "let deep = 0\nfor (let n = 0; n < 3000; n++) deep = [deep]\n",
        lambda name, argument, value: (
            f"try {{ {name}({{{argument}: {json.dumps(value)}}}); {name}({{{argument}: deep}}) }} "
            "catch (error) { console.log(`${error}`) }"
        ),
    ),
    "shell": ("", lambda name, argument, value: f"{name} --{argument} {shlex.quote(json.dumps(value))} || true"),
}
"""For each medium: how a program begins, and the statement that calls a gate with one argument, whatever follows."""


@pytest.mark.parametrize("medium", PROGRAMS)
async def test_a_program_that_calls_gates_with_any_arguments_is_observed(medium: str, tmp_path: Path) -> None:
    begins, state = PROGRAMS[medium]
    arguments = [(name, key) for name in GATES if name != "done" for key in SCHEMAS[name]["properties"]]
    plain = LEAVES[:23]
    statements = [
        state(*pair, plain[(n * 7 + more) % len(plain)]) for n, pair in enumerate(arguments) for more in (0, 9)
    ]
    statements += [state("call_agent_batch", "intents", value) for value in (["a", ""], [" "], [{"intent": ""}], [[]])]
    program = begins + "\n".join(statements)
    assert await survive({"code": program}, medium, str(tmp_path)) == "survived"


async def answer_by_people(schema: object, answers: list[object]) -> object:
    """Return the result of an entity that asks a person: each of the answers in turn, and in the end none."""
    first = {"tool_calls": [{"gate": "question", "args": {"text": "?", "schema": schema}}]}
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(
            Cantrip(Answering(first), circle=Circle(["done", "question"], [max_turns(3)])), "go"
        )

        async def decide() -> None:
            async with runtime.requests(follow=True) as feed:
                request = await anext(aiter(feed))
                for value in answers:
                    with contextlib.suppress(CantripError):
                        await runtime.decide(request.id, answer=value, by="ada")
                with contextlib.suppress(AlreadyDecided):
                    await runtime.decide(request.id, "deny", by="ada")

        async with anyio.create_task_group() as people:
            people.start_soon(decide)
            result = (await entity.episode()).result
            people.cancel_scope.cancel()  # for a schema that was refused no person is asked
        return result


@backends
def test_a_question_with_any_schema_takes_any_answer_or_refuses_it(backend: str) -> None:
    keywords = [
        "type",
        "pattern",
        "properties",
        "$ref",
        "$dynamicRef",
        "items",
        "enum",
        "format",
        "$defs",
        "allOf",
        "a",
    ]

    @settings(max_examples=20)
    @given(st.dictionaries(st.sampled_from(keywords), values), st.lists(values, max_size=3))
    def holds(schema: object, answers: list[object]) -> None:
        assert on(backend, answer_by_people, schema, answers) == "survived"

    holds()

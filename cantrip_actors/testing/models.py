"""Models that no provider has: one that does anything, one that calls each gate, and stand-ins for real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.crystal.scripted import Scripted, scripted
from cantrip_actors.crystal.stand_ins import REFUSING, STAND_INS, RealQuery
from cantrip_actors.terms.arguments import check, is_text
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.crystal import Crystal, check_crystal
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Invocation
from cantrip_actors.terms.own_gate_names import USE_GATE
from cantrip_actors.testing.json_values import make_value, make_values

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["RealQuery", "obedient", "refuse_real_queries", "replace", "wild"]

MOST_CALLS: Final = 4
"""Calls of one wild answer."""


def wild(circle: Circle) -> SearchStrategy[dict[str, Any]]:
    """Return a Hypothesis strategy of the answers of a model that does anything: steps for `scripted`.

    An answer has a text, which may be blank, or several calls of gates, or both. The arguments fit the gate's schema,
    or one is missing, or they are anything. The gate may be one that the circle does not have. `done` comes with an
    answer of the right type and with another. In a circle that runs programs, the text is the program.

    An entity survives all of that (CIRCLE-5), and so should your gates; if an answer is empty again and again, the
    cast raises CrystalError (CRYSTAL-3).

        @given(st.lists(wild(circle), max_size=6))
        def test_no_answers_of_a_model_pay_twice(answers): …

    Raises ModuleNotFoundError if Hypothesis is not installed.
    """
    from hypothesis import strategies as st

    definitions = {definition.name: definition.parameters for definition in circle.all_definitions}
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    )
    objects = st.dictionaries(st.text(max_size=8), anything, max_size=4)

    @st.composite
    def call(draw: Any) -> dict[str, Any]:
        name = draw(st.sampled_from([*definitions, "no_such_gate"]) if definitions else st.just("no_such_gate"))
        args = draw(make_values(definitions[name])) if name in definitions else draw(objects)
        change = draw(st.sampled_from(["none", "none", "missing", "wrong", "anything"]))
        if change == "anything" or not isinstance(args, dict):
            args = draw(objects)
        elif args and change != "none":
            key = draw(st.sampled_from(sorted(args)))
            if change == "missing":
                del args[key]
            else:
                args[key] = draw(anything)
        return {"gate": name, "args": args}

    calls = st.lists(call(), min_size=1, max_size=MOST_CALLS)
    text = st.text(max_size=40) | st.sampled_from(["", " ", "\n"])
    if circle.has_programs:
        return st.fixed_dictionaries({"content": text})
    return st.one_of(
        st.fixed_dictionaries({"content": text}),
        st.fixed_dictionaries({"tool_calls": calls}, optional={"content": text}),
    )


def obedient(circle: Circle) -> Scripted:
    """Return a crystal that calls each gate of the circle once, in order, with arguments that fit, and then `done`.

    It shows whether every gate takes the arguments that its schema allows. Each entity begins with the first gate.
    Gates of the runtime, such as `call_agent`, `question` and `use_gate`, are left out. A text with a `pattern` is not
    made to fit it: the entity observes what is wrong.

    Raises InvalidCantrip for a circle that runs programs: there a model writes no calls.
    """
    if circle.has_programs:
        raise InvalidCantrip(
            f"obedient: expected a circle of tools, got one that runs programs in {circle.medium_name}"
        )
    other_way = USE_GATE if circle.has_calls_by_name else None  # the gates that it calls are called themselves
    called = [gate for gate in circle.open_gates.values() if gate.kind == "function" and gate.name != other_way]
    done = next((gate for gate in circle.open_gates.values() if gate.kind == "done"), None)
    steps: list[Any] = [_call(gate.name, gate.definition.parameters) for gate in called]
    steps.append("done" if done is None else _call(done.name, done.definition.parameters))

    def answer(context: Invocation) -> Any:
        return steps[sum(message.role == "assistant" for message in context) % len(steps)]

    return scripted(answer, name="obedient")


def _call(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": make_value(parameters)}]}


@contextmanager
def replace(crystal: str, stand_in: Crystal | str) -> Iterator[None]:
    """Let another crystal stand in for the one of a name, in every runtime of this process, for a `with` block.

        with replace("openai:gpt-6.1-sol", scripted([…])):
            client.post("/quotes", …)

    Queries that begin in the block go to the stand-in, also those of cantrips that were made before it. An entity that
    is loaded keeps the crystal that it has.

    Raises InvalidCantrip if `crystal` is no name, and if `stand_in` is no crystal.
    """
    check(is_text(crystal), "replace", 'the name of a crystal, as in "openai:gpt-6.1-sol"', crystal, InvalidCantrip)
    check_crystal("stand_in", stand_in)
    before = STAND_INS.get(crystal)
    STAND_INS[crystal] = resolve(stand_in)
    try:
        yield
    finally:
        if before is None:
            del STAND_INS[crystal]
        else:
            STAND_INS[crystal] = before


@contextmanager
def refuse_real_queries() -> Iterator[None]:
    """Let no query of this process reach a provider, for a `with` block: it raises RealQuery, a CrystalError.

    Servers on this machine itself are no providers. As a fixture for all tests:

        @pytest.fixture(autouse=True)
        def no_real_queries():
            with refuse_real_queries():
                yield
    """
    mark = object()
    REFUSING.append(mark)
    try:
        yield
    finally:
        REFUSING.remove(mark)

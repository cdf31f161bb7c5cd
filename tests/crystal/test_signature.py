"""C-64: the `invoke` of a custom crystal may have any reasonable signature."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Runtime
from cantrip_actors.crystal.signature import find_arrangement
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("C-64")

OFFERED = {"messages": "m", "tools": "t", "tool_choice": "c", "options": "o", "emit": "e"}


def call(invoke):
    args, kwargs = find_arrangement(invoke)(OFFERED)
    return invoke(*args, **kwargs)


class Crystal:
    """One object whose methods are `invoke`s."""

    def rest(self, messages, *rest):
        return messages, *rest

    def everything(self, *args):
        return args

    def star_and_keywords(self, *args, **kwargs):
        return *args, *kwargs.values()

    def other_names(self, history, gates, choice):
        return history, gates, choice

    def all_other_names(self, history, gates, choice, settings):
        return history, gates, choice, settings

    def keyword_only(self, *, tool_choice, messages):
        return messages, tool_choice

    def keyword_only_with_other_names(self, *, history, gates):
        return history, gates

    def other_order(self, options, tools, messages):
        return messages, tools, options

    def positional_only(self, tools, other, /):
        return other, tools

    def one(self, prompt):
        return (prompt,)

    def none(self):
        return ()

    def own_default(self, messages, temperature=0.5, *, tools):
        return messages, temperature, tools

    def own_default_before_the_rest(self, messages, verbose=False, *rest):
        return messages, verbose, *rest

    def mixed(self, history, *rest, emit, **more):
        return history, *rest, emit, *more.values()


@pytest.mark.parametrize(
    ("name", "received"),
    [
        ("rest", "mtc"),
        ("everything", "mtc"),
        ("star_and_keywords", "mtco"),
        ("other_names", "mtc"),
        ("all_other_names", "mtco"),
        ("keyword_only", "mc"),
        ("keyword_only_with_other_names", "mt"),
        ("other_order", "mto"),
        ("positional_only", "mt"),
        ("one", "m"),
        ("none", ""),
        ("mixed", "mtceo"),
    ],
)
def test_each_parameter_receives_its_value(name, received):
    assert call(getattr(Crystal(), name)) == tuple(received)


def test_a_parameter_with_a_default_keeps_it():
    assert call(Crystal().own_default) == ("m", 0.5, "t")
    assert call(Crystal().own_default_before_the_rest) == ("m", False)


def test_a_wrapped_function_is_called_like_the_function_that_it_wraps():
    @functools.wraps(Crystal.keyword_only)
    def wrapped(*args, **kwargs):
        return Crystal.keyword_only(*args, **kwargs)

    assert call(functools.partial(wrapped, Crystal())) == ("m", "c")


NAMES = ["messages", "tools", "tool_choice", "options", "emit", "history", "gates", "choice", "more"]


@st.composite
def signatures(draw):
    """The text of a parameter list that Python accepts, of at most four required parameters with other names."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    split, slash = draw(st.integers(0, len(names))), draw(st.booleans())
    before, after = names[:split], names[split:]
    parts = [*before, *(["/"] if slash and before else [])]
    star = draw(st.sampled_from(["", "*rest"]))
    parts += [star or "*"] if star or after else []
    parts += after
    return ", ".join([*parts, *(["**keywords"] if draw(st.booleans()) else [])])


@given(signatures())
def test_any_signature_is_called_with_matching_arguments(parameters):
    space: dict[str, object] = {}
    exec(f"def invoke({parameters}): return locals()", space)
    required = [name for name in NAMES[5:] if name in parameters.replace("*", " ").split(", ")]
    unnamed = [name for name in list(OFFERED)[:4] if name not in parameters.split(", ")]
    if len(required) <= len(unnamed):
        received = call(space["invoke"])
        for name in set(OFFERED) & set(received):
            assert received[name] == OFFERED[name]


@pytest.mark.parametrize(
    "invoke",
    [
        lambda messages, *rest: f"{len(messages)} {len(rest)}",
        lambda *args: f"{len(args[0])} {len(args) - 1}",
        lambda history, gates, choice: f"{len(history)} 2",
    ],
)
async def test_a_cast_calls_a_crystal_with_an_unusual_signature(invoke):
    class Mine:
        def __init__(self):
            self.invoke = invoke

    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(Mine(), circle=Circle(["done"], [max_turns(2)])), "go")
    assert episode.result == "1 2"

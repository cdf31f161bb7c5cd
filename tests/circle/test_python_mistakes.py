"""Mistakes of entities in Python, and their error texts; and objects that only resemble values."""

import pytest

from cantrip_actors.circle.medium import Finished, ProgramLimits, Suspended, medium
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.own_gates import CALL_AGENT
from tests.circle.mistakes import error


@gate
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the notes."""
    return []


GATES = [one.definition for one in (DONE, CALL_AGENT, search)]


@pytest.fixture
def box():
    return medium("python").open(GATES, ProgramLimits())


def asked(box, code):
    step = box.begin(code)
    assert isinstance(step, Suspended), step
    return step.gate, dict(step.args)


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("searhc('milk')", "NameError: name 'searhc' is not defined; did you mean search?"),
        ("x = 1\nsubmit_anser(x)", "did you mean submit_answer?"),
        ("quit()", "end with done(answer)"),
        ("dir(search)", "catch AttributeError"),
        ("help(search)", "signatures"),
    ],
)
def test_an_unknown_name_is_an_error_with_advice(box, code, said):
    assert said in error(box, code)


@pytest.mark.parametrize("code", ["frobnicate()", "raise NameError('searhc')", "raise ValueError(\"name 'searhc'\")"])
def test_other_errors_get_no_advice(box, code):
    assert "did you mean" not in error(box, code)


def test_a_decorated_definition_is_shown_as_one_line(box):
    assert error(box, "class A:\n    @property\n    def x(self): return 1").endswith("\n  line 2: @property")


# ------------------------------------------------------------------------------------------------- gates as values


@pytest.mark.rule("CIRCLE-3")
@pytest.mark.parametrize(
    "code",
    [
        "f = search\nf('milk')",
        "fs = [done, search]\nfs[1]('milk')",
        "def g(h):\n    return h('milk')\ng(search)",
        "import functools\nfunctools.partial(search)('milk')",
    ],
)
def test_a_gate_is_called_under_other_names(box, code):
    assert asked(box, code) == ("search", {"query": "milk"})


@pytest.mark.rule("CIRCLE-9")
def test_a_gate_in_a_variable_persists_and_is_in_the_snapshot(box):
    box.begin("f = search")
    other = medium("python").open(GATES, ProgramLimits())
    other.load(box.dump())
    step = other.begin("f('milk')")
    assert isinstance(step, Suspended)
    assert step.image is not None
    assert other.resume(step.image).gate == "search"


def test_an_uncalled_gate_is_rendered_as_a_function(box):
    assert box.begin("done") == Finished("<function done>")


# ----------------------------------------------------------------------------------------- what is no value outside


@pytest.mark.rule("CIRCLE-8", "CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("range(3)", "range(0, 3): pass list(…) of it"),
        ("range(9, -1, -2)", "pass list(…) of it"),
        ("{'a': 1}.keys()", "dict_keys(['a']): pass list(…) of it"),
        ("{'a': '\\n'}.values()", "pass list(…) of it"),
        ("[{'a': 1}.items()]", "pass list(…) of it"),
        ("iter([1])", "pass list(…) of it"),
        ("lambda: 1", "<function '<lambda>'"),
        ("search", "<function search>"),
        ("__import__('x') if False else Thing", "<class 'Thing'>"),
        ("Thing().method", "<bound method>"),
    ],
)
def test_a_value_that_exists_only_inside_is_refused_as_an_argument(box, code, said):
    box.begin("class Thing:\n    def method(self): pass")
    told = error(box, f"done({code})")
    assert told.startswith("TypeError: done() argument 'answer' is not a JSON value: ")
    assert said in told


@pytest.mark.rule("CIRCLE-8")
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("list({'a': 1}.keys())", ["a"]),
        ("map(str, [1])", ["1"]),
        ("zip([1], [2])", [[1, 2]]),
        ("'range(0, 3) has three'", "range(0, 3) has three"),
        ("'<b>bold</b>'", "<b>bold</b>"),
        ("'a range(0, 3)'", "a range(0, 3)"),
        ("{'dict_keys([])x': 'dict_keys'}", {"dict_keys([])x": "dict_keys"}),
    ],
)
def test_values_and_texts_that_resemble_internal_objects_are_accepted(box, code, answer):
    assert asked(box, f"done({code})") == ("done", {"answer": answer})

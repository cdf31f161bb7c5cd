"""Mistakes of entities in JavaScript, and their error texts: models write for Node.js and browsers."""

import pytest

from cantrip_actors.circle.javascript.errors import describe
from cantrip_actors.circle.medium import Finished, ProgramLimits, Suspended, medium
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.own_gates import CALL_AGENT
from tests.circle.mistakes import error


@gate
async def search(query: str, limit: int = 5, tags: list[str] | None = None) -> list[str]:
    """Search the notes."""
    return []


GATES = [one.definition for one in (DONE, CALL_AGENT, search)]


@pytest.fixture
def box():
    opened = medium("javascript").open(GATES, ProgramLimits())
    yield opened
    opened.close()


def value(box, code):
    step = box.begin(code)
    assert isinstance(step, Finished), step
    return step.value


def asked(box, code):
    step = box.begin(code)
    assert isinstance(step, Suspended), step
    return dict(step.args)


# ----------------------------------------------------------------------------------------------- what is not here


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("searhc('milk')", "searhc is not defined; instead: did you mean search?"),
        ("setTimeout(() => 1, 10)", "there are no timers"),
        ("await new Promise(r => setTimeout(r, 10))", "there are no timers"),
        ("fetch('http://x')", "there is no network"),
        ("require('fs')", "this is not Node.js"),
        ("console.log(process.env)", "this is not Node.js"),
        ("import fs from 'fs'", "there are no modules"),
        ("await import('fs')", "there are no modules"),
        ("export const a = 1", "top-level variables and functions are kept"),
        ("document.title", "this is not a browser"),
        ("structuredClone({})", "JSON.parse(JSON.stringify(value)) copies data"),
        ("const x = 1;\nreturn x", "write the value as the last expression"),
        ("const x: number = 1", "not TypeScript"),
        ("interface A { x: string }", "not TypeScript"),
    ],
)
def test_a_name_of_other_engines_is_an_error_with_an_alternative(box, code, said):
    assert said in error(box, code)


@pytest.mark.parametrize("code", ["nothing_like_it", "let x = (", "throw new Error('fetch is not defined')", "null.x"])
def test_other_errors_get_no_advice(box, code):
    assert "instead" not in error(box, code)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("search('milk').then(r => r)", "not a function: search('milk').then; instead: a gate returns its result"),
        ("search('milk').then()", "not a function: search('milk').then; instead: a gate returns its result"),
        ("var o = {}; o.a()", "not a function: o.a (line 1"),
        ("({}).foo()", "not a function: ({}).foo (line 1"),
        ("undefined()", "not a function: undefined (line 1"),
        ("\n\n[1].mapp(x => x)", "not a function (line 3"),  # the engine points to the callback
    ],
)
def test_a_called_value_that_is_not_a_function_is_named(box, code, said):
    assert said in error(box, code)


@pytest.mark.rule("CIRCLE-9")
def test_an_error_in_a_function_of_an_earlier_program_says_where_it_was_called(box):
    box.begin("\n\nfunction f(x) {\n  return x.y.z }")
    assert error(box, "1 + 1\nf({})").endswith(", in f, called in line 2)")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("throw new Error('outer', {cause: new Error('inner')})", "Error: outer; caused by Error: inner"),
        ("await Promise.any([Promise.reject(new Error('a')), Promise.reject('b')])", ": Error: a, b"),
        ("throw Object.defineProperty(new Error('x'), 'cause', {get() { throw 1 }})", "cannot be shown"),
    ],
)
def test_the_cause_of_an_error_is_described(box, code, said):
    assert said in error(box, code)


@pytest.mark.parametrize(
    "stack", ["", "at f (<input>:9999:1)", "at <eval> (<input>:1:99999)", "at <eval> (<input>:0:0)", "x" * 100_000]
)
def test_an_error_with_any_stack_is_described(stack):
    assert describe("TypeError", "not a function", stack, "f()", ["search"]).startswith("TypeError: not a function")


@pytest.mark.parametrize(
    "code", ["\n" * 200_000, "a." * 100_000, "a" + " " * 200_000, "(" * 100_000, "import" * 50_000]
)
@pytest.mark.parametrize("name", ["SyntaxError", "TypeError"])
def test_a_program_of_any_shape_is_examined_quickly(name, code):
    """It holds up the whole process: a look that is quadratic would never come back."""
    stack = f"at <eval> (<input>:1:{len(code)})"
    assert describe(name, "not a function", stack, code, ["search"]).startswith(name)


# ---------------------------------------------------------------------------------------------- what is passed on


@pytest.mark.rule("CIRCLE-8", "CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("async function main() { return 42 }\ndone(main())", "a promise cannot be passed on: write await before it"),
        ("done([Promise.resolve(1)])", "a promise cannot be passed on"),
        ("done(() => 1)", "argument answer is a function"),
        ("done(search)", "argument answer is a function"),
        ("done(Symbol('x'))", "argument answer is a symbol"),
        ("search('x', {query: 'y'})", "got query twice"),
    ],
)
def test_a_value_without_a_json_form_is_refused_where_it_is_passed(box, code, said):
    assert said in error(box, code)


@pytest.mark.rule("CIRCLE-8")
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("NaN", "NaN"),
        ("[1 / 0, -1 / 0]", ["Infinity", "-Infinity"]),
        ("new Map([['a', 1]]).keys()", ["a"]),
        ("[3, 4].entries()", [[0, 3], [1, 4]]),
        ("(function* () { yield 1; yield 2 })()", [1, 2]),
        ("'a1b2'.matchAll(/[0-9]/g)", [["1"], ["2"]]),
        ("/x+/g", "/x+/g"),
        ("new String('s')", "s"),
    ],
)
def test_a_value_without_exact_json_crosses_in_its_nearest_form(box, code, answer):
    assert asked(box, f"done({code})") == {"answer": answer}


def test_printing_an_iterator_does_not_consume_it(box):
    assert value(box, "var it = [1, 2].values(); console.log(it); it; it.next().value") == 1


def test_an_unsettled_promise_in_a_value_is_shown_as_such(box):
    assert value(box, "[Promise.resolve(1)]") == ["[a promise: write await before it]"]


@pytest.mark.rule("CIRCLE-5")
def test_a_misspelt_argument_name_is_named(box):
    assert asked(box, "search('x', {limt: 3})") == {"query": "x", "limt": 3}  # and its check says what is wrong
    assert asked(box, "search('x', 3, {tag: []})") == {"query": "x", "limit": 3, "tag": []}


def test_a_gate_is_rendered_by_its_own_name_under_any_alias(box):
    assert value(box, "done") == "[function done]"
    assert value(box, "[submit_answer.name, call_entity.name]") == ["done", "call_agent"]


def test_the_console_has_the_methods_that_programs_use(box):
    step = box.begin(
        "console.group('g'); console.table([1]); console.dir({a: 1}); console.groupEnd(); console.time('t');"
        "console.assert(1, 'no'); console.assert(0, 'yes'); console.timeEnd('t')"
    )
    assert step == Finished(None, 'g\n[1]\n{"a":1}\nAssertion failed: yes\n')


@pytest.mark.rule("CIRCLE-3")
def test_half_an_emoji_is_printed_as_the_replacement_character(box):
    assert box.begin("console.log('a😀'.slice(0, 2))") == Finished(None, "a\ufffd\n")


def test_a_gate_that_a_program_deleted_is_not_suggested_for_itself(box):
    assert error(box, "delete globalThis.search; search('a')").startswith("ReferenceError: search is not defined (line")

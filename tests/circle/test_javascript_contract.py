"""JavaScript keeps the contract of the mediums; and what an entity may expect of this language in particular."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from cantrip_actors.circle.medium import CLOSED, Answer, Exceeded, Finished, ProgramLimits, Raised, Suspended, medium
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.own_gates import CALL_AGENT, CALL_AGENT_BATCH
from tests.circle.javascript_language import JAVASCRIPT
from tests.circle.medium_contract import MediumContract
from tests.slowness import measure_slowness

LIMITS = ProgramLimits(seconds=5, memory=16 * 2**20, output=2000, gate_calls=20)


@gate
async def read(path: str, limit: int | None = None) -> str:
    """Read a file."""
    return ""


@gate
async def save(data: dict, name: str = "") -> str:
    """Keep something."""
    return ""


DASHED = Gate.of(lambda: None, name="list-files", parameters={"type": "object", "properties": {}})
OPEN = Gate.of(lambda: None, name="anything")
GATES = [one.definition for one in (DONE, CALL_AGENT, CALL_AGENT_BATCH, read, save, DASHED, OPEN)]


@pytest.fixture(scope="module")
def javascript():
    return medium("javascript")


@pytest.fixture
def box(javascript):
    opened = javascript.open(GATES, LIMITS)
    yield opened
    opened.close()


def turn(box, code, answers=None, **variables):
    """A whole turn: its calls, and how it ended. `answers` are values, or what makes an Answer of a Suspended."""
    calls, step = [], box.begin(code, variables or None)
    answers = iter(answers or itertools.repeat(None))
    while isinstance(step, Suspended):
        assert len(calls) < 50
        calls.append((step.gate, dict(step.args)))
        answer = next(answers)
        step = box.answer(step, answer if isinstance(answer, Answer) else Answer(answer))
    return calls, step


def value(box, code, answers=None, **variables):
    step = turn(box, code, answers, **variables)[1]
    assert isinstance(step, Finished), step
    return step.value


def calls(box, code, answers=None):
    made, step = turn(box, code, answers)
    assert isinstance(step, Finished), step
    return made


class TestJavaScript(MediumContract):
    language = JAVASCRIPT


# --------------------------------------------------------------------------------------------------------- the SPEC


@pytest.mark.rule("CIRCLE-9")
def test_a_variable_persists_to_the_next_turn(box):
    value(box, "var x = 42;")
    assert calls(box, "done(x);") == [("done", {"answer": 42})]


@pytest.mark.rule("COMP-1")
def test_an_uncaught_gate_error_ends_the_program_as_an_error(box):
    code = 'call_agent({\n  intent: "sub task",\n  gates: ["fetch"]  // parent doesn\'t have fetch\n});\n'
    made, step = turn(box, code, [Answer('cannot grant gate "fetch"', is_error=True)])
    assert made == [("call_agent", {"intent": "sub task", "gates": ["fetch"]})]
    assert step == Raised('Error: cannot grant gate "fetch" (line 1, column 1)')


@pytest.mark.rule("COMP-2", "LOOM-8")
def test_call_agent_evaluates_to_the_childs_result(box):
    made = calls(box, 'var result = call_agent({ intent: "compute 6*7" });\ndone(result);', [42, None])
    assert made == [("call_agent", {"intent": "compute 6*7"}), ("done", {"answer": 42})]


@pytest.mark.rule("COMP-3")
def test_a_batch_is_one_call_with_a_list(box):
    code = """var results = call_agent_batch([
      { intent: "return A" },
      { intent: "return B" },
      { intent: "return C" }
    ]);
    done(results.join(","));"""
    made = calls(box, code, [["A", "B", "C"], None])
    assert made[0] == (
        "call_agent_batch",
        {"intents": [{"intent": "return A"}, {"intent": "return B"}, {"intent": "return C"}]},
    )
    assert made[1] == ("done", {"answer": "A,B,C"})


@pytest.mark.rule("COMP-4")
def test_a_childs_sandbox_has_nothing_of_its_parents(box, javascript):
    value(box, "var secret = 'parent_data';")
    child = javascript.open(GATES, LIMITS)
    code = 'try { done(secret); }\ncatch(e) { done("undefined"); }'
    assert calls(child, code) == [("done", {"answer": "undefined"})]
    child.close()


@pytest.mark.rule("COMP-6")
def test_a_gate_that_is_not_open_is_an_error_that_can_be_caught(javascript):
    box = javascript.open([DONE.definition], LIMITS)
    code = (
        'try { call_agent({ intent: "sub" }); done("should not reach"); }\ncatch(e) { done("blocked: " + e.message); }'
    )
    ((gate_, args),) = calls(box, code)
    assert (gate_, args["answer"][:8]) == ("done", "blocked:")
    box.close()


@pytest.mark.rule("COMP-8")
def test_a_childs_failure_is_caught_by_its_parent(box):
    code = """try {
      var result = call_agent({ intent: "will fail" });
      done("got: " + result);
    } catch(e) {
      done("caught: " + e.message);
    }"""
    made = calls(box, code, [Answer("child exploded", is_error=True), None])
    assert made[1] == ("done", {"answer": "caught: child exploded"})
    _, step = turn(box, "throw new Error('child exploded');")
    assert step == Raised("Error: child exploded (line 1, column 10)")


# --------------------------------------------------------------------------------------------------- variables live on


@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("let x = 1", "let x = 2; x", 2),
        ("const x = 1", "const x = 2; x", 2),
        ("const x = 1", "let x; typeof x", "undefined"),
        ("const x = 1", "x", 1),
        ("let {a, b: [c]} = {a: 1, b: [2]}, d = 3", "a + c + d", 6),
        ("class A { f() { return 1 } }", "class A { f() { return 2 } }\nnew A().f()", 2),
        ("class A {}\n(1)", "typeof A", "function"),
        ("function f() { return 1 }", "function f() { return 2 }\nf()", 2),
        ("const f = () => n; let n = 5", "n = 6; f()", 6),
        ("x = 3", "x", 3),
        ("let x = 1; { let x = 2 }", "x", 1),
        ("for (let i = 0; i < 3; i++) {}", "typeof i", "undefined"),
        ("'use strict'; let x = 7", "x", 7),
        ("const x = await read('a')", "x", None),
        ("const s = `${[1].map(q => { const r = q; return r })}`", "s + typeof r", "1undefined"),
        ("let m = new Map([['k', {deep: [1]}]])", "m.get('k').deep[0]", 1),
        ("var g = (function* () { yield 1; yield 2 })(); g.next()", "g.next().value", 2),
        ("let p = Promise.resolve(4)", "await p", 4),
    ],
)
def test_top_level_declarations_persist_and_can_be_repeated(box, first, second, expected):
    assert isinstance(turn(box, first)[1], Finished)
    assert value(box, second) == expected


@pytest.mark.rule("CIRCLE-9")
def test_changes_before_an_exception_persist(box):
    _, step = turn(box, "var x = 1;\nx = 2;\nnull.foo;\nx = 3;")
    assert step == Raised("TypeError: cannot read property 'foo' of null (line 3, column 1)")
    assert value(box, "x") == 2


@pytest.mark.parametrize(
    ("bomb", "limit"),
    [
        ("for (;;);", "0.2 s of computing"),
        ("let s = 'a'.repeat(1e7); for (;;) s.indexOf('b')", "0.2 s of computing"),
        ("var a = []; for (;;) a.push(new Array(999).fill(1))", "16 MiB of memory"),
        ("(function f() { f() })()", "calls nested too deep (recursion)"),
        ("for (;;) try { read('a') } catch {}", "3 gate calls in one program"),
    ],
)
def test_a_limit_undoes_only_its_turn(javascript, bomb, limit):
    seconds = 0.2 if "computing" in limit else 5.0  # a busy machine takes its time to fill a memory
    box = javascript.open(GATES, ProgramLimits(seconds=seconds, memory=16 * 2**20, gate_calls=3))
    value(box, "var x = {kept: [1]}")
    began = time.monotonic()
    _, step = turn(box, f"x.kept.push(2); console.log('seen'); {bomb}")
    assert step == Exceeded(limit, "" if "read" in bomb else "seen\n")  # its output has gone with its first call
    assert time.monotonic() - began < seconds + measure_slowness() or seconds > 1
    assert value(box, "x.kept") == [1]
    box.close()


@pytest.mark.parametrize("beside", range(4))  # where memory ends depends on what lies in it
def test_a_turn_that_leaves_no_memory_for_the_next_is_undone(javascript, beside):
    box = javascript.open(GATES[beside:], LIMITS)
    value(box, "var keep = 1")
    code = "var hoard = null; try { for (;;) hoard = [hoard] } catch (e) {} 'kept it all'"
    assert isinstance(turn(box, code)[1], Exceeded)
    assert value(box, "keep + typeof hoard") == "1undefined"
    box.close()


def test_variables_are_set_before_the_program_runs(box):
    context = [{"text": "a" * 100_000, "n": 2**40}] * 3
    assert value(box, "context.length + context[0].text.length + context[0].n + who", context=context, who=1) == (
        3 + 100_000 + 2**40 + 1
    )
    assert value(box, "who") == 1


# -------------------------------------------------------------------------------------------------- gates as functions


@pytest.mark.rule("CIRCLE-3", "CIRCLE-7")
@pytest.mark.parametrize(
    ("code", "gate_", "args"),
    [
        ("read('a.txt')", "read", {"path": "a.txt"}),
        ("read('a.txt', 5)", "read", {"path": "a.txt", "limit": 5}),
        ("read({path: 'a.txt', limit: 5})", "read", {"path": "a.txt", "limit": 5}),
        ("read('a.txt', {limit: 5})", "read", {"path": "a.txt", "limit": 5}),
        ("read('a.txt', undefined)", "read", {"path": "a.txt"}),
        ("read({path: 'a.txt', limit: undefined})", "read", {"path": "a.txt"}),
        ("read({nonsense: 1})", "read", {"nonsense": 1}),
        ("await read('a.txt')", "read", {"path": "a.txt"}),
        ("save({data: {a: 1}})", "save", {"data": {"a": 1}}),
        ("save({a: 1})", "save", {"data": {"a": 1}}),
        ("save({a: 1}, 'n')", "save", {"data": {"a": 1}, "name": "n"}),
        ("save({a: 1}, {name: 'n'})", "save", {"data": {"a": 1}, "name": "n"}),
        ("save(new Map([['a', new Set([1n])]]))", "save", {"data": {"a": [1]}}),
        ("done(7)", "done", {"answer": 7}),
        ("done()", "done", {}),
        ("done({answer: 7})", "done", {"answer": 7}),
        ("done({total: 7})", "done", {"answer": {"total": 7}}),
        ("done([1, {a: null}])", "done", {"answer": [1, {"a": None}]}),
        ("submit_answer('x')", "done", {"answer": "x"}),
        ("call_agent('sum', {context: [1]})", "call_agent", {"intent": "sum", "context": [1]}),
        ("call_entity({intent: 'sum'})", "call_agent", {"intent": "sum"}),
        ("call_agent_batch(['a', 'b'])", "call_agent_batch", {"intents": ["a", "b"]}),
        ("list_files()", "list-files", {}),
        ("anything({any: 1})", "anything", {"any": 1}),
        ("[1].map(n => read('f' + n))", "read", {"path": "f1"}),
        ("({get x() { return read('getter') }}).x", "read", {"path": "getter"}),
        ("(async () => { await null; return read('late') })()", "read", {"path": "late"}),
        ("done('\\ud83d')", "done", {"answer": "\ufffd"}),
        ("done('\\u0000\\n\\\\u')", "done", {"answer": "\0\n\\u"}),
    ],
)
def test_positional_arguments_get_their_names(box, code, gate_, args):
    assert calls(box, code) == [(gate_, args)]


def test_too_many_arguments_are_an_error_before_anything_is_called(box):
    made, step = turn(box, "read('a', 1, 2)")
    assert (made, step) == (
        [],
        Raised("TypeError: read(path: string, limit?: number | null): got 3 arguments (line 1, column 1)"),
    )


@pytest.mark.parametrize(
    "result",
    [
        None,
        True,
        0,
        -1.5,
        2**53,
        "",
        "ä\u2028\0\U0001f600",
        [],
        {},
        [1, [2, {"a": None}]],
        {"__proto__": 1},
        "x" * 10**6,
    ],
)
def test_a_gates_result_arrives_unchanged(box, result):
    assert value(box, "read('a')", [result]) == result


def test_numbers_beyond_64_bits_and_half_an_emoji_arrive_in_their_nearest_form(box):
    assert value(box, "read('a')", [2**70]) == str(2**70)
    assert value(box, "read('a').length", ["\ud83d"]) == 1


@pytest.mark.rule("CIRCLE-5")
def test_a_gates_failure_is_an_error_with_its_message(box):
    code = "try { read('a') } catch (e) { [e instanceof Error, e.name, e.message] }"
    assert value(box, code, [Answer("OSError: gone", is_error=True)]) == [True, "Error", "OSError: gone"]


def test_gates_keep_their_names_for_the_next_turn(box):
    value(box, "let done = false; const read = 1; while (!done) done = true")
    assert calls(box, "done(read('a'))", ["text", None]) == [("read", {"path": "a"}), ("done", {"answer": "text"})]


def test_output_is_the_text_printed_since_the_step_began(box):
    step = box.begin("console.log('a', {b: [1]}, null, undefined, 2n); read('x'); print('c'); 5")
    assert isinstance(step, Suspended)
    assert step.output == 'a {"b":[1]} null undefined 2n\n'
    assert box.answer(step, Answer(None)) == Finished(5, "c\n")


def test_output_over_the_limit_is_cut_with_a_note(javascript):
    box = javascript.open(GATES, ProgramLimits(output=10))
    step = turn(box, "console.log('12345'); for (let i = 0; i < 1000; i++) console.log('67890'); 'end'")[1]
    assert step == Finished("end", "12345\n6789\n… (cut: at most 10 characters a turn are kept)\n")
    assert turn(box, "console.log('again')")[1].output == "again\n"
    box.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1 + 1", 2),
        ("", None),
        ("undefined", None),
        ("({a: [1, undefined, () => 1]})", {"a": [1, None, None]}),
        ("[NaN, Infinity, -0]", ["NaN", "Infinity", 0]),
        ("function f() {}", None),
        ("() => 1", "[function ]"),
        ("10n", 10),
        ("2n ** 70n", str(2**70)),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("Promise.resolve([1])", [1]),
        ("new Promise(() => {})", None),
        ("let o = {}; o.o = o; o", "(no JSON: TypeError: circular reference)"),
        ("'x'.repeat(17e6).length", 17_000_000),
    ],
)
def test_the_value_is_that_of_the_last_expression_as_json(javascript, code, expected):
    box = javascript.open(GATES, ProgramLimits(memory=64 * 2**20))
    assert value(box, code) == expected
    box.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("let x = (", "SyntaxError: unexpected token in expression: '' (line 1, column 8)"),
        ("\n\nfoo.bar", "ReferenceError: foo is not defined (line 3, column 1)"),
        (
            "function f() {\n  throw new RangeError('deep')\n}\nf()",
            "RangeError: deep (line 2, column 13, in f, called in line 4)",
        ),
        ("throw 42", "uncaught 42"),
        ("throw {code: 1}", 'uncaught {"code":1}'),
        ("await Promise.reject(new TypeError('no'))", "TypeError: no (line 1, column 25)"),
        ("(async () => { throw new Error('x') })()", "Error: x (line 1, column 25)"),
        ("await new Promise(() => {})", "Error: the program awaits a promise that nothing settles"),
    ],
)
def test_an_exception_says_its_name_its_message_and_where(box, code, error):
    step = turn(box, code)[1]
    assert isinstance(step, Raised)
    assert step.error == error


FAILING = "async function main() { throw new Error('boom') }"


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (f"{FAILING}; main(); 1", "Error: boom"),
        (f"{FAILING}\nfunction start() {{ main() }}\nstart()\nconsole.log('started')", "Error: boom"),
        (f"{FAILING}\nif (true) {{ main(); print('on') }} 1", "Error: boom"),
        ("(async () => { null.x })(); 1", "TypeError: cannot read property 'x' of null"),
        ("[1, 2].forEach(async n => { await 1; throw new Error(`item ${n}`) }); 1", "Error: item 1"),
        ("new Promise((_, reject) => reject(new Error('made'))); 1", "Error: made"),
        ("Promise.reject(42); 1", "uncaught 42"),
        (f"{FAILING}; main().then(() => print('well')); 1", "Error: boom"),
    ],
)
def test_a_rejected_promise_that_nothing_awaits_is_an_error_of_the_program(box, code, error):
    step = turn(box, code)[1]
    assert isinstance(step, Raised), step
    assert step.error.startswith(f"{error}; nothing awaits the promise that it rejected")
    assert value(box, "1 + 1") == 2


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"{FAILING}; main().catch(e => print(e.message)); 1", 1),
        (f"{FAILING}; try {{ await main() }} catch (e) {{ e.message }}", "boom"),
        (f"{FAILING}; const kept = main(); 1", 1),
        ("async function good() { return 5 }\ngood(); [2].forEach(async n => n); 1", 1),
        ("async function good() { return 5 }\ngood()", 5),
        ("async () => 1; Object.groupBy([1, 2], n => n % 2 ? 'odd' : 'even')", {"odd": [1], "even": [2]}),
        ("async () => 1; let n = 0; [1, 2].forEach(function (one) { n += one + this.more }, {more: 1}); n", 5),
    ],
)
def test_a_promise_that_is_awaited_or_fulfilled_is_no_error(box, code, expected):
    assert value(box, code) == expected


@pytest.mark.rule("CIRCLE-5")
def test_a_promise_of_an_earlier_programs_function_is_watched_after_a_restore(box, javascript):
    value(box, FAILING)
    other = javascript.open([], ProgramLimits())
    other.load(box.dump())
    for one in (box, other):
        assert "Error: boom; nothing awaits" in turn(one, "main(); 1")[1].error
    other.close()


@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize(
    "spoils",
    [
        "Object.freeze(globalThis)",
        "Object.seal(globalThis)",
        "Reflect.preventExtensions(new Proxy(globalThis, {}))",
        "Object.defineProperty(globalThis, 'done', {value: 1, configurable: false, writable: false})",
    ],
)
def test_a_program_that_would_spoil_later_ones_is_undone(box, spoils):
    value(box, "var x = 1; 0")
    step = turn(box, f"x = 2; {spoils}; 0")[1]
    assert isinstance(step, Exceeded)
    assert "globalThis must stay extensible" in step.limit
    assert value(box, "var y = x + 1; y") == 2
    assert calls(box, "done(y)") == [("done", {"answer": 2})]


@pytest.mark.rule("CIRCLE-9")
def test_a_program_may_define_constants_of_its_own(box):
    value(box, "Object.defineProperty(globalThis, 'fixed', {value: 7}); Object.freeze(fixed); 0")
    assert value(box, "fixed") == 7


def test_clock_and_random_numbers_are_the_same_in_every_run(javascript):
    def numbers():
        box = javascript.open(GATES, LIMITS)
        try:
            return value(box, "[Date.now(), performance.now(), Math.random(), Math.random(), String(new Date())]")
        finally:
            box.close()

    first = numbers()
    assert first == numbers()
    assert first[:2] == [0, 0]


# --------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.rule("D-003")
def test_after_done_the_program_runs_to_its_end_and_every_gate_is_closed(box):
    step = box.begin("done(1); var after = 2; try { read('x') } catch (e) { after = e.message } after")
    assert isinstance(step, Suspended)
    assert box.answer(step, Answer(None, closed=True)) == Finished(CLOSED)
    assert value(box, "after") == CLOSED
    assert calls(box, "read('open again')") == [("read", {"path": "open again"})]


def test_an_answer_belongs_to_the_call_that_waits(box):
    first = box.begin("read('a')")
    second = box.answer(first, Answer(1))
    assert second == Finished(1)
    with pytest.raises(ValueError, match="expected an answer to the gate call"):
        box.answer(first, Answer(2))
    first = box.begin("read('a')")
    box.begin("read('b')")
    with pytest.raises(ValueError, match="expected an answer to the gate call"):
        box.answer(first, Answer(2))


def test_an_abandoned_turn_is_undone_by_the_next(box):
    value(box, "var x = 1")
    box.begin("x = 2; read('a')")
    assert value(box, "x") == 1


def test_time_that_a_gate_takes_is_not_computing(javascript):
    box = javascript.open(GATES, ProgramLimits(seconds=0.2))
    step = box.begin("read('a')")
    time.sleep(0.4)
    assert box.answer(step, Answer(1)) == Finished(1)
    box.close()


@pytest.mark.parametrize("code", ["for (;;);", "let s = 'a'.repeat(1e7); for (;;) s.indexOf('b')"])
def test_an_interrupt_ends_a_step_in_another_thread(javascript, code):
    box = javascript.open(GATES, ProgramLimits(seconds=30))
    value(box, "var x = 1")
    timer = threading.Timer(0.1, box.interrupt)
    timer.start()
    began = time.monotonic()
    assert box.begin(f"x = 2; {code}") == Exceeded("interrupted from outside")
    assert time.monotonic() - began < 15
    timer.join()
    assert value(box, "x") == 1
    box.close()


def test_an_interrupt_between_turns_does_nothing_and_one_while_a_gate_runs_ends_the_turn(box):
    box.interrupt()
    assert value(box, "1") == 1
    step = box.begin("read('a')")
    box.interrupt()
    assert box.answer(step, Answer(1)) == Exceeded("interrupted from outside")
    assert value(box, "2") == 2


def test_close_leaves_no_thread_at_any_point_of_a_program(javascript):
    value(javascript.open(GATES, LIMITS), "1")  # the clock of all programs stays
    before = set(threading.enumerate())
    idle, suspended, computing = (javascript.open(GATES, ProgramLimits(seconds=30)) for _ in range(3))
    value(idle, "1")
    suspended.begin("try { read('a') } catch { for (;;); } finally { for (;;); }")
    steps = []
    worker = threading.Thread(target=lambda: steps.append(computing.begin("for (;;);")))
    worker.start()
    time.sleep(0.1)
    for box in (idle, suspended, computing, idle):
        box.close()
    worker.join(25)  # the program would take 30
    assert steps == [Exceeded("interrupted from outside")]
    assert set(threading.enumerate()) <= before
    with pytest.raises(ValueError, match="closed"):
        idle.begin("1")


def test_a_bug_of_the_host_is_raised_by_the_step(box, monkeypatch):
    value(box, "var x = 1")
    monkeypatch.setattr("cantrip_actors.circle.javascript.medium.read_arguments", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        box.begin("x = 2; try { read('a') } catch (e) { x = 3 }")
    monkeypatch.undo()
    assert value(box, "x") == 1


# ------------------------------------------------------------------------------------------ between two turns, as bytes


@pytest.mark.rule("LOOM-4")
def test_a_snapshot_restores_the_sandbox_and_is_small(box, javascript):
    value(box, "let n = 1; const f = () => n++; f(); class A { x = 5 } const a = new A(); let p = Promise.resolve(6)")
    image = box.dump()
    assert len(image) < 30_000
    value(box, "n = 100")
    fork = javascript.open(GATES, LIMITS)
    fork.load(image)
    assert value(fork, "[f(), n, a instanceof A, a.x, await p]") == [2, 3, True, 5, 6]
    assert calls(fork, "read('still there')") == [("read", {"path": "still there"})]
    assert value(box, "n") == 100
    fork.close()


def test_a_snapshot_is_the_same_in_another_process(box):
    value(box, "var data = {list: [1, 2, 3]}; function sum() { return data.list.reduce((a, b) => a + b) }")
    code = """if True:
        import sys
        from cantrip_actors.circle.medium import ProgramLimits, medium
        import cantrip_actors.circle
        box = medium("javascript").open([], ProgramLimits())
        box.load(sys.stdin.buffer.read())
        print(box.begin("data.list.push(4); sum()").value)
        box.begin("for (;;) data")  if len(sys.argv) > 1 else None
        box.close()
    """
    run = subprocess.run([sys.executable, "-c", code], input=box.dump(), capture_output=True, check=False, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"10\n", b"")


def test_a_process_that_exits_during_turns_exits_without_errors():
    code = """if True:
        import threading, time
        from cantrip_actors.circle.medium import ProgramLimits, medium
        from cantrip_actors.terms.done_gate import DONE
        import cantrip_actors.circle
        boxes = [medium("javascript").open([DONE.definition], ProgramLimits(seconds=60)) for _ in range(4)]
        for box in boxes[:2]: box.begin("done(1)")
        for box in boxes[2:]: threading.Thread(target=box.begin, args=["for (;;);"], daemon=True).start()
        time.sleep(0.2)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_suspended_program_has_no_snapshot(box):
    step = box.begin("read('a')")
    assert step.image is None
    assert box.dump() is None
    with pytest.raises(ValueError, match="no snapshots"):
        box.resume(b"")


def test_an_invalid_snapshot_is_refused_and_changes_nothing(box, javascript):
    value(box, "var x = 'x'.repeat(1000)")
    image = box.dump()
    other = image.replace(image[8:20], b"another one!")
    for bad in (b"", b"x" * 100, image[:-1], image[:-10] + b"0123456789", other, image[:60], image + b"x"):
        with pytest.raises(ValueError, match=r"snapshot|memory"):
            box.load(bad)
    assert value(box, "x.length") == 1000
    value(box, "x = 'x'.repeat(8e6) + 1; 0")
    small = javascript.open(GATES, ProgramLimits(memory=2**20))
    with pytest.raises(ValueError, match="memory"):
        small.load(box.dump())
    assert value(small, "1") == 1
    small.close()


def test_replay_reaches_the_gate_with_the_same_state(box, javascript):
    """What the runtime does after a crash in the middle of a gate call: the image of before, and the turn again."""
    value(box, "var n = Math.random()")
    before = box.dump()
    code = "const first = read('a' + n); const second = read(first + Math.random() + Date.now()); [first, second]"
    step = box.begin(code)
    step = box.answer(step, Answer("one"))
    again = javascript.open(GATES, LIMITS)
    again.load(before)
    replayed = again.answer(again.begin(code), Answer("one"))
    assert replayed.args == step.args
    assert again.answer(replayed, Answer("two")) == box.answer(step, Answer("two")) == Finished(["one", "two"])
    again.close()


# ----------------------------------------------------------------------------------------------------------- and so on


def test_the_capability_text_names_language_gates_and_limits(javascript):
    text = javascript.capability(GATES, ProgramLimits(seconds=2.5, memory=2**25, output=99, gate_calls=7))
    for part in ("JavaScript", "read(path: string, limit?: number | null)  // Read a file.", "done(answer: any)"):
        assert part in text
    for part in ("2.5 s", "32 MiB", "99 characters", "7 calls", "list_files()", "submit_answer"):
        assert part in text
    assert "submit_answer" not in javascript.capability([read.definition], LIMITS)
    assert len(javascript.capability([DONE.definition], LIMITS)) < 1200


def test_a_missing_engine_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cantrip_actors.circle.javascript.medium", None)
    with pytest.raises(ModuleNotFoundError):
        medium("javascript")
    monkeypatch.delitem(sys.modules, "cantrip_actors.circle.javascript.medium")
    monkeypatch.delitem(sys.modules, "cantrip_actors.circle.javascript.engine", raising=False)
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(InvalidCantrip, match=r"cantrip-actors\[js\]"):
        medium("javascript")


@pytest.mark.real_time
async def test_a_hundred_parents_and_a_hundred_children_run_at_once(javascript):
    cores, results = anyio.CapacityLimiter(2), []
    before = threading.active_count()

    async def cast(code):
        box = await anyio.to_thread.run_sync(javascript.open, GATES, LIMITS, limiter=cores)
        step = await anyio.to_thread.run_sync(box.begin, code, limiter=cores)
        while isinstance(step, Suspended):
            await anyio.sleep(0.05)
            result = await cast(step.args["intent"])
            step = await anyio.to_thread.run_sync(box.answer, step, Answer(result), limiter=cores)
        await anyio.to_thread.run_sync(box.close, limiter=cores)
        return step.value

    async def parent(n):
        results.append(await cast(f"call_agent('{n} * 2') + 1"))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for n in range(100):
                group.start_soon(parent, n)
    assert sorted(results) == [2 * n + 1 for n in range(100)]
    assert threading.active_count() <= before + 8  # the loop's own workers stay


def test_closed_sandboxes_leave_nothing_behind(javascript):
    def memory():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def churn():
        box = javascript.open(GATES, LIMITS)
        turn(box, "var a = Array(1000).fill('x'); read('a')")
        box.begin("read('b')")
        box.close()

    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("no /proc to read the memory from")
    for _ in range(20):
        churn()
    gc.collect()
    before = memory()
    for _ in range(100):
        churn()
    gc.collect()
    assert memory() - before < 10 * 2**20


def test_threads_share_the_engine(javascript):
    failures = []

    def work(n):
        for _ in range(10):
            box = javascript.open(GATES, LIMITS)
            if value(box, f"read('a') + {n}", [n]) != 2 * n:
                failures.append(n)
            box.close()

    threads = [threading.Thread(target=partial(work, n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.rule("Z-16")
@pytest.mark.parametrize("text", ["x" * (8 * 2**20), "é" * (4 * 2**20)], ids=["ascii", "accents"])
@pytest.mark.parametrize("is_error", [False, True])
def test_an_answer_over_the_bound_is_an_error_of_the_program_that_says_the_bound(javascript, text, is_error):
    box = javascript.open(GATES, ProgramLimits(seconds=60, memory=64 * 2**20, output=2000, gate_calls=20))
    code = "try { read('a') } catch (error) { error.message }"
    assert value(box, code, [Answer(text + "x", is_error)]).endswith(
        "a program may get 8,388,608 in one: ask for a part"
    )
    assert len(value(box, "read('a').length + ''", [Answer(text[:-9])])) > 5
    box.close()

"""Top-level declarations become `var`, and nothing else changes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.circle.javascript.source import PreparedScript, prepare
from cantrip_actors.circle.syntax import LONGEST


@pytest.mark.parametrize(
    ("code", "rewritten"),
    [
        ("let x = 1, y, z = [1,2]\nfoo(x), b", "var x = 1, y = void 0, z = [1,2]\nfoo(x), b"),
        ("const x = 1", "var   x = 1"),
        ("let x", "var x = void 0"),
        ("let x // why\n, y /* not */", "var x = void 0 // why\n, y = void 0 /* not */"),
        ("let g\n[1].map(x => x)", "var g = void 0\n[1].map(x => x)"),
        ("const {a, b: [c]} = o, d", "var   {a, b: [c]} = o, d = void 0"),
        (
            "const f = async (a, b) => {\n let q = 1 }\nlet g",
            "var   f = async (a, b) => {\n let q = 1 }\nvar g = void 0",
        ),
        ("class A extends B { m() { let x } }\n(1)", "var A = class A extends B { m() { let x } };\n(1)"),
        ("if (1) { class Q {} } class W { }", "if (1) { class Q {} } var W = class W { };"),
        ("x = class {}", "x = class {}"),
        ("x = class A {}", "x = class A {}"),
        ("for (let i = 0; i < 3; i++) { const k = i }", "for (let i = 0; i < 3; i++) { const k = i }"),
        ("for (const x of y) for (const [a] of x) f(a)", "for (const x of y) for (const [a] of x) f(a)"),
        ("let s = `a ${ (() => { let q = `${1}`; return q })() } let z`; let t", None),
        ("const r = /[/'\"]let/.test(a) / 2; let k", "var   r = /[/'\"]let/.test(a) / 2; var k = void 0"),
        ("let re = a / b / c\nlet w", "var re = a / b / c\nvar w = void 0"),
        ("let a = b ? c : d, e", "var a = b ? c : d, e = void 0"),
        ("let x = y\n/2\nlet z", "var x = y\n/2\nvar z = void 0"),
        ("let x = 1\n++y, z", "var x = 1\n++y, z"),
        ("let\nx\n=\n3\nconst y=x", "var\nx\n=\n3\nvar   y=x"),
        ("o.let = 1; o.const; o?.class", "o.let = 1; o.const; o?.class"),
        ("'let x'; \"const y\"; // let z\n/* class A {} */", "'let x'; \"const y\"; // let z\n/* class A {} */"),
        ("let = 5; let", "let = 5; let"),
        ("'use strict'; let x = 1", "'use_strict'; var x = 1"),
        ("function f() { let x; class A {} }\nlet y = 1", "function f() { let x; class A {} }\nvar y = 1"),
        ("label: { let x }", "label: { let x }"),
        ("switch (x) { case 1: let y }", "switch (x) { case 1: let y }"),
        ("const fn = function () { const u = 1; return u }, other", None),
        ("let ünïcode = 1, $ = 2, _x = 3, \\u0061 = 4", "var ünïcode = 1, $ = 2, _x = 3, \\u0061 = 4"),
    ],
)
def test_top_level_declarations_become_var(code, rewritten):
    if rewritten is None:
        rewritten = {
            "let s": "var s = `a ${ (() => { let q = `${1}`; return q })() } let z`; var t = void 0",
            "const": "var   fn = function () { const u = 1; return u }, other = void 0",
        }[code[:5]]
    assert prepare(code).code == rewritten
    assert prepare(code).code.count("\n") == code.count("\n")


@pytest.mark.parametrize(
    ("code", "rewritten"),
    [
        ("f(); g()", "f()?.__dropped; g()"),
        ("f()\n// the end", "f()\n// the end"),
        ("let x = f(); a.b(c)\nnew D(); 1", "var x = f(); a.b(c)?.__dropped\nnew D()?.__dropped; 1"),
        ("(async () => { f(); return g() })(); 1", "(async () => { f()?.__dropped; return g() })()?.__dropped; 1"),
        ("x = f(); await f(); `${f()}`; new D; y => f(); 1", "x = f(); await f(); `${f()}`; new D; y => f(); 1"),
        ("f(); ) (", "f(); ) ("),
    ],
)
def test_calls_whose_result_is_dropped_are_watched(code, rewritten):
    assert prepare(code, is_watched=True).code == rewritten


@pytest.mark.parametrize(
    ("code", "awaits"),
    [
        ("await f()", True),
        ("const x = await f()", True),
        ("if (x) { await g() }", True),
        ("try { await g() } catch (e) { }", True),
        ("for (const x of await f()) g(x)", True),
        ("await (async () => {})()", True),
        ("const a = () => 1\nconst b = await a()", True),
        ("async function m() { await 1 }\nm()", False),
        ("const m = async () => { await 1 }; m()", False),
        ("xs.map(async x => await f(x)); let r = 5", False),
        ("(async () => { for (const x of y) { await x } })()", False),
        ("class A { async m() { await 1 } }", False),
        ("'await'; x.await; ({await: 1}) // await", False),
    ],
)
def test_await_outside_of_functions_is_found(code, awaits):
    assert prepare(code).awaits is awaits


@pytest.mark.parametrize(
    "code",
    [
        "let x = `" + "${`" * 30_000,
        "let /*" * 30_000,
        "let " + '\\"' * 60_000,
        "let x=/[" * 20_000,
        "let " + "'" * 99_999,
        "let x\n" * 30_000,
        "let x=" + "(" * 150_000,
        "let x=" + "a=>" * 50_000,
        "let " + "\n" * 190_000,
        "let x" * 40_000,
    ],
    ids=lambda code: ascii(code[:12]),
)
def test_preparing_any_program_takes_bounded_time(code):
    assert len(code) <= LONGEST
    began = time.process_time()
    prepare(code, is_watched=True)
    assert time.process_time() - began < 4


def test_a_long_program_or_one_without_declarations_is_unchanged():
    assert prepare("x = 1; letter = 'const_'") == PreparedScript("x = 1; letter = 'const_'")
    long = "let x = 1;" + " " * LONGEST
    assert prepare(long) == PreparedScript(long)


@given(st.text(alphabet="let const class await x=1;,(){}[]`$'\"/\\\n*=>.", max_size=60))
def test_preparing_any_text_keeps_its_number_of_lines(code):
    script = prepare(code)
    assert script.code.count("\n") == code.count("\n")

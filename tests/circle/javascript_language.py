"""JavaScript snippets for the contract of the mediums."""

from cantrip_actors.circle.medium import medium
from tests.circle.medium_contract import Language

JAVASCRIPT = Language(
    name="JAVASCRIPT",
    module="tests.circle.javascript_language",
    make=lambda: medium("javascript"),
    assign="let x = 41",
    read="x + 1",
    statement="var y = 1",
    printing="console.log('hello'); console.log('again')",
    call="const r = search('notes', 3)\nr",
    call_by_name="search({query: 'notes'})",
    call_twice="console.log('one'); let a = search('a'); console.log('two'); let b = search('b'); [a, b]",
    catching="let text; try { search('a') } catch (error) { text = error.message } text",
    adding=(
        "function add(n) { const inner = () => search('part', n); x += inner() }\nfor (let i = 0; i < 3; i++) add(i)\nx"
    ),
    wrong_call="let raised = false; try { search(1, 2, 3, 4) } catch (error) { raised = true } raised",
    raising="let y = 5;\nthrow new Error('bad luck')",
    broken="function (",
    read_y="y",
    unknown="nope()",
    replace_gate="let search = 5",
    odd="[() => 1, Symbol('x'), 3n, new Set([1, 'a'])]",
    spin="x = 13; for (;;);",
    spin_and_catch="for (;;) { try { for (;;) x = 13 } catch { } finally { continue } }",
    spin_after_call="x = 13; search('a'); for (;;);",
    hog="x = [13]; for (;;) x = x.concat(x)",
    recurse="x = 13; function f() { return f() }\nf()",
    flood="for (let i = 0; i < 1000; i++) console.log('x'.repeat(99))",
    calls="x = 13; for (let i = 0; i < 1000; i++) search('a')",
    done_then_more=(
        "let before = 1; done('the answer'); let after = 2, seen; "
        "try { search('a') } catch (error) { seen = error.message }"
    ),
    read_after="[before, after, seen]",
    read_given="data['names'][1]",
    delegate="call_agent('go deeper')",
    look_around="Object.getOwnPropertyNames(globalThis).map(name => String(globalThis[name])).join() + process.env",
    has_images=False,
)

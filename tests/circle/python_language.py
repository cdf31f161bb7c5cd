"""Python snippets for the contract of the mediums."""

from cantrip_actors.circle.medium import medium
from tests.circle.medium_contract import Language

PYTHON = Language(
    name="PYTHON",
    module="tests.circle.python_language",
    make=lambda: medium("python"),
    assign="x = 41",
    read="x + 1",
    statement="y = 1",
    printing="print('hello')\nprint('again')",
    call="r = search('notes', 3)\nr",
    call_by_name="search(query='notes')",
    call_twice="print('one')\na = search('a')\nprint('two')\nb = search('b')\n[a, b]",
    catching="try:\n    search('a')\nexcept RuntimeError as error:\n    text = str(error)\ntext",
    adding=(
        "def add(n):\n    global x\n    def inner():\n        return search('part', n)\n    x += inner()\n"
        "for i in range(3):\n    add(i)\nx"
    ),
    wrong_call="try:\n    search(1, 2, 3, 4)\n    raised = False\nexcept TypeError:\n    raised = True\nraised",
    raising="y = 5\nraise ValueError('bad luck')",
    broken="def (",
    read_y="y",
    unknown="nope()",
    replace_gate="search = 5",
    odd="[len, lambda: 1, 3j, {1, 'a'}]",
    spin="x = 13\nwhile True:\n    pass",
    spin_and_catch="while True:\n  try:\n    while True:\n      x = 13\n  except BaseException:\n    pass",
    spin_after_call="x = 13\nsearch('a')\nwhile True:\n    pass",
    hog="x = [13]\nwhile True:\n    x += x",
    recurse="x = 13\ndef f():\n    return f()\nf()",
    flood="for i in range(1000):\n    print('x' * 99)",
    calls="x = 13\nfor i in range(1000):\n    search('a')",
    done_then_more=(
        "before = 1\ndone('the answer')\nafter = 2\n"
        "try:\n    search('a')\nexcept RuntimeError as error:\n    seen = str(error)"
    ),
    read_after="[before, after, seen]",
    read_given="data['names'][1]",
    delegate="call_agent('go deeper')",
    look_around="import os\nstr(os.environ)",
)

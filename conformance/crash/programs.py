"""The workload in code circles: the same actions, written as programs.

An entity keeps a list of its steps in its sandbox and prints it each time. So its context shows whether the sandbox was
restored correctly: after a crash in the middle of a program, for a further intent, and for a fork. A gate whose outcome
is unknown raises in the program; the program ignores the error and prints the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cantrip_actors import Cantrip, Circle, Invocation, scripted
from conformance.crash import asked
from conformance.crash.timed import TIMER
from conformance.crash.workload import (
    CIRCLE,
    FOLDS,
    GATES,
    HELD,
    PLAIN,
    SHORT,
    WARDS,
    Root,
    asking_child,
    pair,
    parent,
    where,
    world,
)

__all__ = ["CANTRIPS", "CODE", "CONSULTING", "SCRIPT"]


class _Language(NamedTuple):
    """How to write an entity's actions in one language."""

    begin: str
    step: str
    act: str
    show: str
    batch: str
    child: str
    fail: str
    done: str


_PYTHON = _Language(
    "seen = []",
    "seen.append({step})\nprint(seen)",
    "try:\n    {gate}({what!r})\nexcept Exception:\n    pass",
    "print({gate}({what!r}))",
    "print(call_agent_batch({children!r}))",
    "print(call_agent({child!r}))",
    "raise ValueError('boom')",
    "done({label!r} + ' is done')",
)
_JAVASCRIPT = _Language(
    "var seen = [];",
    "seen.push({step}); console.log(JSON.stringify(seen));",
    "try {{ {gate}({what!r}); }} catch (error) {{}}; void 0",
    "console.log({gate}({what!r}));",
    "console.log(JSON.stringify(call_agent_batch({children!r})));",
    "console.log(call_agent({{intent: {child!r}}}));",
    "throw new Error('boom');",
    "done({label!r} + ' is done');",
)


def _program(language: _Language, label: str, word: str, step: int) -> str:
    goes_on = "." not in label and (
        "#" in label or "+" in label
    )  # for a further intent or a fork the variables exist already
    lines = [language.begin] if step == 0 and not goes_on else []
    lines.append(language.step.format(step=step))
    lines += [_line(language, label, f"{step}{n}", letter) for n, letter in enumerate(word)]
    return "\n".join(lines)


def _line(language: _Language, label: str, at: str, letter: str) -> str:
    if letter == "d":
        return language.done.format(label=label)
    if letter == "x":
        return language.fail
    if letter == "b":
        return language.batch.format(children=pair(label, at))
    if letter == "c":
        return language.child.format(child=parent(label, at))
    if letter == "k":
        return language.child.format(child=asking_child(label, at))
    if letter == "q":
        return language.show.format(gate="question", what=f"{label}/{at}")
    return (language.act if letter in "ema" else language.show).format(gate=GATES[letter], what=f"{label}/{at}")


def _cantrip(medium: Literal["python", "javascript"], language: _Language, gates: Sequence[Any] = CIRCLE) -> Cantrip:
    def answer(context: Invocation) -> Mapping[str, Any]:
        label, word, step = where(context.messages)
        world.pay(label, step, context.messages)
        usage = {"prompt_tokens": 10 + step, "completion_tokens": 5}
        return {"content": f"{label} step {step}", "code": _program(language, label, word, step), "usage": usage}

    return Cantrip(scripted(answer, record=False, name=medium), circle=Circle(gates, WARDS, medium=medium))


PYTHON = _cantrip("python", _PYTHON)
JAVASCRIPT = _cantrip("javascript", _JAVASCRIPT)

CODE = (
    Root(PYTHON, "code: e epm p", fork_at=2, fork="code+fork: e p"),
    Root(PYTHON, "tree: ebe x c p"),
    Root(PYTHON, "kept: e", ("kept#2: p eb", "kept#3: m x p")),
)
SCRIPT = (
    Root(JAVASCRIPT, "script: e ebe x p", fork_at=1, fork="script+fork: ee"),
    Root(JAVASCRIPT, "saved: e", ("saved#2: ep", "saved#3: c e")),
)
PYTHON_ASKS = _cantrip("python", _PYTHON, asked.GATES)
JAVASCRIPT_ASKS = _cantrip("javascript", _JAVASCRIPT, asked.GATES)

CONSULTING = (
    Root(PYTHON_ASKS, "asks: ea aaa q", fork_at=1, fork="asks+fork: aq"),
    Root(PYTHON_ASKS, "kept: a", ("kept#2: q k a",)),
    Root(JAVASCRIPT_ASKS, "script: aq k"),
)
CANTRIPS = (PLAIN, FOLDS, SHORT, HELD, TIMER, asked.ASKS, PYTHON, JAVASCRIPT, PYTHON_ASKS, JAVASCRIPT_ASKS)

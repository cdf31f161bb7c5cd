"""What an entity is told about its Python: the language it has and has not, its gates, its limits, how to finish.

Short, because it is in every query. What is missing from the language is said, because an entity that knows ordinary
Python would use it; what fails for another reason says so when it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cantrip_actors.circle.medium import Limits
from cantrip_actors.circle.python.signatures import shown
from cantrip_actors.terms.messages import ToolDefinition

__all__ = ["capability"]

_LANGUAGE: Final = """\
You act by writing Python programs. Each runs in your sandbox, and its variables and functions are there in your next
programs. You are shown what it prints, the value of its last expression, and its error.

It is a subset of Python 3: functions, closures, lambdas, decorators, simple classes, dataclasses, exceptions, with,
match, comprehensions, f-strings. It has no class inheritance (so no exception classes of your own), no generators
(yield), no del, no @property, @staticmethod or @classmethod, no input. Modules, in part: base64, bisect, collections,
copy, csv, dataclasses, datetime, decimal, functools, hashlib, itertools, json, math, random, re, tomllib, typing,
unicodedata. There are no packages, no files, no network, no environment and no clock.
"""
_GATES: Final = """\
The world is reached through these functions. Call them as they are, without import or await, with JSON values. They
raise RuntimeError when they fail. They cannot be called inside a callback such as sorted(key=…), map or filter: use a
loop or a comprehension.
"""


def capability(gates: Sequence[ToolDefinition], limits: Limits) -> str:
    """The text about the language, `gates` and `limits`."""
    parts = [_LANGUAGE]
    if gates:
        parts.append(_GATES + "\n" + "\n".join(shown(gate) for gate in gates) + "\n")
    if any(gate.name == "done" for gate in gates):
        parts.append("Finish with done(answer) or, which is the same, submit_answer(answer). No gate works after it.\n")
    bounds = ", ".join(limits.exceeded(one) for one in ("seconds", "memory", "gate_calls"))
    parts.append(
        f"Limits of one program: {bounds}. One that exceeds them is ended, and what it did to variables is undone; "
        f"what gates did stays done. Of printed output {limits.output} characters are kept.\n"
    )
    return "\n".join(parts)

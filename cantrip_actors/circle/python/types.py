"""The type check of a Python program against its gates, before any of the program runs.

It reports only gate calls whose arguments cannot be right. A variable of an earlier program, an unknown name or another
mismatched type may be fine at run time, or fails there with a better message. The same holds for arguments unpacked
with `*` or `**`, because the checker assigns one type to all of them.

The checker's messages are reworded with the signature that the entity was given, and quote the line that they are
about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_monty import Monty, MontyError, MontyTypingError

_NOTHING_RUNS: Final = "_not_defined_anywhere_so_that_nothing_runs"
"""The first line of the checked text. The checker rejects it, so the program never starts."""

_FOUND: Final = re.compile(r"^[^:]+:(\d+):\d+: error\[[\w-]+\] (.* function `(\w+)`.*)$")
_INCORRECT: Final = re.compile(r"Argument to function `(\w+)` is incorrect: Expected `(.+)`, found `(.+)`$")
_UNPACKED: Final = re.compile(r"[(,]\s*\*")
_LITERAL: Final = re.compile(r"^Literal\[([^,]+)\]$")

QUOTED: Final = 120
"""Characters of a program's line that a message quotes."""

_MEMORY: Final = 512 * 1024 * 1024


def wrong_calls(code: str, gates: Mapping[str, Any], pool: Monty) -> str | None:
    """Return the errors in the gate calls of `code`, one per line, or None. Blocks for some ten milliseconds.

    `gates` is the result of `gates.for_check`.
    """
    try:
        with pool.checkout(
            type_check=True,
            type_check_stubs=gates["stubs"],
            type_check_format="concise",
            limits={"max_memory": _MEMORY},
        ) as session:
            session.feed_start(f"{_NOTHING_RUNS}\n{code}")
    except MontyTypingError as diagnostics:
        return _describe(diagnostics.display(), code, gates["signatures"])
    except MontyError:  # the program does not parse, or the check was ended: running it will report the problem
        return None
    return None


def _describe(diagnostics: str, code: str, gates: Mapping[str, str]) -> str | None:
    """Return the errors about `gates` by line, each with its line, and the signatures of those gates."""
    lines = code.splitlines()
    wrong: dict[int, set[str]] = {}
    signatures: dict[str, None] = {}
    for one in filter(None, map(_FOUND.match, diagnostics.splitlines())):
        line, message, name = int(one[1]) - 1, one[2], one[3]
        source = lines[line - 1] if 0 < line <= len(lines) else ""
        if name in gates and not (_INCORRECT.match(message) and _UNPACKED.search(source)):
            wrong.setdefault(line, set()).add(_reword(message))
            signatures[gates[name]] = None
    if not wrong:
        return None
    report = ["TypeError: nothing was run, because of the call of a gate"]
    for line, findings in sorted(wrong.items()):
        source = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        report.append(f"  line {line}: {source if len(source) <= QUOTED else source[: QUOTED - 1] + '…'}")
        report += (f"    {finding}" for finding in sorted(findings))
    return "\n".join([*report, *(f"  {signature}" for signature in signatures)])


def _reword(message: str) -> str:
    wrong = _INCORRECT.match(message)
    if wrong is None:
        return message.replace("`", "")
    name, wanted, got = wrong.groups()
    wanted, got = (one.replace("Sequence[", "list[").rstrip("*") for one in (wanted, got))
    literal = _LITERAL.match(got)
    return f"{name}() takes {wanted} there, got {literal[1] if literal else got}"

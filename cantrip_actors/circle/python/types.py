"""The type check of a Python program against its gates, before any of it runs.

It finds the call of a gate whose arguments cannot be right, and nothing else: a variable of an earlier program, an
unknown name or another type that does not fit may turn out well, or fails with a better message when it runs. So may
what is unpacked with `*` or `**`: the checker takes one type for all that is in there.

What the checker says of types is put in the words of the signature that the entity was given, with the line it is
about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_monty import Monty, MontyError, MontyTypingError

__all__ = ["wrong_calls"]

_NOTHING_RUNS: Final = "_not_defined_anywhere_so_that_nothing_runs"
"""The first line of what is checked. It is an error to the checker, so the program is never begun."""

_FOUND: Final = re.compile(r"^[^:]+:(\d+):\d+: error\[[\w-]+\] (.* function `(\w+)`.*)$")
_INCORRECT: Final = re.compile(r"Argument to function `(\w+)` is incorrect: Expected `(.+)`, found `(.+)`$")
_UNPACKED: Final = re.compile(r"[(,]\s*\*")
_LITERAL: Final = re.compile(r"^Literal\[([^,]+)\]$")

SHOWN: Final = 120
"""Characters of a line of the program that are shown."""

_MEMORY: Final = 512 * 1024 * 1024


def wrong_calls(code: str, gates: Mapping[str, Any], pool: Monty) -> str | None:
    """What is wrong with the calls of gates in `code`, a line each, or None. Blocks for some ten milliseconds.

    `gates` are as `gates.for_check` describes them.
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
    except MontyError:  # it does not even parse, or the check was ended: running it will tell
        return None
    return None


def _describe(diagnostics: str, code: str, gates: Mapping[str, str]) -> str | None:
    """The findings about `gates` by line, with the line, and how the gates are called that they are about."""
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
    told = ["TypeError: nothing was run, because of the call of a gate"]
    for line, findings in sorted(wrong.items()):
        source = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        told.append(f"  line {line}: {source if len(source) <= SHOWN else source[: SHOWN - 1] + '…'}")
        told += (f"    {finding}" for finding in sorted(findings))
    return "\n".join([*told, *(f"  {signature}" for signature in signatures)])


def _reword(message: str) -> str:
    wrong = _INCORRECT.match(message)
    if wrong is None:
        return message.replace("`", "")
    name, wanted, got = wrong.groups()
    wanted, got = (one.replace("Sequence[", "list[").rstrip("*") for one in (wanted, got))
    literal = _LITERAL.match(got)
    return f"{name}() takes {wanted} there, got {literal[1] if literal else got}"

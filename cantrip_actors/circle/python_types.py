"""The type check of a Python program against its gates, before any of it runs.

It finds the call of a gate whose arguments cannot be right, and nothing else: a variable of an earlier program, an
unknown name or another type that does not fit may turn out well, or fails with a better message when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic_monty import MontyError, MontyTypingError

from cantrip_actors.circle.python_signatures import stub
from cantrip_actors.circle.python_workers import checkers
from cantrip_actors.model.messages import ToolDefinition

__all__ = ["wrong_calls"]

_NOTHING_RUNS: Final = "_not_defined_anywhere_so_that_nothing_runs"
"""The first line of what is checked. It is an error to the checker, so the program is never begun."""

_FOUND: Final = re.compile(r"^[^:]+:(\d+):\d+: error\[[\w-]+\] (.* function `(\w+)`.*)$")
_MEMORY: Final = 512 * 1024 * 1024


def wrong_calls(code: str, gates: Mapping[str, ToolDefinition]) -> str | None:
    """What is wrong with the calls of `gates` in `code`, a line each, or None. Blocks for some ten milliseconds."""
    stubs = "\n".join(["from typing import Any, Literal, Sequence", *(stub(name, gates[name]) for name in gates)])
    try:
        with checkers().checkout(
            type_check=True, type_check_stubs=stubs, type_check_format="concise", limits={"max_memory": _MEMORY}
        ) as session:
            session.feed_start(f"{_NOTHING_RUNS}\n{code}")
    except MontyTypingError as diagnostics:
        found = [_FOUND.match(line) for line in diagnostics.display().splitlines()]
        wrong = [f"  line {int(one[1]) - 1}: {one[2]}" for one in found if one and one[3] in gates]
        return "\n".join(["TypeError: nothing was run, because of the call of a gate", *wrong]) if wrong else None
    except MontyError:  # it does not even parse, or the check was ended: running it will tell
        return None
    return None

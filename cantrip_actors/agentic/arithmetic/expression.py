"""Arithmetic as people write it: `12 * 7`, `-3 - -4`, `6 x 7`, as a task.

One operation on two whole numbers and nothing more: whatever else is refused, with words.
"""

from __future__ import annotations

import re
from typing import Final

from cantrip_actors import InvalidIntent
from cantrip_actors.agentic.arithmetic.tasks import ArithmeticTask, Op

__all__ = ["DIGITS", "parse"]

DIGITS: Final = 2_000
"""Decimal digits that a number may have: a product has twice as many, and Python writes 4,300 and no more."""

_OPS: Final[dict[str, Op]] = {"+": "ADD", "-": "SUB", "−": "SUB", "*": "MUL", "x": "MUL", "X": "MUL", "×": "MUL"}
_TERM: Final = r"([+\-−]?\s*\d[\d_]*)"
_EXPRESSION: Final = re.compile(rf"\s*{_TERM}\s*([+\-−*xX×])\s*{_TERM}\s*", re.ASCII)


def parse(text: str) -> ArithmeticTask:
    """The task that an expression stands for.

    Raises InvalidIntent for what is no operation on two whole numbers, or has too long a number.
    """
    found = _EXPRESSION.fullmatch(text)
    if found is None:
        shown = text if len(text) <= 60 else f"{text[:59]}…"
        raise InvalidIntent(f'expected two whole numbers with + - * x or × between them, as in "12 * 7", got "{shown}"')
    a, op, b = found.groups()
    return ArithmeticTask(op=_OPS[op], a=_number(a), b=_number(b))


def _number(text: str) -> int:
    digits = re.sub(r"[\s_]", "", text).replace("−", "-")
    if len(digits.lstrip("+-")) > DIGITS:
        raise InvalidIntent(f"expected numbers of at most {DIGITS:,} digits, got one of {len(digits.lstrip('+-')):,}")
    return int(digits)

"""The smallest gate: it returns its argument. For first recipes, tests and measurements."""

from __future__ import annotations

from cantrip_actors.terms.gate import provide
from cantrip_actors.terms.gate_function import gate


@gate(idempotent=True, read_only=True)
async def echo(text: str) -> str:
    """Give back the text."""
    return text


provide(echo)

"""The names by which a program can call gates: the same rule in every language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cantrip_actors.terms.messages import ALIASES, ToolDefinition

FURTHER: Final = {"submit_answer": "done", **ALIASES}
"""Further names of gates, for names that no gate has itself (D-002, D-003)."""


def name_gates(gates: Sequence[ToolDefinition], identify: Callable[[str], str]) -> dict[str, ToolDefinition]:
    """Return the gates by each name that a program can call them by: their own first, then further ones.

    `identify` returns a gate's name as an identifier of the language.
    """
    named = {identify(gate.name): gate for gate in gates}
    own = {gate.name: gate for gate in gates}
    further = {name: own[meant] for name, meant in FURTHER.items() if meant in own and name not in named}
    return named | further

"""The two gates that a circle shows in place of its gates on demand (CALL-3); `on_demand.py` has what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import Field

from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.on_demand import GateCatalogue

SERVERS: Final = 20
"""Servers that the description of `find_gates` names."""


@gate(idempotent=True, read_only=True, blocking=True)
def find_gates(
    query: Annotated[str, Field(description="the gate's name, or words for what it does; empty: all gates")] = "",
    page: Annotated[int, Field(ge=1, description="which page of the results")] = 1,
) -> dict[str, Any]:
    """Find gates that are not shown to you. Returns definitions, the best matches first."""
    return GateCatalogue(()).find(query, page)


@gate(idempotent=True, read_only=True, blocking=False)
def use_gate(
    name: Annotated[str, Field(min_length=1, description="the name of the gate")],
    args: Annotated[dict[str, Any], Field(default_factory=dict, description="its arguments")],
) -> Any:
    """Call a gate that find_gates returned. The result is that of the gate."""
    raise ValueError(f"expected name and args alone, got {name} with {sorted(args)}")


def bind_catalogue(finder: Gate, gates: Sequence[Gate], *, in_programs: bool) -> Gate:
    """Return a `find_gates` that searches these gates; its description counts them by their servers."""
    counts = Counter(gate.server.name if gate.server is not None else "" for gate in gates)
    named = [f"{name} ({count})" for name, count in counts.most_common(SERVERS) if name]
    servers = f", among them those of {', '.join(named)}" if named else ""
    count = f"There {'is' if len(gates) == 1 else 'are'} {len(gates)}{servers}."
    how = "Your programs can call each at once." if in_programs else "Call one with use_gate."
    description = f"{find_gates.description} {count} {how}"
    return replace(finder, description=description, function=GateCatalogue(gates).find)

"""Gates on demand: a circle shows two gates in place of the definitions of hundreds (CALL-3).

`find_gates` returns definitions as an observation, so the call stays as it is. Nothing is loaded: a gate on demand is a
gate of its circle, and a call of it by name is checked and run as every call. So forks, restarts and children have
nothing to carry along.

A provider accepts calls of the tools in its request only. There an entity calls `use_gate(name, args)`, and the machine
reads such a call as the call of the gate that it names (`resolve_call`) before it records it. The context shows it as
the crystal sent it (`restore_call`). Everything in between sees one call of that gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cantrip_actors.terms.exact_json import read_arguments
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_search import GateIndex
from cantrip_actors.terms.messages import ALIASES, ToolCall, ToolDefinition, as_text
from cantrip_actors.terms.own_gate_names import USE_GATE

PAGE: Final = 8
"""Definitions in one observation."""

LONGEST_PAGE: Final = 16_000
"""Characters of the definitions in one observation. A longer definition is alone on its page."""

LONGEST_QUERY: Final = 400


class GateCatalogue:
    """The gates of a circle that are on demand. The index is made by the first search, in its worker thread."""

    def __init__(self, gates: Iterable[Gate]) -> None:
        self._definitions = [gate.definition for gate in gates]
        self._index: GateIndex | None = None

    def find(self, query: str = "", page: int = 1) -> dict[str, Any]:
        """Return a page of the definitions that match, best first; all of them for an empty query."""
        query = query[:LONGEST_QUERY].strip()
        matches, is_near = self._search(query) if query else (self._definitions, False)
        pages = _split_pages(matches)
        result: dict[str, Any] = {"found": len(matches), "gates": pages[page - 1] if page <= len(pages) else []}
        if page < len(pages):
            result["next_page"] = page + 1
        if not matches:
            result["note"] = "no gate matches: use other words, or an empty query for all gates"
        elif page > len(pages):
            result["note"] = f"expected a page from 1 to {len(pages)}"
        elif is_near:
            result["note"] = "no gate matches; these have the nearest names"
        return result

    def _search(self, query: str) -> tuple[Sequence[ToolDefinition], bool]:
        """Return the definitions that match; if none does, those with the nearest names, and True."""
        if self._index is None:
            self._index = GateIndex(self._definitions)
        matches = self._index.search(query)
        return (matches, False) if matches else (self._index.find_nearest(query), True)


def _split_pages(definitions: Iterable[ToolDefinition]) -> list[list[dict[str, Any]]]:
    pages: list[list[dict[str, Any]]] = []
    size = 0
    for definition in definitions:
        entry = {
            "name": definition.name,
            "description": definition.description,
            "parameters": dict(definition.parameters),
        }
        length = len(as_text(entry))
        if not pages or len(pages[-1]) == PAGE or size + length > LONGEST_PAGE:
            pages.append([])
            size = 0
        pages[-1].append(entry)
        size += length
    return pages


def resolve_call(call: ToolCall) -> ToolCall:
    """Return the call of the gate that a call of `use_gate` names; the call itself if its arguments name no gate."""
    while call.gate == USE_GATE and (inner := _read_inner(call)) is not None:
        call = inner
    return call


def _read_inner(call: ToolCall) -> ToolCall | None:
    outer = call.args
    if outer is None or outer.keys() - {"name", "args"}:
        return None
    name, value = outer.get("name"), outer.get("args")
    if not isinstance(name, str) or not name.strip() or not isinstance(value, Mapping | str | None):
        return None
    args, name = read_arguments({} if value is None else value), name.strip()
    raw = value if args is None and isinstance(value, str) else None
    return ToolCall(call.id, ALIASES.get(name, name), args, raw, by_name=True)


def restore_call(call: ToolCall) -> ToolCall:
    """Return a recorded call as the crystal made it."""
    if not call.by_name:
        return call
    args = call.raw if call.args is None else call.args
    return ToolCall(call.id, USE_GATE, {"name": call.gate, "args": args})

"""Streamed calls of `use_gate`: a watcher sees each as the call of the gate that it names.

The name of the gate is in the arguments, so such a call is held until it is complete, and its pieces are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from cantrip_actors.stream.wire import (
    AttemptFailed,
    Emitted,
    FinalFunctionCall,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
)
from cantrip_actors.terms import own_gate_names
from cantrip_actors.terms.messages import ToolCall
from cantrip_actors.terms.on_demand import resolve_call


class NamedCallStream:
    """The payloads of one query, with the calls of `use_gate` resolved."""

    def __init__(self) -> None:
        self._held: dict[str, ItemStart] = {}
        """The starts of calls that are not complete, by item."""

    def read(self, emitted: Emitted) -> Iterator[Emitted]:
        """Yield the payloads that replace a payload of the crystal."""
        match emitted:
            case ItemStart(item_type="function_call", name=own_gate_names.USE_GATE):
                self._held[emitted.item_id] = emitted
            case ItemDelta() if emitted.item_id in self._held:
                pass
            case ItemDone(final_item=FinalFunctionCall(name=own_gate_names.USE_GATE) as final):
                self._held.pop(emitted.item_id, None)
                yield from _resolve(emitted.item_id, final)
            case ItemDone() | ItemError() | ItemCancelled():
                start = self._held.pop(emitted.item_id, None)
                if start is not None:
                    yield start
                yield emitted
            case AttemptFailed():
                self._held.clear()
                yield emitted
            case _:
                yield emitted


def _resolve(item_id: str, final: FinalFunctionCall) -> Iterator[Emitted]:
    call = resolve_call(ToolCall(final.call_id, final.name, final.arguments))
    yield ItemStart(item_id, "function_call", None, call.gate, call.id)
    yield ItemDelta(item_id, call.arguments)
    yield ItemDone(item_id, FinalFunctionCall(call.gate, call.id, call.args or {}))

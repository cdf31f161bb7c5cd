"""The wards, by the names that users write: `from cantrip_actors.wards import max_turns, remove_gate`."""

from cantrip_actors.terms.ward import (
    Ward,
    Wards,
    max_calls,
    max_children,
    max_compute,
    max_cost,
    max_depth,
    max_gate_calls,
    max_memory,
    max_output,
    max_tokens,
    max_turns,
    remove_gate,
    require_done_tool,
    timeout,
)

__all__ = [
    "Ward",
    "Wards",
    "max_calls",
    "max_children",
    "max_compute",
    "max_cost",
    "max_depth",
    "max_gate_calls",
    "max_memory",
    "max_output",
    "max_tokens",
    "max_turns",
    "remove_gate",
    "require_done_tool",
    "timeout",
]

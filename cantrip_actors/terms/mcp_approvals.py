"""A person decides about MCP calls that a provider makes itself: the rules of the gate `mcp_approval`.

OpenAI returns an `mcp_approval_request` for such a call and waits. The decoder makes it a call of `mcp_approval`, whose
arguments are the server, its tool and the tool's arguments. So it is recorded, shown, decided and resumed as every call
with `ask_first`, and the next query takes the decision to the provider. The crystal is not offered the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cantrip_actors.terms.call import Call
    from cantrip_actors.terms.cantrip import Cantrip
    from cantrip_actors.terms.gate import Gate


def list_callable_gates(cantrip: Cantrip) -> Mapping[str, Gate]:
    """Return the gates that an utterance may call: the open ones of the circle and, if the provider may ask for
    approvals, `mcp_approval`.
    """
    gates = cantrip.circle.open_gates
    if not _has_approvals(cantrip.call):
        return gates
    from cantrip_actors.terms.mcp_approval_gate import MCP_APPROVAL

    return {MCP_APPROVAL.name: MCP_APPROVAL, **gates}


def _has_approvals(call: Call) -> bool:
    """Return whether the provider may ask: an MCP server among the options needs approvals unless it says "never"."""
    tools = call.options.get("tools")
    return any("ask_first" in tool.settings for tool in call.server_tools) or (
        isinstance(tools, (list, tuple))
        and any(
            isinstance(tool, Mapping) and tool.get("type") == "mcp" and tool.get("require_approval") != "never"
            for tool in tools
        )
    )

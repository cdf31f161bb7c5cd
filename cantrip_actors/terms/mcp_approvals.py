"""The gate by which a person decides about MCP calls that a provider makes itself.

OpenAI returns an `mcp_approval_request` for such a call and waits. The decoder makes it a call of `MCP_APPROVAL`, whose
arguments are the server, its tool and the tool's arguments. So it is recorded, shown, decided and resumed as every call
with `ask_first`, and the next query takes the decision to the provider. The crystal is not offered the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.wrapper import AskFirst, Wrapper

if TYPE_CHECKING:
    from cantrip_actors.terms.call import Call
    from cantrip_actors.terms.cantrip import Cantrip

APPROVED: Final = "approved"
"""The result of an approved call. Each other result, also that of a call that did not run, is a denial."""


@gate(name="mcp_approval", idempotent=True)
async def _approve(server: str, tool: str, arguments: Any) -> str:  # noqa: ARG001  # a person sees them
    """Ask a person whether the provider may call a tool of an MCP server."""
    return APPROVED


def _explain(args: Mapping[str, Any]) -> str:
    """Return why a person is asked. A decision that is remembered is one about the same tool of the same server."""
    return f"the provider calls {args.get('tool')} of the MCP server {args.get('server')}"


MCP_APPROVAL: Final = replace(_approve, wrappers=(Wrapper("ask_first", ask=AskFirst(_explain)),))


def list_callable_gates(cantrip: Cantrip) -> Mapping[str, Gate]:
    """Return the gates that an utterance may call: the open ones of the circle and, if the provider may ask for
    approvals, `mcp_approval`.
    """
    gates = cantrip.circle.open_gates
    return {MCP_APPROVAL.name: MCP_APPROVAL, **gates} if _has_approvals(cantrip.call) else gates


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

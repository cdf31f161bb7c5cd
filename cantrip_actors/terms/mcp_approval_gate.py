"""The gate `mcp_approval`; `mcp_approvals.py` says what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from cantrip_actors.terms import own_gate_names
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.wrapper import AskFirst, Wrapper


@gate(name=own_gate_names.MCP_APPROVAL, idempotent=True)
async def _approve(server: str, tool: str, arguments: Any) -> str:  # noqa: ARG001  # a person sees them
    """Ask a person whether the provider may call a tool of an MCP server."""
    return own_gate_names.APPROVED


def _explain(args: Mapping[str, Any]) -> str:
    """Return why a person is asked. A decision that is remembered is one about the same tool of the same server."""
    return f"the provider calls {args.get('tool')} of the MCP server {args.get('server')}"


MCP_APPROVAL: Final = replace(_approve, wrappers=(Wrapper("ask_first", ask=AskFirst(_explain)),))

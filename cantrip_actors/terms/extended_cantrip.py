"""An offered cantrip with the additions of a client. The log of an entity has them in its circle, so each process that
offers the cantrip makes the same one of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cantrip_actors.terms.additions import AddedTool, Additions
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.json_schema import make_validator
from cantrip_actors.terms.own_gate_names import DONE
from cantrip_actors.terms.value import replace_fields


def has_own_form(cantrip: Cantrip) -> bool:
    """Return whether the answers of a cantrip have a form of their own, which no client replaces."""
    done = cantrip.circle.gate(DONE)
    return cantrip.answer is not None or done is None or done.schema is not None or done.function is not None


def extend(offered: Cantrip, additions: Additions) -> Cantrip:
    """Return an offered cantrip with additions. Its own gates and its own form of answer stay as they are.

    Raises InvalidCantrip for a tool that cannot be a gate.
    """
    if not additions:
        return offered
    circle, call, requires_done = offered.circle, offered.call, offered.require_done_tool
    gates = circle.gates
    if additions.done is not None and not has_own_form(offered):
        validator, requires_done = make_validator(additions.done, foreign=True), True
        form: dict[str, Any] = {"parameters": additions.done, "schema": validator, "model": None, "written": None}
        gates = tuple(replace(gate, **form) if gate.name == DONE else gate for gate in gates)
    gates += tuple(tool.make_gate() for tool in additions.tools if circle.gate(tool.name) is None)
    if additions.must_call and not circle.has_programs:
        call = replace(call, tool_choice="required")
    if additions.one_call:
        call = replace(call, parallel_tool_calls=False)
    circle = replace_fields(circle, gates=gates)
    extended = replace_fields(offered, circle=circle, call=call, require_done_tool=requires_done)
    extended.__dict__.update(_offered=offered, _additions=additions)
    return extended


def find_additions(offered: Cantrip | None, circle: Mapping[str, Any], call: Mapping[str, Any]) -> Additions:
    """Return the additions to an offered cantrip that the circle and the call of a log have."""
    own = {} if offered is None else {gate.name: gate.parameters for gate in offered.circle.gates}
    recorded = {gate["name"]: gate for gate in circle["gates"]}
    tools = tuple(
        AddedTool(name, gate["parameters"], gate.get("description", ""))
        for name, gate in recorded.items()
        if gate.get("deferred") and name not in own
    )
    done = recorded[DONE]["parameters"] if DONE in recorded and DONE in own else None
    must_call = offered is not None and offered.call.tool_choice != call.get("tool_choice") == "required"
    has_own = offered is not None and offered.call.parallel_tool_calls is False
    one_call = not has_own and call.get("parallel_tool_calls") is False
    return Additions(tools, None if done == own.get(DONE) else done, must_call, one_call)

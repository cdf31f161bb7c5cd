"""The cantrip of a child: the parts that its parent may grant, and the parts that it inherits (COMP-1, COMP-6,
COMP-7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors.terms.answer import hold_to_schema
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import find_nearest
from cantrip_actors.terms.gate import Gate, Refused
from cantrip_actors.terms.messages import ALIASES, find_named_gate
from cantrip_actors.terms.value import replace_fields
from cantrip_actors.terms.ward import NUMBERS, PROGRAMS, Wards

if TYPE_CHECKING:
    from cantrip_actors.terms.own_gates import AgentRequest

DEEPEST_LEVEL: Final = 100
"""The deepest level of a child; 0 is a root entity. Each level is a task inside a task, with its cancel scopes."""


def carve(parent: Cantrip, request: AgentRequest) -> Cantrip | Refused:
    """Return the cantrip of a child that `parent` requests, or the reason for refusing it (COMP-1, COMP-6, COMP-7).

    The child has some of the parent's open gates, as the parent's companion lends them, and at least its wards, one
    level less deep. Its crystal is the first of these that is set: the request's, the crystal for its depth, the child
    crystal, the parent's. Its call is the parent's, unless its crystal has one of its own (as a program that acts as a
    crystal does) or the request names a system prompt. Its `done` asks for an answer that fits the request's schema, if
    it has one.

    Equal requests give one cantrip: the parent's cantrip caches the last child's.
    """
    alike = request.__dict__ | {"intent": None, "context": None}  # the child depends on all the others
    last: tuple[Any, Cantrip] | None = parent.__dict__.get("_last_carved")
    if last is not None and last[0] == alike:
        return last[1]
    child = _carve_child(parent, request)
    if isinstance(child, Cantrip) and getattr(child.crystal, "call", None) is None:  # it may differ next time
        parent.__dict__["_last_carved"] = (alike, child)
    return child


def _carve_child(parent: Cantrip, request: AgentRequest) -> Cantrip | Refused:
    if (why := _find_depth_fault(parent)) is not None:
        return Refused(why)
    gates = _list_lent_gates(parent)
    asked_for = gates if request.gates is None else [ALIASES.get(name, name) for name in request.gates]
    names = list(dict.fromkeys((*asked_for, "done")))  # without `done` a child could not finish; every parent has it
    for name in names:
        if name not in gates:
            return Refused(f'cannot grant gate "{name}": the parent\'s gates are {_describe(parent, name, gates)}')
    removed = [ALIASES.get(name, name) for name in request.remove_gates]
    for name in removed:
        if parent.circle.gate(name) is None:
            return Refused(f'cannot remove gate "{name}": the parent\'s gates are {_describe(parent, name, gates)}')
    idle = next((name for name in PROGRAMS if getattr(request, name) is not None), None)
    if idle is not None and not parent.circle.has_programs:
        return Refused(
            f"cannot narrow {idle}: it bounds programs, and your children call tools, as you do; leave it out"
        )
    numbers: dict[str, Any] = {name: getattr(request, name, None) for name in NUMBERS}
    lent = [gates[name] for name in names]
    if request.answer is not None:
        done = hold_to_schema(gates["done"], request.answer)
        if isinstance(done, Refused):
            return done
        lent = [done if gate.kind == "done" else gate for gate in lent]
    wards = Wards(
        **numbers,
        require_done_tool=bool(request.require_done_tool) or request.answer is not None,
        removed=frozenset(removed) - {"done"},
    )
    crystal = _child_crystal(parent, request)
    if isinstance(crystal, Refused):
        return crystal
    own = getattr(crystal, "call", None)
    call = own if isinstance(own, Call) else parent.call
    if (named := find_named_gate(call.tool_choice)) is not None and named not in names:
        call = replace(call, tool_choice=None)  # the parent's gate, which this child was not granted
    if request.system_prompt is not None:
        call = replace(call, system_prompt=request.system_prompt)
    circle = parent.circle.narrowed(lent, parent.circle.resolved.down(wards))
    answer = parent.answer if request.answer is None else None
    parts = {"crystal": crystal, "call": call, "circle": circle, "answer": answer}
    return replace_fields(parent, **parts, level=parent.level + 1, name=None)


def _find_depth_fault(parent: Cantrip) -> str | None:
    """Return why an entity may not delegate, if it is too deep for that."""
    if parent.circle.resolved.depth == 0:
        return "cannot delegate: no deeper delegation is allowed here (max_depth is 0)"
    if parent.level >= DEEPEST_LEVEL:
        return f"cannot delegate: entities nest at most {DEEPEST_LEVEL} levels deep: do the rest yourself"
    return None


def _describe(parent: Cantrip, name: str, gates: Mapping[str, Gate]) -> str:
    """Return the names of a parent's gates; of those that it is not shown, the nearest to a name."""
    hidden = parent.circle.hidden & gates.keys()
    return ", ".join([*(gate for gate in gates if gate not in hidden), *find_nearest(name, hidden)])


def _list_lent_gates(parent: Cantrip) -> Mapping[str, Gate]:
    """Return the parent's open gates as its children may have them: its companion may keep some to the parent."""
    companion, gates = parent.circle.companion, parent.circle.open_gates
    if companion is None:
        return gates
    lent = {name: companion.lend(gate) for name, gate in gates.items()}
    return {name: gate for name, gate in lent.items() if gate is not None}


def _child_crystal(parent: Cantrip, request: AgentRequest) -> Crystal | str | Refused:
    if request.crystal is not None:
        named = parent.crystals.get(request.crystal)
        if named is None:
            names = ", ".join(name for name in parent.crystals if isinstance(name, str)) or "none"
            return Refused(f'unknown crystal "{request.crystal}": crystals that may be named here: {names}')
        return named
    of_depth = parent.crystals.get(parent.level + 1)
    if of_depth is not None:  # and not `or`: a crystal may have a length, and be empty
        return of_depth
    return parent.crystal if parent.child_crystal is None else parent.child_crystal

"""The cantrip of a worker: a user's, with the gates that the contract grants and with its rules around them.

Wards only add up: the contract's make the cantrip stricter, never looser (D-009). Only `done` ends the entity, because
the exit contract is checked there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cantrip_actors import Cantrip, Circle, Gate, wrap
from cantrip_actors.circle.gates.files import list_files, read, search, write
from cantrip_actors.dispatch.checkpoints import EXEMPT
from cantrip_actors.dispatch.companion import DispatchCompanion, keep_off
from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.worker_gates import make_worker_gates
from cantrip_actors.terms.wrapper import Wrapper
from cantrip_actors.wards import max_cost, require_done_tool

JUDGE_THEMSELVES = frozenset(gate.function for gate in (read, write, list_files, search))
"""The gates of files that refuse what belongs to the runtime where they open it."""


def make_worker_cantrip(base: Cantrip, contract: Contract, companion: DispatchCompanion) -> Cantrip:
    """Return `base` for one dispatch. Raises DispatchError if it lacks a gate that the contract grants.

    Raises InvalidCantrip if a gate of `base` has the name of a gate that every dispatch adds.
    """
    gates: list[Any] = [*_select_granted_gates(base, contract), *make_worker_gates(contract, companion)]
    companion.note_gates(gates)
    rules: list[Any] = []
    for at, gate in enumerate(gates):
        if "root" in gate.dependencies and gate.function not in JUDGE_THEMSELVES:
            rules.append(wrap(gate.name, pre=[keep_off(gate.dependencies["root"])], name="keeps off own files"))
        if gate.name not in EXEMPT:
            rules.append(wrap(gate.name, pre=[companion.may_run], name="checkpoint"))
            # inside all other steps, so that it is called only if the gate has run
            gates[at] = replace(gate, wrappers=(*gate.wrappers, Wrapper("count", post=(companion.has_run,))))
    rules.append(wrap("done", pre=[companion.may_end], name="exit contract"))
    granted = {gate.name for gate in gates}
    # the base may remove a gate that the contract does not grant; a gate that the contract removes has to be there
    kept_wards = [ward for ward in base.circle.wards if ward.name != "remove_gate" or ward.value in granted]
    wards: list[Any] = [*kept_wards, *({name: value} for name, value in contract.wards), require_done_tool()]
    if contract.budget is not None:
        wards.append(max_cost(contract.budget))
    medium, jail, servers = base.circle.medium, base.circle.jail, base.circle.servers
    return replace(base, circle=Circle([*gates, *rules], wards, medium, companion, jail, servers))


def _select_granted_gates(base: Cantrip, contract: Contract) -> list[Gate]:
    """Return the gates of the cantrip that the contract grants; a contract that names none grants all."""
    gates = {gate.name: gate for gate in base.circle.gates}
    unknown = [name for name in contract.gates if name not in gates]
    if unknown:
        raise DispatchError(
            f"{contract.dispatch_id} grants {', '.join(unknown)}, which the cantrip lacks: its gates are "
            f"{', '.join(gates)}. Run it with another cantrip, or dispatch a contract that supersedes it"
        )
    return [gate for name, gate in gates.items() if not contract.gates or name in contract.gates or name == "done"]

"""The cantrip that a dispatch is run with: a user's, with what the contract grants and with its rules around the gates.

Nothing of the user's cantrip is lost but gates that the contract does not grant. Wards only add up: the contract's make
it stricter, never looser (D-009). It ends by `done` alone, since that is where the exit contract stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cantrip_actors import Cantrip, Circle, Gate, wrap
from cantrip_actors.dispatch.companion import DispatchCompanion, is_its_own, keeps_off
from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.gates import gates_of
from cantrip_actors.dispatch.hand import Hand
from cantrip_actors.wards import max_cost, require_done_tool

__all__ = ["staffed"]

READS = frozenset({"read", "list", "search"})
"""The standard gates that work with files and change none."""


def staffed(base: Cantrip, contract: Contract, hand: Hand, companion: DispatchCompanion, folder: Path) -> Cantrip:
    """`base` for one dispatch. Raises DispatchError where it has not the gates that the contract grants.

    Raises InvalidCantrip where a gate of `base` has the name of one that a dispatch brings.
    """
    gates: list[Any] = [*_granted(base, contract), *gates_of(contract, hand)]
    rules: list[Any] = []
    for one in gates:
        if "root" in one.dependencies and one.name not in READS:
            rules.append(wrap(one.name, pre=[keeps_off(folder, one.dependencies["root"])], name="keeps off dispatches"))
        if not is_its_own(one.name):
            rules.append(wrap(one.name, pre=[companion.may_run], post=[companion.has_run], name="checkpoint"))
    rules.append(wrap("done", pre=[companion.may_end], name="exit contract"))
    wards: list[Any] = [*base.circle.wards, *({name: value} for name, value in contract.wards), require_done_tool()]
    if contract.budget is not None:
        wards.append(max_cost(contract.budget))
    return Cantrip(
        crystal=base.crystal,
        call=base.call,
        circle=Circle([*gates, *rules], wards, base.circle.medium, companion),
        child_crystal=base.child_crystal,
        crystals=base.crystals,
        folding=base.folding,
        retry=base.retry,
        name=base.name,
    )


def _granted(base: Cantrip, contract: Contract) -> list[Gate]:
    """The gates of the cantrip that the contract grants: all, where it names none."""
    there = {one.name: one for one in base.circle.gates}
    unknown = [name for name in contract.gates if name not in there]
    if unknown:
        raise DispatchError(
            f"{contract.dispatch_id} grants {', '.join(unknown)}, which the cantrip has not: its gates are "
            f"{', '.join(there)}. Run it with another cantrip, or dispatch a contract that supersedes it"
        )
    return [one for name, one in there.items() if not contract.gates or name in contract.gates or name == "done"]

"""The gates of an orchestrator: it hands dispatches out, and gets back what came of them.

A contract that breaks rules is refused, with all of them in one observation, before anything is written (F-01).
A worker that fails is an error observation, and its orchestrator lives (F-25, COMP-8); one that is blocked is a result,
since it is the orchestrator's turn to do something about it. Workers are no children: they outlive the entity that
dispatched them, and a human may unblock them next week.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_actors import Gate, GateCall, Refused, gate
from cantrip_actors.dispatch.contract import Contract, draft
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.events import StatusChanged
from cantrip_actors.dispatch.log import now
from cantrip_actors.dispatch.record import Record, unblocking
from cantrip_actors.dispatch.together import overlaps
from cantrip_actors.gates import GateError

if TYPE_CHECKING:
    from cantrip_actors.dispatch.desk import CantripFor, Desk

__all__ = ["disjoint_outputs", "orders"]


def orders(desk: Desk, cantrip: CantripFor) -> tuple[Gate, ...]:
    """The gates, for a desk and what its workers are made from."""

    @gate(idempotent=True)
    async def dispatch(contract: dict[str, Any], call: GateCall) -> dict[str, Any]:
        """Hand out a dispatch to a worker and wait until it is completed, blocked or waits for approval.

        The contract has title, project, repo, priority, needs_approval, objective, acceptance (list), scope (list),
        background, sources (list of {path, description}), technical_context, tasks (list), verification, and may have
        outputs (paths), gates, wards, steps, decision_needed.
        """
        (made,) = _drafted([contract], call)
        return _reported(await _worked(desk, made, cantrip, call))

    @gate(idempotent=True)
    async def dispatch_batch(contracts: list[dict[str, Any]], call: GateCall) -> list[dict[str, Any]]:
        """Hand out several dispatches at once, to workers that write different files; the results come in order."""
        made = _drafted(contracts, call)
        clashes = overlaps(made)
        if clashes:
            raise GateError("; ".join(map(str, clashes)))
        done: dict[int, dict[str, Any]] = {}

        async def one(number: int, contract: Contract) -> None:
            try:
                done[number] = _outcome(await _worked(desk, contract, cantrip, call))
            except DispatchError as error:  # one that cannot be run keeps no other from it
                done[number] = {"dispatch": contract.dispatch_id, "is_error": True, "error": str(error)}

        async with anyio.create_task_group() as tasks:
            for number, contract in enumerate(made):
                tasks.start_soon(one, number, contract)
        return [done[number] for number in range(len(made))]

    @gate(idempotent=True)
    async def unblock(dispatch_id: str, note: str, call: GateCall) -> dict[str, Any]:
        """Tell a blocked worker what was done about its blocker; it goes on, and is waited for again."""
        events = unblocking(await desk.log.read_soon(dispatch_id), note)
        await desk.log.append_soon(
            dispatch_id, *events, by="orchestrator", author=call.entity_id, turn_id=call.turn_id, once=True
        )
        return _reported(await desk.run(dispatch_id, cantrip))

    return (dispatch, dispatch_batch, unblock)


def _drafted(contracts: Sequence[Mapping[str, Any]], call: GateCall) -> list[Contract]:
    """The contracts, or a refusal that lists everything that is wrong with any of them."""
    made: list[Contract] = []
    wrong: list[str] = []
    for number, given in enumerate(contracts, 1):
        said = {"dispatched_at": now(), **given, "parent_entity_id": call.entity_id, "spawned_by": call.turn_id}
        found = draft(said)
        if isinstance(found, Contract):
            made.append(found)
        else:
            where = f"contract {number}: " if len(contracts) > 1 else ""
            wrong += [f"- {where}{one}" for one in found]
    if wrong:
        raise GateError("nothing was dispatched; mend the contract:\n" + "\n".join(wrong))
    return made


async def _worked(desk: Desk, contract: Contract, cantrip: CantripFor, call: GateCall) -> Record:
    """Hand it out unless this turn has done so before a crash, and have it run."""
    if contract.dispatch_id in desk.log.ids():
        there = await desk.log.read_soon(contract.dispatch_id)
        if there.contract.spawned_by != call.turn_id:
            raise DispatchError(f"there is a dispatch {contract.dispatch_id} already: give yours another dispatch_id")
    else:
        await desk.dispatch(contract, author=call.entity_id, turn_id=call.turn_id)
    return await desk.run(contract.dispatch_id, cantrip)


def _reported(record: Record) -> dict[str, Any]:
    """What came of a dispatch; a failure is an error."""
    if record.status in ("failed", "rejected"):
        raise GateError(f"dispatch {record.id} {record.status}: {record.reason}")
    return _outcome(record)


def _outcome(record: Record) -> dict[str, Any]:
    told: dict[str, Any] = {"dispatch": record.id, "status": record.status}
    if record.status == "queued":
        told["waits_for"] = f"approval: {record.contract.decision_needed}"
    last = record.entries[-1].event
    reason = last.reason if isinstance(last, StatusChanged) else record.reason
    named = (("result", record.result), ("blocker", record.blocker), ("reason", reason))
    return told | {name: text for name, text in named if text}


def disjoint_outputs(call: GateCall) -> Refused | None:
    """A step before `call_agent_batch`: children whose contexts declare the same `outputs` do not run at once (F-46).

    `wrap("call_agent_batch", pre=[disjoint_outputs])`; a request says `context: {"outputs": ["src/a.py"]}`.
    """
    claimed: dict[str, int] = {}
    for number, request in enumerate(call.args["intents"], 1):
        context = getattr(request, "context", None)
        for path in context.get("outputs", ()) if isinstance(context, Mapping) else ():
            first = claimed.setdefault(str(path).strip("/"), number)
            if first != number:
                return Refused(f"requests {first} and {number} both write {path}: ask for them one after the other")
    return None

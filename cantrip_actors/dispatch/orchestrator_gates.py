"""The gates of an orchestrator: it dispatches contracts to workers, and gets their results.

A contract that breaks rules is refused, with all of them in one observation, before anything is written. A
worker that fails is an error observation, and its orchestrator continues (COMP-8). A blocked worker is a result,
because its orchestrator can do something about it. Workers are not children: they outlive the entity that dispatched
them, and a human may unblock them next week.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import anyio

from cantrip_actors import Gate, GateCall, Refused, gate
from cantrip_actors.dispatch.contract import Contract, draft
from cantrip_actors.dispatch.errors import DispatchError, DispatchExists
from cantrip_actors.dispatch.events import StatusChanged
from cantrip_actors.dispatch.log import Dispatches, now
from cantrip_actors.dispatch.overlap import find_common_paths, overlaps
from cantrip_actors.dispatch.record import Record, make_decision
from cantrip_actors.dispatch.terms import InvalidValue, read_texts
from cantrip_actors.gates import GateError


def make_orchestrator_gates(log: Dispatches, run: Callable[[str], Awaitable[Record]]) -> tuple[Gate, ...]:
    """Return `dispatch`, `dispatch_batch` and `unblock`, which write to `log`; `run` runs the dispatch of an id."""

    @gate(idempotent=True)
    async def dispatch(contract: dict[str, Any], call: GateCall) -> dict[str, Any]:
        """Hand out a dispatch to a worker and wait until it is completed, blocked or waits for approval.

        The contract has title, project, repo, priority, needs_approval, objective, acceptance (list), scope (list),
        background, sources (list of {path, description}), technical_context, tasks (list), verification, and may have
        outputs (paths), gates, wards, steps, decision_needed.
        """
        (drafted,) = _draft_all([contract], call)
        return _build_result(await create_and_run(drafted, call))

    @gate(idempotent=True)
    async def dispatch_batch(contracts: list[dict[str, Any]], call: GateCall) -> list[dict[str, Any]]:
        """Hand out several dispatches at once, to workers that write different files; the results come in order."""
        drafted = _draft_all(contracts, call)
        clashes = [*map(str, overlaps(drafted)), *_list_repeated_ids(drafted)]
        if clashes:
            raise GateError("; ".join(clashes))
        results: dict[int, dict[str, Any]] = {}

        async def dispatch_one(number: int, contract: Contract) -> None:
            try:
                results[number] = _build_outcome(await create_and_run(contract, call))
            except DispatchError as error:  # the others run nevertheless
                results[number] = {"dispatch": contract.dispatch_id, "is_error": True, "error": str(error)}

        async with anyio.create_task_group() as tasks:
            for number, contract in enumerate(drafted):
                tasks.start_soon(dispatch_one, number, contract)
        return [results[number] for number in range(len(drafted))]

    @gate(idempotent=True)
    async def unblock(dispatch_id: str, note: str, call: GateCall) -> dict[str, Any]:
        """Tell a blocked worker what was done about its blocker; it continues, and is waited for again."""
        events, author = make_decision("unblock", note), call.entity_id
        await log.append_soon(dispatch_id, events, by="orchestrator", author=author, turn_id=call.turn_id, once=True)
        return _build_result(await run(dispatch_id))

    async def create_and_run(contract: Contract, call: GateCall) -> Record:
        """Create a dispatch, unless this turn has created it before a crash, and run it."""
        try:
            await log.create_soon(contract, author=call.entity_id, turn_id=call.turn_id)
        except DispatchExists:
            existing = await log.read_soon(contract.dispatch_id)
            if _list_terms(existing.contract) != _list_terms(contract):
                message = f"there is a dispatch {contract.dispatch_id} already: give yours another dispatch_id"
                raise DispatchError(message) from None
        return await run(contract.dispatch_id)

    return (dispatch, dispatch_batch, unblock)


def _draft_all(contracts: Sequence[Mapping[str, Any]], call: GateCall) -> list[Contract]:
    """Return the contracts, or refuse all of them with the mistakes of every one."""
    drafts: list[Contract] = []
    wrong: list[str] = []
    for number, fields in enumerate(contracts, 1):
        drafted_contract = draft(
            {"dispatched_at": now(), **fields, "parent_entity_id": call.entity_id, "spawned_by": call.turn_id}
        )
        if isinstance(drafted_contract, Contract):
            drafts.append(drafted_contract)
        else:
            where = f"contract {number}: " if len(contracts) > 1 else ""
            wrong += [f"- {where}{violation}" for violation in drafted_contract]
    if wrong:
        raise GateError("nothing was dispatched; mend the contract:\n" + "\n".join(wrong))
    return drafts


def _list_terms(contract: Contract) -> dict[str, Any]:
    """Return the terms of a contract without its time, which a call that is repeated after a crash has anew."""
    return {**contract.as_json(), "dispatched_at": ""}


def _list_repeated_ids(contracts: Sequence[Contract]) -> Iterator[str]:
    """Yield what is wrong with contracts that would have one log."""
    for dispatch_id, count in Counter(contract.dispatch_id for contract in contracts).items():
        if count > 1:
            yield f"{count} contracts have the dispatch_id {dispatch_id}: give each an id of its own"


def _build_result(record: Record) -> dict[str, Any]:
    """Return the result of a dispatch; a failure is an error."""
    if record.status in ("failed", "rejected"):
        raise GateError(f"dispatch {record.id} {record.status}: {record.reason}")
    return _build_outcome(record)


def _build_outcome(record: Record) -> dict[str, Any]:
    outcome: dict[str, Any] = {"dispatch": record.id, "status": record.status}
    if record.status == "queued":
        outcome["waits_for"] = record.waits_for
    last = record.entries[-1].event
    reason = last.reason if isinstance(last, StatusChanged) else record.reason
    named = (("result", record.result), ("blocker", record.blocker), ("reason", reason))
    return outcome | {name: text for name, text in named if text}


def disjoint_outputs(call: GateCall) -> Refused | None:
    """Refuse a `call_agent_batch` whose children declare overlapping `outputs`: a step before that gate.

    Outputs overlap if they are the same path, or one lies in the other.
    `wrap("call_agent_batch", pre=[disjoint_outputs])`; a request says `context: {"outputs": ["src/a.py"]}`.
    """
    writers: list[tuple[int, list[str]]] = []
    for number, request in enumerate(call.args["intents"], 1):
        context = request.get("context") if isinstance(request, Mapping) else None
        declared = context.get("outputs") if isinstance(context, Mapping) else None
        try:
            writers.append((number, [path.strip("/") for path in read_texts(declared or ())]))
        except InvalidValue as invalid:
            return Refused(f"the outputs of request {number}: {invalid.text}")
    for first, second, path in find_common_paths(writers):
        return Refused(f"requests {first} and {second} both write {path}: ask for them one after the other")
    return None

"""The gates that the entity of a dispatch gets: it writes progress and its status, and reads its contract again.

No gate changes a contract or an entry. An event that a rule refuses is an error observation with the rule's words.
All of them may run again after a crash (`idempotent`): the same event of one turn is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cantrip_actors import Gate, GateCall, Injected, gate
from cantrip_actors.dispatch import events as e
from cantrip_actors.dispatch.companion import DispatchCompanion
from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import EventRefused
from cantrip_actors.dispatch.events import ProgressKind
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.rehydrate import rehydration
from cantrip_actors.gates import GateError


def make_worker_gates(contract: Contract, writer: DispatchCompanion) -> tuple[Gate, ...]:
    """Return the gates for the entity of `contract`; they write with `writer`."""
    gates = EVERYBODYS
    if contract.steps or contract.role == "loop":
        gates += OF_STEPS
    if contract.depth is not None:
        gates += OF_PHASES
    return tuple(gate.with_(writer=writer) for gate in gates)


async def _write_event(writer: DispatchCompanion, event: e.Event, call: GateCall) -> Record:
    try:
        return await writer.write(event, turn_id=call.turn_id)
    except EventRefused as refused:
        raise GateError(refused.refusal.text) from refused


@gate(idempotent=True)
async def progress(
    kind: ProgressKind,
    text: str,
    call: GateCall,
    writer: Injected[DispatchCompanion],
    item: int | None = None,
    corrects: int | None = None,
) -> dict[str, Any]:
    """Write down progress; it is kept for good. Say what was done, found out or did not work, in whole sentences.

    A verification with `item` is the evidence for that acceptance criterion (from 1): what was run, what came out.
    `corrects` is the number of an earlier entry that was wrong.
    """
    record = await _write_event(writer, e.Progressed(kind, text, item, corrects), call)
    writer.clear_checkpoint()
    return {"entry": record.seq, "without_evidence": list(record.unproven)}


@gate(idempotent=True)
async def set_status(
    status: Literal["completed", "blocked"],
    call: GateCall,
    writer: Injected[DispatchCompanion],
    result: str = "",
    blocker: str = "",
) -> dict[str, Any]:
    """Complete the dispatch, with its result, or say what blocks it; then call done.

    Completed needs progress and evidence for every acceptance criterion; blocked needs a blocker that somebody else
    can remove.
    """
    record = await _write_event(writer, e.StatusChanged(status, result=result, blocker=blocker), call)
    return {"status": record.status}


@gate(idempotent=True)
async def read_dispatch(writer: Injected[DispatchCompanion]) -> str:
    """Read the contract and the progress so far again."""
    return rehydration(await writer.read(), newest=50)


@gate(idempotent=True)
async def decide(
    decided: str, why: str, rejected: str, implications: str, call: GateCall, writer: Injected[DispatchCompanion]
) -> dict[str, Any]:
    """Write down a decision: what, why, what was rejected and why, and what follows from it."""
    return {"entry": (await _write_event(writer, e.Decided(decided, why, rejected, implications), call)).seq}


@gate(idempotent=True)
async def wrote_file(
    path: str, description: str, call: GateCall, writer: Injected[DispatchCompanion]
) -> dict[str, Any]:
    """Write down a file that was made or changed, and what it is."""
    return {"entry": (await _write_event(writer, e.OutputWritten(path, description), call)).seq}


def _describe_step(record: Record) -> dict[str, Any]:
    plan = record.plan
    if plan is None or plan.current is None:
        return {"current_step": None}
    return {"current_step": plan.current, "purpose": plan.steps[plan.current - 1].planned.purpose}


@gate(idempotent=True)
async def step_done(step: int, output: str, call: GateCall, writer: Injected[DispatchCompanion]) -> dict[str, Any]:
    """The current step is done: what actually came out of it."""
    return _describe_step(await _write_event(writer, e.StepAdvanced(step, output), call))


@gate(idempotent=True)
async def skip_step(step: int, reason: str, call: GateCall, writer: Injected[DispatchCompanion]) -> dict[str, Any]:
    """Skip the current step, and say why it is not needed."""
    return _describe_step(await _write_event(writer, e.StepSkipped(step, reason), call))


@gate(idempotent=True)
async def back_to_step(step: int, reason: str, call: GateCall, writer: Injected[DispatchCompanion]) -> dict[str, Any]:
    """Go back to an earlier step, which has to be done again, and all after it."""
    return _describe_step(await _write_event(writer, e.StepReturned(step, reason), call))


def _describe_phase(record: Record) -> dict[str, Any]:
    return {"phase": None if record.phases is None else record.phases.phase, "status": record.status}


@gate(idempotent=True)
async def phase_passed(
    phase: str, evidence: Mapping[str, str], call: GateCall, writer: Injected[DispatchCompanion]
) -> dict[str, Any]:
    """The current phase is done: evidence for each of its criteria, by name."""
    return _describe_phase(await _write_event(writer, e.PhasePassed(phase, tuple(evidence.items())), call))


@gate(idempotent=True)
async def phase_failed(
    phase: str, unmet: list[str], call: GateCall, writer: Injected[DispatchCompanion]
) -> dict[str, Any]:
    """The current phase was tried, and these of its criteria are not met: it is to be tried again."""
    return _describe_phase(await _write_event(writer, e.PhaseFailed(phase, tuple(unmet)), call))


@gate(idempotent=True)
async def review_returned(findings: str, call: GateCall, writer: Injected[DispatchCompanion]) -> dict[str, Any]:
    """The review found something that has to be mended before it can pass."""
    return _describe_phase(await _write_event(writer, e.ReviewReturned(findings), call))


EVERYBODYS: tuple[Gate, ...] = (progress, set_status, read_dispatch, decide, wrote_file)
OF_STEPS: tuple[Gate, ...] = (step_done, skip_step, back_to_step)
OF_PHASES: tuple[Gate, ...] = (phase_passed, phase_failed, review_returned)

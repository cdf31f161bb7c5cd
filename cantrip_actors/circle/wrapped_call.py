"""Run a gate with the steps around it: from the outermost wrapper inwards, and out again.

A step that raises `Unavailable` runs again later. Any other exception of a step does not crash the entity: before the
gate it refuses the call, so that a broken check fails closed; after it the entity reads that its call ran and that the
check failed. An error stays an error, whatever a later step returns. The gate itself runs once or not at all.
`terms/wrapping.py` says how wrappers are put around gates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

import anyio

from cantrip_actors.circle.gate_call import ReportError, explain, report_failure, run_gate
from cantrip_actors.machine.actions import Run
from cantrip_actors.machine.events import Inquired
from cantrip_actors.records.records import Observation
from cantrip_actors.terms.arguments import show
from cantrip_actors.terms.errors import Unavailable
from cantrip_actors.terms.messages import as_text, make_encodable
from cantrip_actors.terms.wrapper import GateCall, Refused, Wrapper
from cantrip_actors.user_code import Failure, attempt, attempt_now


async def run_wrapped(run: Run, site: GateCall, report: ReportError | None = None) -> Observation | Inquired:
    """Run the part of a wrapped call that `run` names: the checks before the gate, the gate, or the steps after it.

    `report` is called with an exception of a step or the gate. Raises as `run_gate` does.
    """
    if run.checks:
        return await _check(run.gate.wrappers, site, report)
    seen = run.seen or await run_gate(run.gate, run.call, run.args, site, report)
    if isinstance(seen, Inquired):
        return seen
    return await _run_after(run.gate.wrappers, site, seen, report)


async def _check(wrappers: Sequence[Wrapper], site: GateCall, report: ReportError | None) -> Observation:
    """Run the steps before a call, then the condition of `ask_first`. Wrappers that already ran also see a refusal."""
    why = None
    for passed, wrapper in enumerate(wrappers):
        for step in wrapper.pre:
            refusal = _read_refusal(step, site, await _run_step(site, report, step, site))
            if refusal is not None:
                return await _run_after(
                    wrappers[:passed], site, _make_observation(site, refusal, is_error=True), report
                )
    for wrapper in wrappers:
        if wrapper.ask is not None and wrapper.ask.when is not None:
            answer = await _run_step(site, report, wrapper.ask.when, site.args)
            if not isinstance(answer, (bool, str, NoneType)):
                problem = _describe_problem(answer, "True, False, None or a text")
                return _make_observation(
                    site, f"{site.gate} was not run: the condition of ask_first failed: {problem}", is_error=True
                )
            why = ("" if answer is True else make_encodable(answer)) if answer else None
    return _make_observation(site, why)


async def _run_after(
    wrappers: Sequence[Wrapper], site: GateCall, seen: Observation, report: ReportError | None
) -> Observation:
    for wrapper in reversed(wrappers):
        for step in wrapper.post:
            seen = _apply_answer(step, site, seen, await _run_step(site, report, step, site, seen))
    return seen


def _make_observation(site: GateCall, result: Any, *, is_error: bool = False) -> Observation:
    return Observation(site.gate, None, result, is_error, site.call_id)


async def _run_step(site: GateCall, report: ReportError | None, step: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a step, or the Failure that it raised, which is also reported.

    A step that cannot reach its service is called again, after as many seconds as it says.
    """
    while True:
        answer = attempt_now(lambda: step(*arguments))
        if inspect.isawaitable(answer):
            awaitable = answer
            answer = await attempt(lambda: awaitable)  # noqa: B023  # it is called at once
        if not (isinstance(answer, Failure) and isinstance(answer.exception, Unavailable)):
            break
        await anyio.sleep(answer.exception.retry_after)
    if isinstance(answer, Failure):
        what = f"the step {_get_name(step)} around a gate raised an exception"
        report_failure(report, what, site.gate, answer.exception)
    return answer


def _read_refusal(step: Callable[..., Any], site: GateCall, answer: Any) -> str | None:
    """Return why a step before the gate refuses the call; None if it allows the call."""
    if answer is None:
        return None
    if isinstance(answer, Refused):
        return make_encodable(answer.reason)
    problem = _describe_problem(answer, "None or Refused(…)")
    return f"{site.gate} was not run: the step {_get_name(step)} before it failed: {problem}"


def _apply_answer(step: Callable[..., Any], site: GateCall, seen: Observation, answer: Any) -> Observation:
    """Return the observation as changed by the answer of a step after the gate."""
    if answer is None:
        return seen
    if isinstance(answer, str):
        return _add_remark(seen, make_encodable(answer))
    if isinstance(answer, Refused):
        text = make_encodable(answer.reason)
    else:
        problem = _describe_problem(answer, "None, a text or Refused(…)")
        text = f"{site.gate} did run, but the step {_get_name(step)} after it failed: {problem}"
    return replace(seen, result=f"{text}\nwhat {site.gate} gave: {as_text(seen.result)}", is_error=True)


def _describe_problem(answer: Any, expected: str) -> str:
    if isinstance(answer, Failure):
        return explain(answer.exception)
    return f"it returned {show(answer)}; expected {expected}"


def _add_remark(seen: Observation, remark: str) -> Observation:
    """Return the observation with a remark: appended to a text, next to any other result."""
    if isinstance(seen.result, str):
        return replace(seen, result=f"{seen.result}\n[{remark}]")
    if isinstance(seen.result, dict) and set(seen.result) == {"result", "remarks"}:
        return replace(seen, result={"result": seen.result["result"], "remarks": [*seen.result["remarks"], remark]})
    return replace(seen, result={"result": seen.result, "remarks": [remark]})


def _get_name(step: Callable[..., Any]) -> str:
    return str(getattr(step, "__name__", type(step).__name__))

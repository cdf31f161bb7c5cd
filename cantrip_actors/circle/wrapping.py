"""Steps around a gate at work: one wrapper inside the other, and out again (F-41, F-43).

What a step raises is no crash of the entity: before the gate it is a refusal, so that a broken check lets nothing
through; after it the entity is told that its call ran and that the check did not. An error stays an error, whatever a
step after it says. The gate itself runs once or not at all. What wraps what is `model/wrapping.py`'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cantrip_actors.circle.gates import Failed, guarded, run_gate, told
from cantrip_actors.model.messages import as_text
from cantrip_actors.model.state import Run
from cantrip_actors.model.turn import Observation
from cantrip_actors.model.wrapping import GateCall, Post, Pre, Refused, Wrapper

__all__ = ["run_wrapped"]


async def run_wrapped(run: Run, site: GateCall) -> Observation:
    """Run a wrapped gate, or the steps around one that is carried out elsewhere (see `Run`).

    Raises as `run_gate` does.
    """
    wrappers, given = (run.gate.wrappers, None) if run.gate.kind == "function" else _elsewhere(run)
    passed = 0
    refusal = None
    for wrapper in wrappers:
        for step in wrapper.pre:
            said = _asked(step, site)
            if said is not None and (refusal := await _refusal(step, site, said)) is not None:
                break
        if refusal is not None:
            break
        passed += 1
    if refusal is not None:
        seen = Observation(site.gate, None, refusal, True, site.call_id)
    else:
        seen = given or await run_gate(run.gate, run.call, run.args, site)
    for wrapper in reversed(wrappers[:passed]):
        for check in wrapper.post:
            said = _asked(check, site, seen)
            if said is not None:
                seen = await _looked_at(check, site, seen, said)
    return seen


def _elsewhere(run: Run) -> tuple[tuple[Wrapper, ...], Observation]:
    """The steps to take around a gate that is not run here, and what it has come to, or nothing yet."""
    wrappers = run.gate.wrappers
    if run.gate.kind == "done":
        return wrappers, _plain(run, run.gate.answer(run.args))
    if run.seen is None:
        return tuple(replace(one, post=()) for one in wrappers), _plain(run)
    return tuple(replace(one, pre=()) for one in wrappers), run.seen


def _plain(run: Run, result: Any = None) -> Observation:
    return Observation(run.gate.name, None, result, False, run.call.id)


async def _refusal(step: Pre, site: GateCall, said: Any) -> str | None:
    """Why the call is refused, by what a step before it said."""
    said = await _settled(said)
    if said is None:
        return None
    if isinstance(said, Refused):
        return said.reason
    why = said.text if isinstance(said, Failed) else f"it returned {said!r}; expected None or Refused(…)"
    return f"{site.gate} was not run: the step {_name(step)} before it failed: {why}"


async def _looked_at(step: Post, site: GateCall, seen: Observation, said: Any) -> Observation:
    """The observation after what a step after the call said."""
    said = await _settled(said)
    if said is None:
        return seen
    if isinstance(said, Refused):
        text = said.reason
    elif isinstance(said, str):
        return _remarked(seen, said)
    else:
        why = said.text if isinstance(said, Failed) else f"it returned {said!r}; expected None, a text or Refused(…)"
        text = f"{site.gate} did run, but the step {_name(step)} after it failed: {why}"
    return replace(seen, result=f"{text}\nwhat {site.gate} gave: {as_text(seen.result)}", is_error=True)


def _asked(step: Callable[..., Any], *given: Any) -> Any:
    """What a step says, or what is to be awaited for that; Failed where it raises."""
    try:
        return step(*given)
    except Exception as failure:
        return Failed(told(failure))


async def _settled(said: Any) -> Any:
    return await guarded(lambda: said) if inspect.isawaitable(said) else said


def _remarked(seen: Observation, remark: str) -> Observation:
    """A remark stands below a text, and beside any other result."""
    if isinstance(seen.result, str):
        return replace(seen, result=f"{seen.result}\n[{remark}]")
    if isinstance(seen.result, dict) and set(seen.result) == {"result", "remarks"}:
        return replace(seen, result={"result": seen.result["result"], "remarks": [*seen.result["remarks"], remark]})
    return replace(seen, result={"result": seen.result, "remarks": [remark]})


def _name(step: Callable[..., Any]) -> str:
    return str(getattr(step, "__name__", type(step).__name__))

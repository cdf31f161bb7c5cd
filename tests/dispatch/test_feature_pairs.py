"""Features that wrap gates, each with children, forks, folds, programs and restarts: one table of pairs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    EntityCrashed,
    Folding,
    GateCall,
    Observation,
    Refused,
    Runtime,
    ask_first,
    gate,
    scripted,
    wrap,
)
from cantrip_actors.dispatch import Dispatcher
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import max_depth, max_turns
from tests.dispatch.contracts import contract
from tests.dispatch.entities import FINISH, folder, kinds, say

pytestmark = pytest.mark.rule("V-34", "COMP-1", "COMP-8")

WORK = (say("note", text="x"), say("done", answer="too early"), say("done", answer="worked"))
DELEGATE = (say("call_agent", intent="work"), *WORK[1:])


@gate(idempotent=True)
async def note(text: str) -> str:
    """Write a note."""
    return text


def refuse_the_first(call: GateCall) -> Refused | None:
    """Refuse a `done` that comes too early."""
    return Refused("not yet") if call.args["answer"] == "too early" else None


def remark(call: GateCall, seen: Observation) -> str:
    return "checked"


FEATURES: dict[str, list[Any]] = {
    "steps around a gate": [wrap("note", pre=[lambda _: None], post=[remark], name="steps")],
    "steps around done": [],
    "steps around a delegation": [wrap("call_agent", pre=[lambda _: None], post=[remark], name="steps")],
    "a person decides about a gate": [ask_first("note")],
    "a person decides about a delegation": [ask_first("call_agent")],
}
"""For each feature: what the circle has besides its gates, and the steps around `done`, which every feature meets."""

ON_DEMAND = [ask_first(note), wrap("note", pre=[lambda _: None], post=[remark], name="steps")]
"""The gate of the script, if no query shows its definition: entities call it with `use_gate`."""

CIRCUMSTANCES = ["alone", "child", "fork", "fold", "program", "restart"]


def write_program(response: dict[str, Any]) -> dict[str, Any]:
    """Return the same calls as a program."""
    calls = [f"print({call['gate']}(**{call['args']!r}))" for call in response["tool_calls"]]
    return {"code": "\n".join(calls)}


def use_note(response: dict[str, Any]) -> dict[str, Any]:
    """Return the same calls as an entity makes them that has `note` on demand."""
    calls = response["tool_calls"]
    used = [{"gate": "use_gate", "args": {"name": "note", "args": call["args"]}} for call in calls]
    return {"tool_calls": [use if call["gate"] == "note" else call for use, call in zip(used, calls, strict=True)]}


def follow(script: Any, child_script: Any, *, is_folded: bool) -> Callable[[Any], dict[str, Any]]:
    """Return a policy that takes the next line of a script, also where a crash or a fold has rebuilt its context."""
    answered: dict[str, int] = {}

    def answer(context: Any) -> dict[str, Any]:
        intent = next(message.content for message in context if message.role == "user")
        answered[intent] = answered.get(intent, 0) + 1
        spoken = answered[intent] - 1 if is_folded else sum(message.role == "assistant" for message in context)
        return (child_script if intent == "work" else script)[spoken]

    return answer


def make_cantrip(feature: list[Any], circumstance: str, script: Any, wraps: Any = (), on_demand: Any = ()) -> Cantrip:
    is_folded, child_script = circumstance == "fold", WORK
    if circumstance == "program":
        script, child_script = [[write_program(response) for response in lines] for lines in (script, WORK)]
    elif on_demand:
        script, child_script = [[use_note(response) for response in lines] for lines in (script, WORK)]
    folds = Folding(trigger_after_turns=1, keep_turns=1) if is_folded else Folding()
    return Cantrip(
        scripted(follow(script, child_script, is_folded=is_folded)),
        circle=Circle(
            ["done", *([] if on_demand else [note]), "call_agent", *feature, *wraps],
            [max_turns(20), max_depth(1)],
            medium="python" if circumstance == "program" else "tools",
            on_demand=on_demand,
        ),
        folding=folds,
        name="worker",
    )


@asynccontextmanager
async def open_runtime(process: Process, cantrip: Cantrip, path: Path) -> AsyncIterator[Runtime]:
    """Open a runtime in which a person allows every request."""
    async with (
        Runtime.open(f"sqlite:{path / 'loom.db'}", cantrips=[cantrip]) as runtime,
        anyio.create_task_group() as tasks,
    ):
        process.attach(runtime)

        async def allow() -> None:
            async with runtime.requests(follow=True) as feed:
                async for request in feed:
                    await runtime.decide(request.id, "allow", by="ada")

        tasks.start_soon(allow)
        yield runtime
        tasks.cancel_scope.cancel()


def crashes_of(circumstance: str) -> list[Crash]:
    return [Crash(at) for at in range(2, 9)] if circumstance == "restart" else []


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.parametrize("feature", FEATURES)
async def test_a_feature_that_wraps_gates_holds_in_every_circumstance(
    tmp_path: Path, feature: str, circumstance: str
) -> None:
    delegates = circumstance in ("child", "restart") or "delegation" in feature
    done_steps = [wrap("done", pre=[refuse_the_first], post=[remark], name="not too early")]
    cantrip = make_cantrip(FEATURES[feature], circumstance, DELEGATE if delegates else WORK, done_steps)

    async def program(process: Process) -> Any:
        async with open_runtime(process, cantrip, tmp_path) as runtime:
            episode = await runtime.cast(cantrip, "go", key="k")
            if circumstance == "fork":
                episode = await runtime.fork(episode.thread[0].id, intent="go", cantrip=cantrip, key="f")
            entities = [runtime.loom.state(entity_id) for entity_id in runtime.loom.entities()]
            return episode.result, entities

    survived = await run_with_crashes(program, crashes_of(circumstance))
    result, states = survived.value
    assert result == "worked"
    assert set(states) == {"terminated"}


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.rule("V-22")
async def test_a_gate_on_demand_is_called_in_every_circumstance(tmp_path: Path, circumstance: str) -> None:
    delegates = circumstance in ("child", "restart")
    done_steps = [wrap("done", pre=[refuse_the_first], name="not too early")]
    cantrip = make_cantrip([], circumstance, DELEGATE if delegates else WORK, done_steps, ON_DEMAND)

    async def program(process: Process) -> Any:
        async with open_runtime(process, cantrip, tmp_path) as runtime:
            episode = await runtime.cast(cantrip, "go", key="k")
            if circumstance == "fork":
                episode = await runtime.fork(episode.thread[0].id, intent="go", cantrip=cantrip, key="f")
            turns = [turn for entity_id in runtime.loom.entities() for turn in runtime.loom.turns(entity_id)]
            return episode.result, [call for turn in turns for call in turn.gate_calls]

    survived = await run_with_crashes(program, crashes_of(circumstance))
    result, calls = survived.value
    assert result == "worked"
    noted = [call.result for call in calls if call.gate == "note"]
    assert noted == ["x\n[checked]"] * len(noted) != []
    assert not any(call.gate == "use_gate" for call in calls)


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.rule("D-009")
async def test_a_worker_under_a_contract_delegates_and_completes_in_every_circumstance(
    tmp_path: Path, circumstance: str
) -> None:
    work = contract()
    cantrip = make_cantrip([], circumstance, (say("call_agent", intent="work"), *FINISH))
    circumstance_is_fork = circumstance == "fork"

    async def program(process: Process) -> Any:
        async with open_runtime(process, cantrip, tmp_path) as runtime:
            dispatcher = Dispatcher(runtime, folder(tmp_path))
            if not dispatcher.log.ids():
                await dispatcher.dispatch(work, author="ada")
            (dispatch_id,) = dispatcher.log.ids()
            record = await dispatcher.run(dispatch_id, cantrip)
            worker, child = list(runtime.loom.entities())[:2]
            if circumstance_is_fork:
                with pytest.raises(EntityCrashed, match="may not run it"):
                    await runtime.fork(runtime.loom.turns(worker)[0].id, intent="again")
                record = await dispatcher.log.read_soon(dispatch_id)
            return record, runtime.loom.header(child), runtime.loom.turns(child)

    survived = await run_with_crashes(program, crashes_of(circumstance))
    record, header, turns = survived.value
    assert record.status == "completed"
    assert "refused" not in kinds(record)
    gates = {described["name"]: described.get("wrapped", []) for described in header.circle["gates"]}
    assert gates == {"done": [], "note": []}
    assert turns[-1].terminated

"""The controller as a pure state machine: one task, one pass, one outcome.

Two rules hold in this file. Every decision about what a run does next is here. And nothing here waits, calls an agent
or runs a tool: `execution.py` does, and feeds the results back.

Theory of operation
-------------------

`Parts` stay fixed: the schemas of the agents' inputs, the types of the tools' arguments. A `Standing` is the state of
the run. `advance(parts, standing, event)` returns the next state and one action:

    phase    event       next phase   action      when
    BEGIN    Given       PLAN         AskPlanner  the task is there
    PLAN     Planned     WORK         AskWorker   the task came back as it was, and there is such a worker
    PLAN     Planned     FAILED       Fail        the planner changed the task, or there is no such worker
    WORK     Worked      CRITIC       AskCritic   the worker has a result
    WORK     Worked      TOOL         UseTool     it asks for a tool that there is, with arguments of its type
    WORK     Worked      FAILED       Fail        no such tool, other arguments, or neither result nor request
    TOOL     ToolUsed    REWORK       AskWorker   the same input, and the tool's result
    TOOL     ToolErred   FAILED       Fail        the tool raised, or its outcome is unknown: it is not run again
    REWORK   Worked      CRITIC       AskCritic   the worker has a result
    REWORK   Worked      FAILED       Fail        it asks for a tool once more, or has neither
    CRITIC   Judged      END          End         whatever the critic said: a rejection is an outcome, no error

There is no way back: a rejection does not loop, so there are at most four calls of agents and one of a tool. Another
round is another run.

An error is a value here (`Fail` holds it); `execution.py` raises it. Attempts that did not fit a schema are not events:
the dispatcher handles them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, TypeAdapter

from cantrip_actors.agentic.dispatcher import unknown_worker
from cantrip_actors.agentic.tools import ToolFailed, UnknownTool, mistyped, unknown

__all__ = [
    "Action",
    "AskCritic",
    "AskPlanner",
    "AskWorker",
    "ControllerState",
    "End",
    "Event",
    "Fail",
    "Given",
    "Judged",
    "Parts",
    "Phase",
    "Planned",
    "Standing",
    "ToolErred",
    "ToolUsed",
    "UseTool",
    "Worked",
    "advance",
]

UTTERANCES: Final = 4
"""Calls of agents in one run, at most: planner, worker, worker again, critic."""


class ControllerState(StrEnum):
    """The states that a trace names."""

    PLAN = "PLAN"
    WORK = "WORK"
    TOOL = "TOOL"
    CRITIC = "CRITIC"
    END = "END"


class Phase(StrEnum):
    """The phase of a run: the result that it waits for, or its end."""

    BEGIN = "BEGIN"
    PLAN = "PLAN"
    WORK = "WORK"
    TOOL = "TOOL"
    REWORK = "REWORK"
    CRITIC = "CRITIC"
    END = "END"
    FAILED = "FAILED"


class Parts(NamedTuple):
    """The fixed parts of a run. `worker_inputs` by routing id, `arg_types` by tool."""

    planner_input: type[BaseModel]
    worker_inputs: Mapping[str, type[BaseModel]]
    critic_input: type[BaseModel]
    arg_types: Mapping[str, type[BaseModel]]


# -------------------------------------------------------------------------------------------------------------- events


class Given(NamedTuple):
    """A task."""

    task: Any


class Planned(NamedTuple):
    """The planner's output."""

    output: Any


class Worked(NamedTuple):
    """A worker's output."""

    output: Any


class ToolUsed(NamedTuple):
    """A tool's result, as JSON text."""

    result: str


class ToolErred(NamedTuple):
    """The error of a tool that gave no result."""

    text: str


class Judged(NamedTuple):
    """The critic's decision."""

    output: Any


Event = Given | Planned | Worked | ToolUsed | ToolErred | Judged


# ------------------------------------------------------------------------------------------------------------- actions


class AskPlanner(NamedTuple):
    """Ask the planner."""

    input: BaseModel


class AskWorker(NamedTuple):
    """Ask a worker."""

    worker_id: str
    input: BaseModel


class UseTool(NamedTuple):
    """Run a tool, once."""

    name: str
    args: BaseModel


class AskCritic(NamedTuple):
    """Ask the critic."""

    input: BaseModel


class End(NamedTuple):
    """The run is over."""

    worker_id: str
    worker_output: Any
    decision: Any


class Fail(NamedTuple):
    """The run is over, with this error."""

    error: Exception


Action = AskPlanner | AskWorker | UseTool | AskCritic | End | Fail


class Standing(NamedTuple):
    """The state of a run."""

    phase: Phase = Phase.BEGIN
    task: Any = None
    worker_id: str = ""
    worker_input: BaseModel | None = None
    worker_output: Any = None


# -------------------------------------------------------------------------------------------------------- transitions


def advance(parts: Parts, standing: Standing, event: Event) -> tuple[Standing, Action]:
    """Return the next state and the action; see the head of this file.

    Raises ValidationError if an input cannot be made (a domain whose schemas do not fit each other), and AssertionError
    for an event that cannot happen in this phase: a bug of the driver.
    """
    handler = _HANDLERS.get((standing.phase, type(event)))
    if handler is None:
        raise AssertionError(f"{type(event).__name__} cannot happen to a run in phase {standing.phase}")
    return handler(parts, standing, event)


def _given(parts: Parts, standing: Standing, event: Given) -> tuple[Standing, Action]:
    schema = parts.planner_input
    given = {"task": event.task} if "task" in schema.model_fields else {}
    return standing._replace(phase=Phase.PLAN, task=event.task), AskPlanner(schema.model_validate(given))


def _planned(parts: Parts, standing: Standing, event: Planned) -> tuple[Standing, Action]:
    if event.output.task != standing.task:
        return _failed(standing, RuntimeError(f"Planner output task did not match requested task: {event.output.task}"))
    worker_id = event.output.worker_id
    schema = parts.worker_inputs.get(worker_id)
    if schema is None:
        return _failed(standing, ValueError(unknown_worker(worker_id, parts.worker_inputs)))
    given = schema.model_validate({"task": standing.task})
    return (
        standing._replace(phase=Phase.WORK, worker_id=worker_id, worker_input=given),
        AskWorker(worker_id, given),
    )


def _worked(parts: Parts, standing: Standing, event: Worked) -> tuple[Standing, Action]:
    request = event.output.tool_request
    if request is None:
        return _judge(parts, standing, event)
    wanted = parts.arg_types.get(request.tool_name)
    if wanted is None:
        return _failed(standing, UnknownTool(unknown(request.tool_name, parts.arg_types)))
    if not isinstance(request.args, wanted):
        return _failed(standing, TypeError(mistyped(request.tool_name, wanted, request.args)))
    return standing._replace(phase=Phase.TOOL), UseTool(request.tool_name, request.args)


def _used(_: Parts, standing: Standing, event: ToolUsed) -> tuple[Standing, Action]:
    before = standing.worker_input
    assert before is not None, "a tool is asked for by a worker, which was given something"
    schema = type(before)
    wanted: Any = schema.model_fields["tool_result"].annotation
    result = TypeAdapter[Any](wanted).validate_json(event.result)
    given = schema.model_validate({**dict(before), "tool_result": result})
    return standing._replace(phase=Phase.REWORK, worker_input=given), AskWorker(standing.worker_id, given)


def _erred(_: Parts, standing: Standing, event: ToolErred) -> tuple[Standing, Action]:
    return _failed(standing, ToolFailed(event.text))


def _reworked(parts: Parts, standing: Standing, event: Worked) -> tuple[Standing, Action]:
    if event.output.tool_request is not None:
        text = "Worker requested multiple tool invocations; not supported in atomic mode."
        return _failed(standing, RuntimeError(text))
    return _judge(parts, standing, event)


def _judge(parts: Parts, standing: Standing, event: Worked) -> tuple[Standing, Action]:
    output = event.output
    if output.result is None:
        return _failed(standing, RuntimeError("WorkerOutput violated 'exactly one branch' invariant."))
    schema, task = parts.critic_input, standing.task
    given = {"plan": task, "worker_answer": output.result}
    for name in schema.model_fields.keys() - given.keys():
        if name == "worker_id":
            given[name] = standing.worker_id
        elif hasattr(task, name):
            given[name] = getattr(task, name)
    return standing._replace(phase=Phase.CRITIC, worker_output=output), AskCritic(schema.model_validate(given))


def _judged(_: Parts, standing: Standing, event: Judged) -> tuple[Standing, Action]:
    end = End(standing.worker_id, standing.worker_output, event.output)
    return standing._replace(phase=Phase.END), end


def _failed(standing: Standing, error: Exception) -> tuple[Standing, Action]:
    return standing._replace(phase=Phase.FAILED), Fail(error)


_HANDLERS: Mapping[tuple[Phase, type], Callable[[Parts, Standing, Any], tuple[Standing, Action]]] = {
    (Phase.BEGIN, Given): _given,
    (Phase.PLAN, Planned): _planned,
    (Phase.WORK, Worked): _worked,
    (Phase.TOOL, ToolUsed): _used,
    (Phase.TOOL, ToolErred): _erred,
    (Phase.REWORK, Worked): _reworked,
    (Phase.CRITIC, Judged): _judged,
}

"""The steps of a run: one task, one pass, one outcome.

Every decision about a run's next step is in `one_pass`, a generator. It yields actions, is sent their results, and
returns how the run ends. It calls no agent and runs no tool: `execution.py` does. The same results, sent again after a
crash, lead to the same step.

    step      yields         ends the run with an error if
    --------  -------------  ---------------------------------------------------------------------------------
    PLAN      Ask planner    the planner changed the task, or names a worker that does not exist
    WORK      Ask worker     it asks for an unknown tool, or with other arguments, or has no result and no request
    TOOL      UseTool        the tool raises, or its outcome is unknown: it is not run again
    WORK      Ask worker     it asks for a tool once more, or has no result; its input has the tool's result
    CRITIC    Ask critic     never: a rejection is an outcome, not an error
    END       returns End

The second and third steps are left out if the worker has a result at once. No step is repeated: a rejection does not
loop, so there are at most four calls of agents and one of a tool. Another round is another run.

What `one_pass` raises is a value for its caller (`advance` returns it as a `Fail`), so that the step before it is
recorded. Attempts that did not fit a schema do not appear here: the dispatcher handles them.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, TypeAdapter

from cantrip_actors.agentic.agent_dispatcher import AgentDispatcher
from cantrip_actors.agentic.tools import ToolRegistry

UTTERANCES: Final = 4
"""The most calls of agents in one run: planner, worker, worker again, critic."""


class ControllerState(StrEnum):
    """The states that a trace names."""

    PLAN = "PLAN"
    WORK = "WORK"
    TOOL = "TOOL"
    CRITIC = "CRITIC"
    END = "END"


class AskAgent(NamedTuple):
    """Ask the agent of a state, whose answer has the schema `output`. `worker_id` is empty for planner and critic."""

    state: ControllerState
    input: BaseModel
    output: type[BaseModel]
    worker_id: str = ""


class UseTool(NamedTuple):
    """Run a tool, once. Its result is sent as JSON text."""

    name: str
    args: BaseModel


class End(NamedTuple):
    """The run is over."""

    task: Any
    worker_id: str
    worker_output: Any
    decision: Any


class Fail(NamedTuple):
    """The run is over, with this error."""

    error: Exception


ControllerAction = AskAgent | UseTool | End | Fail
ControllerRun = Generator[AskAgent | UseTool, Any, End]


def advance(run: ControllerRun, result: Any = None) -> ControllerAction:
    """Send the result of the last action to a run, None to a new one, and return its next action."""
    try:
        return run.send(result)
    except StopIteration as stop:
        end: End = stop.value
        return end
    except (RuntimeError, TypeError, ValueError) as error:
        return Fail(error)


def one_pass(dispatcher: AgentDispatcher[Any, Any, Any], tools: ToolRegistry, task: Any) -> ControllerRun:
    """Take one task through the steps in this file's docstring; only schemas of `dispatcher` and `tools` are read.

    Raises ValueError for an unknown worker, UnknownTool and TypeError as `ToolRegistry.call`, RuntimeError for another
    broken rule, ValidationError if an input cannot be made because the schemas of the domain do not fit each other.
    """
    planner, critic = dispatcher.planner, dispatcher.critic
    fields = {"task": task} if "task" in planner.input_schema.model_fields else {}
    planned = yield AskAgent(
        ControllerState.PLAN, planner.input_schema.model_validate(fields, by_name=True), planner.output_schema
    )
    if planned.task != task:
        raise RuntimeError(f"Planner output task did not match requested task: {planned.task}")
    worker_id = planned.worker_id
    worker = dispatcher.find_worker(worker_id)
    to_do = worker.input_schema.model_validate({"task": task}, by_name=True)
    work = AskAgent(ControllerState.WORK, to_do, worker.output_schema, worker_id)
    worked = yield work
    if (request := worked.tool_request) is not None:
        tools.check(request.tool_name, request.args)
        used = yield UseTool(request.tool_name, request.args)
        worked = yield work._replace(input=_add_tool_result(work.input, used))
        if worked.tool_request is not None:
            raise RuntimeError("Worker requested multiple tool invocations; not supported in atomic mode.")
    if worked.result is None:
        raise RuntimeError("WorkerOutput violated 'exactly one branch' invariant.")

    critic_input = _build_critic_input(critic.input_schema, task, worker_id, worked.result)
    decision = yield AskAgent(ControllerState.CRITIC, critic_input, critic.output_schema)
    return End(task, worker_id, worked, decision)


def _add_tool_result(worker_input: BaseModel, result: str) -> BaseModel:
    """Return a worker's input with the result of its tool, which is JSON text."""
    schema = type(worker_input)
    wanted: Any = schema.model_fields["tool_result"].annotation
    tool_result = TypeAdapter[Any](wanted).validate_json(result, by_name=True)
    return schema.model_validate({**dict(worker_input), "tool_result": tool_result}, by_name=True)


def _build_critic_input(schema: type[BaseModel], task: Any, worker_id: str, answer: Any) -> BaseModel:
    fields = {"plan": task, "worker_answer": answer}
    for name in schema.model_fields:
        if name in fields:
            continue
        if name == "worker_id":
            fields[name] = worker_id
        elif hasattr(task, name):
            fields[name] = getattr(task, name)
    return schema.model_validate(fields, by_name=True)

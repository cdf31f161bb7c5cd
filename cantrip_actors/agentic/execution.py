"""Run the controller as a crystal, so that a run is an entity like any other.

`controller.py` decides; this file calls the agents. A `Controller` is an object with `invoke`, without state between
invocations: from its messages it reads the task and the steps so far, feeds them to the machine, makes the next call,
and reports the result. So

- each call of an agent is one utterance, and is in the loom before anything else happens;
- a tool request is a gate call of that utterance, which runs `ToolRegistry.call`;
- the end is `done` with the response; a rejection is an end like any other;
- after a crash the run resumes from the loom: no agent is asked again, no tool is run again;
- attempts that did not fit their schema stay inside the dispatcher, and leave nothing (D-006).

An error ends the entity as `failed`, with `ControllerFailed`. It is neither a crash, which would be restarted, nor a
ProviderError, which would be retried. A parent that started the run by `call_agent` gets it as an error observation and
continues. A direct call of the controller raises the original exception, for example an agent's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    CrystalError,
    Episode,
    InvalidIntent,
    Message,
    Response,
    Runtime,
    ToolCall,
    ToolDefinition,
)
from cantrip_actors.agentic.agent_dispatcher import AgentDispatcher, join_in_one_line
from cantrip_actors.agentic.agents import ASK
from cantrip_actors.agentic.controller import (
    UTTERANCES,
    AskAgent,
    ControllerAction,
    ControllerState,
    End,
    Fail,
    UseTool,
    advance,
    one_pass,
)
from cantrip_actors.agentic.schemas import AgentCallResult, ControllerRequest, ControllerResponse
from cantrip_actors.agentic.tools import RAISED, ToolFailed, ToolRegistry, as_json, as_json_text
from cantrip_actors.agentic.trace import read, read_entry, run_of, trace_of, utterance
from cantrip_actors.wards import max_turns

_CALL: Final = Call(require_done_tool=True)


class ControllerFailed(CrystalError):
    """A run ended with an error; `__cause__` is that error. Its steps up to there are in the loom."""


class Controller:
    """Runs one task in one pass: `await Controller(dispatcher=…, tool_registry=…)(ControllerRequest(…))`.

    It is a crystal too: `runtime.cast(controller.cantrip(), intent)` runs it as an entity, and a parent whose cantrip
    has it among its `crystals`, and the tools among its gates, starts runs by `call_agent`. The intent is the task as
    JSON; `reads`, if given, parses other texts. Any number of runs may share one controller.
    """

    call: Final = _CALL
    """The call of the entities that it drives, also below a parent (see `carve`): only `done` ends them."""

    is_workflow: Final = True
    """An entity with this crystal is a workflow to those who observe it: its code, and no model, says what is next."""

    def __init__(
        self,
        *,
        dispatcher: AgentDispatcher[Any, Any, Any],
        tool_registry: ToolRegistry,
        name: str = "controller",
        reads: Callable[[str], Any] | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.tool_registry = tool_registry
        self.name = name
        self._reads = reads

    async def __call__(self, request: ControllerRequest, *, runtime: Runtime | None = None) -> ControllerResponse:
        """Run the task of `request` as an entity of `runtime`, or of one on `memory:` that ends with it.

        Raises the error that ended the run, in its own type: AgentExhausted, an agent's or a tool's own exception,
        ValueError for an unknown worker, TypeError for arguments of another tool, RuntimeError for any other broken
        rule. A note on it names the entity. Cancelling the wait stops the entity.
        """
        if runtime is None:
            async with Runtime.open("memory:") as own:
                return await self(request, runtime=own)
        raised: list[Exception] = []
        variable = RAISED.set(raised)  # for the tools of this run
        try:
            episode = await self.cast(runtime, as_json_text(request.domain.task))
        except ControllerFailed as failed:
            error, where = failed.__cause__, failed.entity_id
        else:
            return response_of(episode)
        finally:
            RAISED.reset(variable)
        if isinstance(error, ToolFailed) and raised:
            error = raised[-1]
        assert error is not None, "ControllerFailed is raised from the cause"
        error.add_note(f"entity {where} ran it: its steps up to here are in the loom")
        raise error

    async def cast(self, runtime: Runtime, intent: str) -> Episode:
        """Run a task as an entity of `runtime`, which asks the agents' crystals. Raises as `Runtime.cast`."""
        variable = ASK.set(runtime.ask)
        try:
            return await runtime.cast(self.cantrip(), intent)
        finally:
            ASK.reset(variable)

    def cantrip(self) -> Cantrip:
        """Return the cantrip of a run."""
        circle = Circle(["done", *self.tool_registry.gates()], [max_turns(UTTERANCES)])
        return Cantrip(self, call=_CALL, circle=circle, name=self.name)

    async def invoke(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),  # noqa: ARG002  # a crystal's face
        tool_choice: str | None = None,  # noqa: ARG002
    ) -> Response:
        """Make the next step of the run in the messages. Raises ControllerFailed from the error that ends the run."""
        try:
            return await self._step(messages)
        except Exception as error:
            raise ControllerFailed(f"{type(error).__name__}: {error}") from error

    async def _step(self, messages: Sequence[Message]) -> Response:
        task, steps = run_of(messages)
        run = one_pass(self.dispatcher, self.tool_registry, self._task(task))
        action = advance(run)
        for step in steps:
            action = advance(run, _read_result(action, step))
        match action:
            case AskAgent():
                result = await self._ask(action)
                calls = _list_calls(advance(run, result.output))
                return Response(utterance(action.state, result, action.input), calls, result.usage)
            case Fail(error):
                raise error
            case UseTool(name):
                raise ToolFailed(f"tool {name} was asked for and not run")
            case End():
                raise CrystalError("a run that has ended is asked for more: `done` was refused, or is not a gate here")

    async def _ask(self, action: AskAgent) -> AgentCallResult[Any]:
        match action.state:
            case ControllerState.PLAN:
                return await self.dispatcher.plan(action.input)
            case ControllerState.CRITIC:
                return await self.dispatcher.critique(action.input)
            case _:
                return await self.dispatcher.work(action.worker_id, action.input)

    def _task(self, text: str) -> Any:
        """Return the task, in the type that the planner must return."""
        planner = self.dispatcher.planner
        schemas = (planner.output_schema, planner.input_schema)
        field = next((schema.model_fields["task"] for schema in schemas if "task" in schema.model_fields), None)
        wanted: Any = Any if field is None else field.annotation
        try:
            return read(TypeAdapter(wanted), text)
        except ValueError as error:
            if self._reads is not None:
                return self._reads(text)
            shown = text if len(text) <= 200 else f"{text[:199]}…"
            raise InvalidIntent(f"expected the task as JSON, got {shown!r}: {join_in_one_line(error)}") from error


def _read_result(action: ControllerAction, step: Message) -> Any:
    """Return the result of the step that `action` led to. Raises ToolFailed for a tool without one."""
    text = step.content or ""
    match action, step.role:
        case AskAgent(), "assistant" if (entry := read_entry(text))["state"] == action.state:
            return action.output.model_validate_json(json.dumps(entry["output"]), by_name=True)
        case UseTool(), "tool":
            if step.is_error:
                raise ToolFailed(text)
            return text
    raise CrystalError(
        f"the steps of this run are not those of a controller: {text[:200]} after {type(action).__name__}"
    )


def _list_calls(follows: ControllerAction) -> tuple[ToolCall, ...]:
    """Return the gate calls of an utterance, by the action that follows it."""
    if isinstance(follows, UseTool):
        return (ToolCall("", follows.name, as_json(follows.args, by_alias=True)),)
    if isinstance(follows, End):
        response = {
            "task": as_json(follows.task),
            "worker_id": follows.worker_id,
            "worker_output": as_json(follows.worker_output),
            "critic_decision": as_json(follows.decision),
            "trace": None,  # the turns are the trace
        }
        return (ToolCall("", "done", {"answer": response}),)
    return ()


def response_of(episode: Episode) -> ControllerResponse:
    """Return the response of a run, with the trace of its turns.

    Raises RuntimeError for a run that was stopped from outside.
    """
    if not episode.terminated:
        raise RuntimeError(f"the run was ended from outside ({episode.reason}): {episode.summary}")
    return ControllerResponse.model_validate({**episode.result, "trace": trace_of(episode.thread)})

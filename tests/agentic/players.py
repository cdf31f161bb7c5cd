"""Agents for tests: they return scripted answers and record their inputs."""

import inspect
import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from cantrip_actors.agentic import ToolRegistry
from cantrip_demos.arithmetic import (
    ArithmeticCriticInput,
    ArithmeticDecision,
    ArithmeticDispatcher,
    ArithmeticPlannerInput,
    ArithmeticPlannerOutput,
    ArithmeticTask,
    ArithmeticWorkerInput,
    ArithmeticWorkerOutput,
    make_agent_dispatcher,
    make_tool_registry,
)

ADD = ArithmeticTask(op="ADD", a=1, b=2)
MUL = ArithmeticTask(op="MUL", a=12, b=7)

SCHEMAS = {
    "planner": (ArithmeticPlannerInput, ArithmeticPlannerOutput),
    "worker": (ArithmeticWorkerInput, ArithmeticWorkerOutput),
    "critic": (ArithmeticCriticInput, ArithmeticDecision),
}


class Player:
    """Says its answers in order, the last again and again. Exceptions are raised, functions called with the input."""

    def __init__(
        self, role: str, *answers: Any, schemas: tuple[type[BaseModel], type[BaseModel]] | None = None
    ) -> None:
        self.id = self.name = role
        self.input_schema, self.output_schema = schemas or SCHEMAS[role]
        self.given: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._answers = answers

    async def __call__(self, input_json: str) -> str:
        self.raw.append(input_json)
        self.given.append(json.loads(input_json))
        answer = self._answers[min(len(self.given), len(self._answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Callable):
            answer = answer(self.given[-1])
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, BaseModel):
            return answer.model_dump_json()
        return answer if isinstance(answer, str) or answer is None else json.dumps(answer)


def route(worker_id: str) -> Callable[[dict[str, Any]], Any]:
    """A planner that sends everything to one worker."""
    return lambda given: {"task": given["task"], "worker_id": worker_id}


def value(number: Any) -> dict[str, Any]:
    """A worker's result."""
    return {"result": {"value": number}}


def wish(tool: str, **args: Any) -> dict[str, Any]:
    """A worker's request for a tool."""
    return {"tool_request": {"tool_name": tool, "args": args}}


ACCEPT = {"decision": "ACCEPT"}
REJECT = {"decision": "REJECT", "feedback": {"kind": "OTHER", "message": "no"}}


def cast_of(
    planner: Any = None, worker: Any = None, critic: Any = None, max_retries: int = 3
) -> tuple[ArithmeticDispatcher, dict[str, Player]]:
    """A dispatcher of the Arithmetic domain. Roles with a script, one answer or a list of them, have a player."""
    players = {
        role: Player(role, *(script if isinstance(script, list) else [script]))
        for role, script in (("planner", planner), ("worker", worker), ("critic", critic))
        if script is not None
    }
    return make_agent_dispatcher(max_retries=max_retries, **players), players


class Counted:
    """The arithmetic tools, with every run of one noted."""

    def __init__(self, **instead: Callable[[Any], Any]) -> None:
        self.ran: list[tuple[str, Any]] = []
        self.registry = ToolRegistry()
        known = make_tool_registry()
        for name in known:
            description, function, arg_type = known.get(name)
            self.registry.register(
                name, description, self._noting(name, instead.get(name, function)), arg_type, blocking=False
            )

    def _noting(self, name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(args: Any) -> Any:
            self.ran.append((name, args))
            return function(args)

        return noted


def states(trace: Any) -> list[str]:
    """The states of a trace."""
    return [entry["state"] for entry in trace]

"""The Arithmetic domain: two workers, three tools, and a critic that checks route and result (seed 001).

    task = ArithmeticTask(op="MUL", a=12, b=7)
    response = await run(task, dispatcher=make_agent_dispatcher(), tool_registry=make_tool_registry())

It is the reference for domains on this core: types (`tasks.py`), roles (`roles.py`), and what stands here, which binds
them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from cantrip_actors import Crystal, Runtime
from cantrip_actors.agentic.agents import AgentProtocol, CrystalAgent, FunctionAgent
from cantrip_actors.agentic.arithmetic.expression import parse
from cantrip_actors.agentic.arithmetic.roles import CRITIC, PLANNER, WORKER, add, critique, mul, plan, sub, worker
from cantrip_actors.agentic.arithmetic.tasks import (
    WORKERS,
    AddArgs,
    ArithmeticCriticInput,
    ArithmeticCriticOutput,
    ArithmeticDecision,
    ArithmeticDispatcher,
    ArithmeticPlannerInput,
    ArithmeticPlannerOutput,
    ArithmeticResult,
    ArithmeticTask,
    ArithmeticWorkerInput,
    ArithmeticWorkerOutput,
    MulArgs,
    SubArgs,
)
from cantrip_actors.agentic.execution import Controller
from cantrip_actors.agentic.schemas import ControllerDomainInput, ControllerRequest, ControllerResponse
from cantrip_actors.agentic.tools import ToolRegistry

__all__ = [
    "WORKERS",
    "AddArgs",
    "ArithmeticCriticInput",
    "ArithmeticCriticOutput",
    "ArithmeticDecision",
    "ArithmeticDispatcher",
    "ArithmeticPlannerInput",
    "ArithmeticPlannerOutput",
    "ArithmeticResult",
    "ArithmeticTask",
    "ArithmeticWorkerInput",
    "ArithmeticWorkerOutput",
    "MulArgs",
    "SubArgs",
    "critique",
    "make_agent_dispatcher",
    "make_controller",
    "make_tool_registry",
    "parse",
    "run",
]

Player = Crystal | str | AgentProtocol
"""Who may play a role: a crystal, or an agent."""


async def run(
    task: ArithmeticTask,
    *,
    dispatcher: ArithmeticDispatcher,
    tool_registry: ToolRegistry,
    runtime: Runtime | None = None,
) -> ControllerResponse:
    """Execute one task, in one pass, and return what came of it (A-43: all of it is the controller's).

    A rejection is a response like any other. The run is an entity of `runtime`, with its steps in that loom; without
    one it gets a runtime on `memory:` of its own. Raises as `Controller` does.
    """
    controller = Controller(dispatcher=dispatcher, tool_registry=tool_registry)
    return await controller(ControllerRequest(domain=ControllerDomainInput(task=task)), runtime=runtime)


def make_agent_dispatcher(
    model: Crystal | str | None = None,
    max_retries: int = 3,
    *,
    planner: Player | None = None,
    worker: Player | None = None,
    critic: Player | None = None,
) -> ArithmeticDispatcher:
    """A dispatcher whose roles are played by plain functions or, given a `model`, by that crystal.

    `planner`, `worker` (both of them) and `critic` say who else plays that role alone. `max_retries` is the total
    number of attempts that each call has (A-32).
    """
    return ArithmeticDispatcher(
        planner=_planner(planner or model),
        workers={worker_id: _worker(worker_id, worker or model) for worker_id in WORKERS},
        critic=_critic(critic or model),
        max_retries=max_retries,
    )


def make_tool_registry() -> ToolRegistry:
    """A registry with `add`, `sub` and `mul` (A-14)."""
    registry = ToolRegistry()
    tools: tuple[tuple[str, Callable[[Any], ArithmeticResult], type[BaseModel]], ...] = (
        ("add", add, AddArgs),
        ("sub", sub, SubArgs),
        ("mul", mul, MulArgs),
    )
    for name, function, arg_type in tools:
        registry.register(name, function.__doc__ or name, function, arg_type, blocking=False)
    return registry


def make_controller(
    model: Crystal | str | None = None, max_retries: int = 3, *, dispatcher: ArithmeticDispatcher | None = None
) -> Controller:
    """A controller for this domain, to be cast or to be called by a parent: it reads tasks as JSON and as `12 * 7`."""
    made = dispatcher or make_agent_dispatcher(model, max_retries)
    return Controller(dispatcher=made, tool_registry=make_tool_registry(), name="arithmetic", reads=parse)


def _planner(player: Player | None) -> AgentProtocol:
    if player is None:
        return FunctionAgent(plan, id="arithmetic-planner")
    return _played(player, PLANNER, "arithmetic-planner", ArithmeticPlannerInput, ArithmeticPlannerOutput)


def _worker(worker_id: str, player: Player | None) -> AgentProtocol:
    if player is None:
        return FunctionAgent(worker(worker_id), worker_id, worker_id, ArithmeticWorkerInput, ArithmeticWorkerOutput)
    told = WORKER.format(worker_id=worker_id, ops=" and ".join(sorted(WORKERS[worker_id])))
    return _played(player, told, worker_id, ArithmeticWorkerInput, ArithmeticWorkerOutput)


def _critic(player: Player | None) -> AgentProtocol:
    if player is None:
        return FunctionAgent(critique, id="arithmetic-critic")
    return _played(player, CRITIC, "arithmetic-critic", ArithmeticCriticInput, ArithmeticDecision)


def _played(
    player: Player, told: str, id: str, input_schema: type[BaseModel], output_schema: type[BaseModel]
) -> AgentProtocol:
    if isinstance(player, (str, Crystal)):
        return CrystalAgent(player, told, id, input_schema, output_schema)
    return player

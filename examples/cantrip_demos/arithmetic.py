"""The Arithmetic domain: two workers, three tools, and a critic that checks route and result.

    task = ArithmeticTask(op="MUL", a=12, b=7)
    response = await run(task, dispatcher=make_agent_dispatcher(), tool_registry=make_tool_registry())

An example of a domain for `cantrip_actors.agentic`. Each role is a deterministic function without state, and has
instructions for a crystal that plays it; the critic, or a schema, finds the mistakes of a crystal. Numbers are whole
numbers of any size, and nothing else becomes one: `"1"`, `1.0` and `true` are schema errors. Everything is frozen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, StrictInt, model_validator

from cantrip_actors import Crystal, InvalidIntent, Runtime
from cantrip_actors.agentic import (
    AgentDispatcher,
    Controller,
    ControllerDomainInput,
    ControllerRequest,
    ControllerResponse,
    Decision,
    Feedback,
    FrozenModel,
    PlannerOutput,
    Player,
    ToolRegistry,
    ToolRequest,
    WorkerInput,
    WorkerOutput,
    make_agent,
)

__all__ = [
    "DIGITS",
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

Op = Literal["ADD", "SUB", "MUL"]
WorkerId = Literal["worker_addsub", "worker_mul"]

WORKERS: Final[Mapping[str, frozenset[str]]] = {
    "worker_addsub": frozenset({"ADD", "SUB"}),
    "worker_mul": frozenset({"MUL"}),
}
"""The operations of each worker: exactly two workers, with nothing in common."""

_COMPUTE: Final[Mapping[str, Callable[[int, int], int]]] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
}


# ----------------------------------------------------------------------------------------------------------- the types


class ArithmeticTask(FrozenModel):
    """One operation on two whole numbers."""

    op: Op
    a: StrictInt
    b: StrictInt


class ArithmeticResult(FrozenModel):
    """The result of an operation."""

    value: StrictInt


class _Args(FrozenModel):
    model_config = ConfigDict(extra="forbid")

    a: StrictInt
    b: StrictInt


class AddArgs(_Args):
    """The arguments of `add`."""


class SubArgs(_Args):
    """The arguments of `sub`."""


class MulArgs(_Args):
    """The arguments of `mul`."""


_TOOLS: Final[Mapping[str, type[AddArgs | SubArgs | MulArgs]]] = {"add": AddArgs, "sub": SubArgs, "mul": MulArgs}
"""The tools, each with a type of arguments that no other takes."""


class ArithmeticPlannerInput(FrozenModel):
    """The task, and fields added by a caller."""

    model_config = ConfigDict(extra="allow")

    task: ArithmeticTask


class ArithmeticPlannerOutput(PlannerOutput[ArithmeticTask]):
    """The unchanged task, and one of the two workers: any other id is a schema error."""

    worker_id: WorkerId


ArithmeticWorkerInput = WorkerInput[ArithmeticTask, ArithmeticResult]


class ArithmeticWorkerOutput(WorkerOutput[ArithmeticResult]):
    """A result, or a tool request with arguments of that tool's type.

    A worker has no other way to report that it cannot compute: the seed's "error signal" is undefined, so only
    `tool_request` is legal.
    """

    tool_args: ClassVar[Mapping[str, type[BaseModel]]] = _TOOLS


class ArithmeticCriticInput(FrozenModel):
    """The task, who worked on it, and the answer, if there is one."""

    model_config = ConfigDict(extra="allow")

    plan: ArithmeticTask
    worker_id: str
    worker_answer: ArithmeticResult | None


class ArithmeticDecision(Decision):
    """A decision whose ACCEPT has no feedback."""

    @model_validator(mode="after")
    def _check_no_feedback(self) -> Self:
        if self.decision == "ACCEPT" and self.feedback is not None:
            raise ValueError("expected no feedback with an ACCEPT")
        return self


ArithmeticCriticOutput = ArithmeticDecision


class ArithmeticDispatcher(AgentDispatcher[ArithmeticTask, ArithmeticResult, Decision]):
    """The dispatcher of this domain; it adds nothing."""


# ----------------------------------------------------------------------------------------------------------- the roles


def plan(planner_input: ArithmeticPlannerInput) -> ArithmeticPlannerOutput:
    """Choose the worker by the operation, and leave the task unchanged."""
    worker_id = next(name for name, ops in WORKERS.items() if planner_input.task.op in ops)
    return ArithmeticPlannerOutput(task=planner_input.task, worker_id=cast("WorkerId", worker_id))


def make_worker(worker_id: str) -> Callable[[ArithmeticWorkerInput], ArithmeticWorkerOutput]:
    """Return a worker that computes its own operations, and asks for a tool for the others."""

    def work(worker_input: ArithmeticWorkerInput) -> ArithmeticWorkerOutput:
        task, tool = worker_input.task, worker_input.task.op.lower()
        if task.op in WORKERS[worker_id]:
            return ArithmeticWorkerOutput(result=ArithmeticResult(value=_COMPUTE[task.op](task.a, task.b)))
        if worker_input.tool_result is not None:
            return ArithmeticWorkerOutput(result=worker_input.tool_result)
        return ArithmeticWorkerOutput(tool_request=ToolRequest(tool_name=tool, args=_TOOLS[tool](a=task.a, b=task.b)))

    return work


def critique(critic_input: ArithmeticCriticInput) -> ArithmeticDecision:
    """Check the route, then that there is an answer, then the answer; report the first fault."""
    task, answer = critic_input.plan, critic_input.worker_answer
    if task.op not in WORKERS.get(critic_input.worker_id, ()):
        return _reject("ROUTING_ERROR", f"{critic_input.worker_id} does not do {task.op}")
    if answer is None:
        return _reject("EMPTY_RESULT", "there is no answer")
    expected = _COMPUTE[task.op](task.a, task.b)
    if answer.value != expected:
        return _reject("MATH_ERROR", f"{task.op} {task.a} {task.b} is {expected}, not {answer.value}")
    return ArithmeticDecision(decision="ACCEPT")


def _reject(kind: str, message: str) -> ArithmeticDecision:
    return ArithmeticDecision(decision="REJECT", feedback=Feedback(kind=kind, message=message))


PLANNER: Final = """\
You are the planner of an arithmetic system. Choose the worker by `task.op`: worker_addsub for ADD and SUB, worker_mul
for MUL. Repeat the task exactly as it is given. Do not compute anything.
Example: {"task":{"op":"ADD","a":2,"b":3}} -> {"task":{"op":"ADD","a":2,"b":3},"worker_id":"worker_addsub"}"""

WORKER: Final = """\
You are {worker_id}, a worker of an arithmetic system. You compute {ops} and nothing else.
If `task.op` is one of yours, compute it: ADD is a + b, SUB is a - b, MUL is a * b. Answer {{"result":{{"value":N}}}}.
If it is not and `tool_result` is null, ask for the tool of that operation (add, sub or mul):
{{"tool_request":{{"tool_name":"mul","args":{{"a":N,"b":N}}}}}}.
If `tool_result` is not null, repeat it as your result: {{"result":{{"value":N}}}}.
Never answer with both a result and a tool_request."""

CRITIC: Final = """\
You are the critic of an arithmetic system. Check in this order and report the first fault:
1. worker_addsub may do ADD and SUB only, worker_mul may do MUL only; else reject with the kind ROUTING_ERROR.
2. `worker_answer` must not be null; else reject with the kind EMPTY_RESULT.
3. `worker_answer.value` must be what `plan` comes to; else reject with the kind MATH_ERROR.
Accept with {"decision":"ACCEPT","feedback":null}. Reject with
{"decision":"REJECT","feedback":{"kind":"…","message":"…"}}."""


# --------------------------------------------------------------------------------------------------------- the domain


async def run(
    task: ArithmeticTask,
    *,
    dispatcher: ArithmeticDispatcher,
    tool_registry: ToolRegistry,
    runtime: Runtime | None = None,
) -> ControllerResponse:
    """Execute one task, in one pass, and return the controller's response; a rejection is one like any other.

    The run is an entity of `runtime`, with its steps in that loom, or of a runtime on `memory:` that ends with it.
    Raises as `Controller` does.
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
    """Return a dispatcher whose roles are played by functions or, given a `model`, by that crystal.

    `planner`, `worker` (both workers) and `critic` replace the player of one role. `max_retries` is the total number of
    attempts that each call has.
    """
    return ArithmeticDispatcher(
        planner=make_agent(
            planner or model,
            plan,
            PLANNER,
            "arithmetic-planner",
            ArithmeticPlannerInput,
            ArithmeticPlannerOutput,
        ),
        workers={
            worker_id: make_agent(
                worker or model,
                make_worker(worker_id),
                WORKER.format(worker_id=worker_id, ops=" and ".join(sorted(ops))),
                worker_id,
                ArithmeticWorkerInput,
                ArithmeticWorkerOutput,
            )
            for worker_id, ops in WORKERS.items()
        },
        critic=make_agent(
            critic or model, critique, CRITIC, "arithmetic-critic", ArithmeticCriticInput, ArithmeticDecision
        ),
        max_retries=max_retries,
    )


def make_tool_registry() -> ToolRegistry:
    """Return a registry with `add`, `sub` and `mul`."""
    registry = ToolRegistry()
    descriptions = ("Add two whole numbers.", "Subtract b from a.", "Multiply two whole numbers.")
    for (name, arg_type), description in zip(_TOOLS.items(), descriptions, strict=True):
        compute = _COMPUTE[name.upper()]

        def use(args: Any, compute: Callable[[int, int], int] = compute) -> ArithmeticResult:
            return ArithmeticResult(value=compute(args.a, args.b))

        registry.register(name, description, use, arg_type, blocking=False)
    return registry


def make_controller(
    model: Crystal | str | None = None, max_retries: int = 3, *, dispatcher: ArithmeticDispatcher | None = None
) -> Controller:
    """Return a controller to cast, or for a parent to call: it reads tasks as JSON and as `12 * 7`."""
    agents = dispatcher or make_agent_dispatcher(model, max_retries)
    return Controller(dispatcher=agents, tool_registry=make_tool_registry(), name="arithmetic", reads=parse)


# ------------------------------------------------------------------------------------------------------- expressions

DIGITS: Final = 2_000
"""Decimal digits that a number may have: a product has twice as many, and Python writes 4,300 and no more."""

_OPS: Final[dict[str, Op]] = {"+": "ADD", "-": "SUB", "−": "SUB", "*": "MUL", "x": "MUL", "X": "MUL", "×": "MUL"}
_TERM: Final = r"([+\-−]?\s*\d[\d_]*)"
_EXPRESSION: Final = re.compile(rf"\s*{_TERM}\s*([+\-−*xX×])\s*{_TERM}\s*", re.ASCII)


def parse(text: str) -> ArithmeticTask:
    """Return the task of an expression such as `12 * 7`, `-3 - -4` or `6 x 7`.

    Raises InvalidIntent for any other text, and for a number that is too long.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        shown = text if len(text) <= 60 else f"{text[:59]}…"
        raise InvalidIntent(f'expected two whole numbers with + - * x or × between them, as in "12 * 7", got "{shown}"')
    a, op, b = match.groups()
    return ArithmeticTask(op=_OPS[op], a=_read_number(a), b=_read_number(b))


def _read_number(text: str) -> int:
    digits = re.sub(r"[\s_]", "", text).replace("−", "-")
    if len(digits.lstrip("+-")) > DIGITS:
        raise InvalidIntent(f"expected numbers of at most {DIGITS:,} digits, got one of {len(digits.lstrip('+-')):,}")
    return int(digits)

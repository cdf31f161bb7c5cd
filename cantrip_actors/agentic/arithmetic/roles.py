"""Who plays which role in Arithmetic: planner, two workers and the critic as plain functions, and as instructions.

The functions are the domain: deterministic, without state. The instructions say the same in words, for crystals that
play a role; what those get wrong is the critic's business, or a schema error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from cantrip_actors.agentic.arithmetic.tasks import (
    EXPECTED,
    TOOLS,
    WORKERS,
    AddArgs,
    ArithmeticCriticInput,
    ArithmeticDecision,
    ArithmeticPlannerInput,
    ArithmeticPlannerOutput,
    ArithmeticResult,
    ArithmeticWorkerInput,
    ArithmeticWorkerOutput,
    MulArgs,
    SubArgs,
    WorkerId,
)
from cantrip_actors.agentic.schemas import Feedback, ToolRequest

__all__ = ["CRITIC", "PLANNER", "WORKER", "add", "critique", "mul", "plan", "sub", "worker"]


def plan(given: ArithmeticPlannerInput) -> ArithmeticPlannerOutput:
    """Route by the operation, and leave the task alone (A-04)."""
    worker_id = next(name for name, ops in WORKERS.items() if given.task.op in ops)
    return ArithmeticPlannerOutput(task=given.task, worker_id=cast("WorkerId", worker_id))


def worker(worker_id: str) -> Callable[[ArithmeticWorkerInput], ArithmeticWorkerOutput]:
    """The worker of that id: computes what it can (A-06), and asks for a tool for what it cannot (A-07)."""
    can = WORKERS[worker_id]

    def work(given: ArithmeticWorkerInput) -> ArithmeticWorkerOutput:
        task = given.task
        if task.op in can:
            return ArithmeticWorkerOutput(result=ArithmeticResult(value=EXPECTED[task.op](task.a, task.b)))
        if given.tool_result is not None:
            return ArithmeticWorkerOutput(result=given.tool_result)
        tool = task.op.lower()
        return ArithmeticWorkerOutput(
            tool_request=ToolRequest(tool_name=tool, args=TOOLS[tool](a=task.a, b=task.b)),
        )

    work.__name__ = worker_id
    return work


def critique(given: ArithmeticCriticInput) -> ArithmeticDecision:
    """Check the route, then that there is an answer, then the answer: the first fault is told (A-12)."""
    task, answer = given.plan, given.worker_answer
    if task.op not in WORKERS.get(given.worker_id, ()):
        return _rejected("ROUTING_ERROR", f"{given.worker_id} does not do {task.op}")
    if answer is None:
        return _rejected("EMPTY_RESULT", "there is no answer")
    expected = EXPECTED[task.op](task.a, task.b)
    if answer.value != expected:
        return _rejected("MATH_ERROR", f"{task.op} {task.a} {task.b} is {expected}, not {answer.value}")
    return ArithmeticDecision(decision="ACCEPT")


def _rejected(kind: str, message: str) -> ArithmeticDecision:
    return ArithmeticDecision(decision="REJECT", feedback=Feedback(kind=kind, message=message))


def add(args: AddArgs) -> ArithmeticResult:
    """Add two whole numbers."""
    return ArithmeticResult(value=args.a + args.b)


def sub(args: SubArgs) -> ArithmeticResult:
    """Subtract b from a."""
    return ArithmeticResult(value=args.a - args.b)


def mul(args: MulArgs) -> ArithmeticResult:
    """Multiply two whole numbers."""
    return ArithmeticResult(value=args.a * args.b)


# -------------------------------------------------------------------------------------------------- roles for crystals

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

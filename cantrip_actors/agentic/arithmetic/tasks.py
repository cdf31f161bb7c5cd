"""What the Arithmetic domain is about: tasks, results, workers and what they can, tools and their arguments (seed 001).

Numbers are whole numbers of any size, and nothing is made of what is none: `"1"`, `1.0` and `true` are schema errors
(V5). Everything is frozen (V4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, StrictInt, model_validator

from cantrip_actors.agentic.dispatcher import AgentDispatcher
from cantrip_actors.agentic.schemas import Decision, PlannerOutput, WorkerInput, WorkerOutput

__all__ = [
    "EXPECTED",
    "TOOLS",
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
    "Op",
    "SubArgs",
    "WorkerId",
]

Op = Literal["ADD", "SUB", "MUL"]
WorkerId = Literal["worker_addsub", "worker_mul"]

WORKERS: Final[Mapping[str, frozenset[str]]] = {
    "worker_addsub": frozenset({"ADD", "SUB"}),
    "worker_mul": frozenset({"MUL"}),
}
"""Which operations each worker can: exactly two workers, with nothing in common (A-05)."""

EXPECTED: Final[Mapping[str, Callable[[int, int], int]]] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
}
"""What each operation comes to."""


class ArithmeticTask(BaseModel):
    """One operation on two whole numbers."""

    model_config = ConfigDict(frozen=True)

    op: Op
    a: StrictInt
    b: StrictInt


class ArithmeticResult(BaseModel):
    """What came out."""

    model_config = ConfigDict(frozen=True)

    value: StrictInt


class _Args(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    a: StrictInt
    b: StrictInt


class AddArgs(_Args):
    """The arguments of `add`."""


class SubArgs(_Args):
    """The arguments of `sub`."""


class MulArgs(_Args):
    """The arguments of `mul`."""


TOOLS: Final[Mapping[str, type[AddArgs | SubArgs | MulArgs]]] = {
    "add": AddArgs,
    "sub": SubArgs,
    "mul": MulArgs,
}
"""The tools, each with a type of arguments that no other takes (A-13)."""


class ArithmeticPlannerInput(BaseModel):
    """The task, and what else somebody puts in."""

    model_config = ConfigDict(frozen=True, extra="allow")

    task: ArithmeticTask


class ArithmeticPlannerOutput(PlannerOutput[ArithmeticTask]):
    """The task as it came, and one of the two workers: any other id is a schema error (V2)."""

    worker_id: WorkerId


ArithmeticWorkerInput = WorkerInput[ArithmeticTask, ArithmeticResult]


class ArithmeticWorkerOutput(WorkerOutput[ArithmeticResult]):
    """A result, or a tool request with arguments of that tool's type.

    A worker has no other way to say that it cannot: the seed's "error signal" is undefined, so only `tool_request` is
    legal (V7).
    """

    tool_args: ClassVar[Mapping[str, type[BaseModel]]] = TOOLS


class ArithmeticCriticInput(BaseModel):
    """The task, who worked on it, and the answer, if there is one."""

    model_config = ConfigDict(frozen=True, extra="allow")

    plan: ArithmeticTask
    worker_id: str
    worker_answer: ArithmeticResult | None


class ArithmeticDecision(Decision):
    """A decision whose ACCEPT has no feedback (V3)."""

    @model_validator(mode="after")
    def _accepts_without_feedback(self) -> Self:
        if self.decision == "ACCEPT" and self.feedback is not None:
            raise ValueError("expected no feedback with an ACCEPT")
        return self


ArithmeticCriticOutput = ArithmeticDecision


class ArithmeticDispatcher(AgentDispatcher[ArithmeticTask, ArithmeticResult, Decision]):
    """The dispatcher, bound to this domain; it adds nothing."""

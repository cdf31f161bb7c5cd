"""The types that planners, workers, critics and the controller exchange; a domain binds them to its task and result.

All of them are frozen pydantic models. A domain narrows them: `PlannerOutput[Task]` with the ids of its workers,
`WorkerOutput[Result]` with the arguments of its tools, `Decision` with its own rules. A value that does not fit its
schema never exists as an object.

Two rules are built into the types: a worker's output is a result or a tool request and never both or neither; a
rejection has feedback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cantrip_actors import Usage
from cantrip_actors.agentic.frozen import freeze

T = TypeVar("T")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741  # an output, beside a task and a result


class FrozenModel(BaseModel):
    """A pydantic model with values that cannot change. Its JSON has NaN and the infinities as they are."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")


# ----------------------------------------------------------------------------------------------------------- the roles


class Feedback(FrozenModel):
    """Why a critic rejects: a `kind` for programs, a `message` for people. Neither is empty."""

    kind: str = Field(min_length=1)
    message: str = Field(min_length=1)

    @field_validator("kind", "message", mode="after")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("expected a text that says something, got blanks")
        return text


class PlannerInput(FrozenModel, Generic[T, R]):
    """The default input of a planner. A field `task` is filled with the task."""

    feedback: Feedback | None = None
    previous_task: T | None = None
    previous_worker_id: str | None = None
    random_seed: str | None = None
    project_state: dict[str, Any] | None = None


class PlannerOutput(FrozenModel, Generic[T]):
    """The unchanged task, and the id of the worker for it."""

    task: T
    worker_id: str


class ToolRequest(FrozenModel):
    """A worker's request to run a tool. Workers run no tools themselves."""

    tool_name: str = Field(max_length=64)
    args: Any = None


class WorkerInput(FrozenModel, Generic[T, R]):
    """The input of a worker; `tool_result` is set only after the tool that it asked for has run."""

    task: T
    previous_result: R | None = None
    feedback: Feedback | None = None
    tool_result: R | None = None
    project_state: dict[str, Any] | None = None


class WorkerOutput(FrozenModel, Generic[R]):
    """A result or a tool request: exactly one of them.

    `tool_args` has the type of each tool's arguments; arguments that do not fit it are a schema error. A tool without a
    type gets its arguments as they came.
    """

    tool_args: ClassVar[Mapping[str, type[BaseModel]]] = {}

    result: R | None = None
    tool_request: ToolRequest | None = None

    @field_validator("tool_request", mode="after")
    @classmethod
    def _check_args(cls, request: ToolRequest | None) -> ToolRequest | None:
        wanted = None if request is None else cls.tool_args.get(request.tool_name)
        if request is None or wanted is None or isinstance(request.args, wanted):
            return request
        return request.model_copy(update={"args": wanted.model_validate(request.args, by_name=True)})

    @model_validator(mode="after")
    def _one_branch(self) -> Self:
        if (self.result is None) == (self.tool_request is None):
            came = "both" if self.result is not None else "neither"
            raise ValueError(f"expected exactly one of result and tool_request, got {came}")
        return self


class CriticInput(FrozenModel, Generic[T, R]):
    """The input of a critic. A field with the name of one of the task's is filled with that."""

    plan: T
    worker_answer: R
    project_state: dict[str, Any] | None = None


class Decision(FrozenModel):
    """A critic's decision. A rejection has feedback; it is data, never an error."""

    decision: Literal["ACCEPT", "REJECT"]
    feedback: Feedback | None = None

    @model_validator(mode="after")
    def _rejects_with_feedback(self) -> Self:
        if self.decision == "REJECT" and self.feedback is None:
            raise ValueError("expected feedback with a REJECT: kind and message")
        return self


@dataclass(frozen=True, slots=True)
class AgentCallResult(Generic[O]):
    """The result of one logical call of an agent, for any number of attempts: one output, one `call_id`.

    `usage` counts the tokens of all attempts.
    """

    output: O
    agent_id: str
    call_id: str
    usage: Usage = Usage()  # noqa: RUF009  # frozen, like everything of the model


# ------------------------------------------------------------------------------------------------------ the controller


class ControllerDomainInput(FrozenModel):
    """Exactly one task: any object but None and collections."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    task: Any

    @field_validator("task", mode="after")
    @classmethod
    def _check_single(cls, task: Any) -> Any:
        if task is None:
            raise ValueError("expected exactly one task, got none")
        if isinstance(task, (list, tuple, set, frozenset)):
            raise ValueError(f"expected exactly one task, got a {type(task).__name__}")  # noqa: TRY004  # a schema error
        return task


class ControllerRequest(FrozenModel):
    """A task for the controller, and nothing else: no control, no state."""

    domain: ControllerDomainInput


class ControllerResponse(FrozenModel):
    """The result of one run: plain JSON data that cannot change, in all depths.

    `worker_output` and `critic_decision` are those objects as data; `trace` has an entry for each step. Fields can be
    read either way: `response.critic_decision["decision"]`, `response.critic_decision.decision`.
    """

    task: Any
    worker_id: str
    worker_output: Any
    critic_decision: Any
    trace: Any = None

    @field_validator("task", "worker_output", "critic_decision", "trace", mode="after")
    @classmethod
    def _freeze(cls, value: Any) -> Any:
        return freeze(value)

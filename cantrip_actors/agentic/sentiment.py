"""The Sentiment domain: one worker, no tools, on the same core (A-44).

    response = await run(SentimentTask(text="I love it"), dispatcher=make_agent_dispatcher())

It shows what a domain needs and what it does not: an empty registry, and an output of which a tool request can be no
part. The worker that is no crystal counts words, and is as wise as that.
"""

from __future__ import annotations

import re
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cantrip_actors import Crystal, Runtime
from cantrip_actors.agentic.agents import AgentProtocol, CrystalAgent, FunctionAgent
from cantrip_actors.agentic.dispatcher import AgentDispatcher
from cantrip_actors.agentic.execution import Controller
from cantrip_actors.agentic.schemas import (
    ControllerDomainInput,
    ControllerRequest,
    ControllerResponse,
    Decision,
    Feedback,
    PlannerOutput,
    WorkerInput,
    WorkerOutput,
)
from cantrip_actors.agentic.tools import ToolRegistry

__all__ = [
    "SentimentCriticInput",
    "SentimentDecision",
    "SentimentDispatcher",
    "SentimentPlannerInput",
    "SentimentPlannerOutput",
    "SentimentResult",
    "SentimentTask",
    "SentimentWorkerInput",
    "SentimentWorkerOutput",
    "make_agent_dispatcher",
    "make_tool_registry",
    "run",
]

WORKER: Final = "sentiment-worker"
Sentiment = Literal["POSITIVE", "NEGATIVE", "NEUTRAL"]


class SentimentTask(BaseModel):
    """A text."""

    model_config = ConfigDict(frozen=True)

    text: str = Field(min_length=1)


class SentimentResult(BaseModel):
    """What it feels like."""

    model_config = ConfigDict(frozen=True)

    sentiment: Sentiment


class SentimentPlannerInput(BaseModel):
    """The task."""

    model_config = ConfigDict(frozen=True)

    task: SentimentTask


class SentimentPlannerOutput(PlannerOutput[SentimentTask]):
    """The task as it came, for the one worker there is."""

    worker_id: Literal["sentiment-worker"]


SentimentWorkerInput = WorkerInput[SentimentTask, SentimentResult]


class SentimentWorkerOutput(WorkerOutput[SentimentResult]):
    """A result. There are no tools, so a request for one is a schema error."""

    @model_validator(mode="after")
    def _asks_for_no_tool(self) -> Self:
        if self.tool_request is not None:
            raise ValueError("expected a result: this domain has no tools")
        return self


class SentimentCriticInput(BaseModel):
    """The text, who read it, and what was found."""

    model_config = ConfigDict(frozen=True)

    plan: SentimentTask
    worker_id: str
    worker_answer: SentimentResult | None


class SentimentFeedback(Feedback):
    """Why not, in one of three kinds."""

    kind: Literal["EMPTY_RESULT", "MISMATCH", "OTHER"]


class SentimentDecision(Decision):
    """What the critic says."""

    feedback: SentimentFeedback | None = None


class SentimentDispatcher(AgentDispatcher[SentimentTask, SentimentResult, SentimentDecision]):
    """The dispatcher, bound to this domain."""


async def run(
    task: SentimentTask,
    *,
    dispatcher: SentimentDispatcher,
    tool_registry: ToolRegistry | None = None,
    runtime: Runtime | None = None,
) -> ControllerResponse:
    """Find out what a text feels like. Raises as `Controller` does, and ValueError for a registry with tools in it."""
    registry = make_tool_registry() if tool_registry is None else tool_registry
    if len(registry):
        raise ValueError(f"sentiment has no tools: expected an empty registry, got one of {', '.join(registry)}")
    controller = Controller(dispatcher=dispatcher, tool_registry=registry, name="sentiment")
    return await controller(ControllerRequest(domain=ControllerDomainInput(task=task)), runtime=runtime)


def make_agent_dispatcher(model: Crystal | str | None = None, max_retries: int = 3) -> SentimentDispatcher:
    """A dispatcher whose worker and critic are plain functions or, given a `model`, that crystal."""
    worker: AgentProtocol = FunctionAgent(_work, WORKER, WORKER, SentimentWorkerInput, SentimentWorkerOutput)
    critic: AgentProtocol = FunctionAgent(_critique, "sentiment-critic")
    if model is not None:
        worker = CrystalAgent(model, _WORKER, WORKER, SentimentWorkerInput, SentimentWorkerOutput)
        critic = CrystalAgent(model, _CRITIC, "sentiment-critic", SentimentCriticInput, SentimentDecision)
    planner = FunctionAgent(_plan, "sentiment-planner")
    return SentimentDispatcher(planner=planner, workers={WORKER: worker}, critic=critic, max_retries=max_retries)


def make_tool_registry() -> ToolRegistry:
    """A registry with nothing in it."""
    return ToolRegistry()


# ----------------------------------------------------------------------------------------------------------- the roles

_GOOD: Final = frozenset({"best", "enjoy", "excellent", "good", "great", "happy", "like", "love", "nice", "wonderful"})
_BAD: Final = frozenset({"awful", "bad", "boring", "broken", "hate", "horrible", "poor", "sad", "terrible", "worst"})

_WORKER: Final = """\
You say what a text feels like: POSITIVE, NEGATIVE or NEUTRAL. Answer {"result":{"sentiment":"…"}}."""

_CRITIC: Final = """\
You check what a text (`plan.text`) was said to feel like (`worker_answer.sentiment`). Accept what a fair reader could
say: {"decision":"ACCEPT"}. Else {"decision":"REJECT","feedback":{"kind":"MISMATCH","message":"…"}}, with the kind
EMPTY_RESULT where there is no answer and OTHER for anything else."""


def _plan(given: SentimentPlannerInput) -> SentimentPlannerOutput:
    return SentimentPlannerOutput(task=given.task, worker_id=WORKER)


def _felt(text: str) -> Sentiment:
    words = re.findall(r"\w+", text.lower())
    balance = sum(word in _GOOD for word in words) - sum(word in _BAD for word in words)
    return "POSITIVE" if balance > 0 else "NEGATIVE" if balance < 0 else "NEUTRAL"


def _work(given: SentimentWorkerInput) -> SentimentWorkerOutput:
    return SentimentWorkerOutput(result=SentimentResult(sentiment=_felt(given.task.text)))


def _critique(given: SentimentCriticInput) -> SentimentDecision:
    if given.worker_answer is None:
        return _rejected("EMPTY_RESULT", "there is no answer")
    felt, said = _felt(given.plan.text), given.worker_answer.sentiment
    if felt != said:
        return _rejected("MISMATCH", f"its words are {felt}, not {said}")
    return SentimentDecision(decision="ACCEPT")


def _rejected(kind: Literal["EMPTY_RESULT", "MISMATCH"], message: str) -> SentimentDecision:
    return SentimentDecision(decision="REJECT", feedback=SentimentFeedback(kind=kind, message=message))

"""A domain of your own: what does a text feel like? One worker, no tools, on the core of planner, worker and critic.

A domain needs types for its task, its result and its decision, and someone to play each role. Here plain functions that
count words play worker and critic; `make_agent_dispatcher("anthropic:…")` has a crystal play them.
"""

import asyncio
import re
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from cantrip_actors import Crystal, Runtime
from cantrip_actors.agentic import (
    AgentDispatcher,
    Controller,
    ControllerDomainInput,
    ControllerRequest,
    ControllerResponse,
    Decision,
    Feedback,
    FrozenModel,
    FunctionAgent,
    PlannerOutput,
    ToolRegistry,
    WorkerInput,
    WorkerOutput,
    make_agent,
)

WORKER_ID: Final = "sentiment-worker"
Sentiment = Literal["POSITIVE", "NEGATIVE", "NEUTRAL"]


class SentimentTask(FrozenModel):
    """A text."""

    text: str = Field(min_length=1)


class SentimentResult(FrozenModel):
    """What it feels like."""

    sentiment: Sentiment


class SentimentPlannerInput(FrozenModel):
    """The task."""

    task: SentimentTask


class SentimentPlannerOutput(PlannerOutput[SentimentTask]):
    """The task as it came, for the one worker there is."""

    worker_id: Literal["sentiment-worker"]


SentimentWorkerInput = WorkerInput[SentimentTask, SentimentResult]


class SentimentWorkerOutput(WorkerOutput[SentimentResult]):
    """A result. There are no tools, so a request for one is a schema error."""

    @model_validator(mode="after")
    def _check_no_tool(self) -> Self:
        if self.tool_request is not None:
            raise ValueError("expected a result: this domain has no tools")
        return self


class SentimentCriticInput(FrozenModel):
    """The text, who read it, and what was found."""

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
    """Return a dispatcher whose worker and critic count words or, given a `model`, are that crystal."""
    worker = make_agent(model, _work, _WORKER, WORKER_ID, SentimentWorkerInput, SentimentWorkerOutput)
    critic = make_agent(model, _critique, _CRITIC, "sentiment-critic", SentimentCriticInput, SentimentDecision)
    planner = FunctionAgent(_make_plan, "sentiment-planner")
    return SentimentDispatcher(planner=planner, workers={WORKER_ID: worker}, critic=critic, max_retries=max_retries)


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


def _make_plan(planner_input: SentimentPlannerInput) -> SentimentPlannerOutput:
    return SentimentPlannerOutput(task=planner_input.task, worker_id=WORKER_ID)


def _read_sentiment(text: str) -> Sentiment:
    words = re.findall(r"\w+", text.lower())
    balance = sum(word in _GOOD for word in words) - sum(word in _BAD for word in words)
    return "POSITIVE" if balance > 0 else "NEGATIVE" if balance < 0 else "NEUTRAL"


def _work(worker_input: SentimentWorkerInput) -> SentimentWorkerOutput:
    return SentimentWorkerOutput(result=SentimentResult(sentiment=_read_sentiment(worker_input.task.text)))


def _critique(critic_input: SentimentCriticInput) -> SentimentDecision:
    if critic_input.worker_answer is None:
        return _reject("EMPTY_RESULT", "there is no answer")
    felt, claimed = _read_sentiment(critic_input.plan.text), critic_input.worker_answer.sentiment
    if felt != claimed:
        return _reject("MISMATCH", f"its words are {felt}, not {claimed}")
    return SentimentDecision(decision="ACCEPT")


def _reject(kind: Literal["EMPTY_RESULT", "MISMATCH"], message: str) -> SentimentDecision:
    return SentimentDecision(decision="REJECT", feedback=SentimentFeedback(kind=kind, message=message))


async def main() -> None:
    """Ask for three texts, and for one whose worker is wrong."""
    dispatcher = make_agent_dispatcher()
    for text in ("I love this wonderful day", "The soup was awful", "It is Tuesday"):
        response = await run(SentimentTask(text=text), dispatcher=dispatcher)
        print(f"{text}: {response.worker_output.result.sentiment}, {response.critic_decision.decision}")


if __name__ == "__main__":
    asyncio.run(main())

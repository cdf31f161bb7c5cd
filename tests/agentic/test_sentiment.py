"""The Sentiment domain: the same core, one worker, no tools."""

import json

import pytest
from pydantic import ValidationError

from cantrip_actors import Runtime, scripted
from cantrip_actors.agentic import AgentExhausted, Controller
from cantrip_demos.arithmetic import make_tool_registry as arithmetic_tools
from examples.sentiment import (
    SentimentDecision,
    SentimentDispatcher,
    SentimentTask,
    SentimentWorkerInput,
    SentimentWorkerOutput,
    make_agent_dispatcher,
    make_tool_registry,
    run,
)
from tests.agentic.players import Player, states, wish

LOVE = SentimentTask(text="I love it")


def with_worker(*answers):
    own = make_agent_dispatcher()
    worker = Player("sentiment-worker", *answers, schemas=(SentimentWorkerInput, SentimentWorkerOutput))
    workers = {"sentiment-worker": worker}
    return SentimentDispatcher(planner=own.planner, workers=workers, critic=own.critic), worker


@pytest.mark.rule("A-44", "A-20")
@pytest.mark.parametrize(
    ("text", "felt"), [("I love it", "POSITIVE"), ("A terrible, boring book", "NEGATIVE"), ("It is a book", "NEUTRAL")]
)
async def test_the_sentiment_domain_runs_on_the_same_core(text, felt):
    response = await run(SentimentTask(text=text), dispatcher=make_agent_dispatcher())
    assert response.worker_output.result.sentiment == felt
    assert response.critic_decision.decision == "ACCEPT"
    assert states(response.trace) == ["PLAN", "WORK", "CRITIC", "END"]


@pytest.mark.rule("A-44")
async def test_the_sentiment_domain_refuses_tools():
    assert len(make_tool_registry()) == 0
    with pytest.raises(ValueError, match="sentiment has no tools"):
        await run(LOVE, dispatcher=make_agent_dispatcher(), tool_registry=arithmetic_tools())


@pytest.mark.rule("A-44", "A-34")
async def test_a_tool_request_does_not_fit_the_schema():
    dispatcher, worker = with_worker(wish("add", a=1, b=2))
    with pytest.raises(AgentExhausted, match="this domain has no tools"):
        await run(LOVE, dispatcher=dispatcher)
    assert len(worker.given) == 3


@pytest.mark.rule("A-44", "A-29")
async def test_a_mismatch_is_a_rejection():
    dispatcher, _ = with_worker({"result": {"sentiment": "NEGATIVE"}})
    response = await run(LOVE, dispatcher=dispatcher)
    assert response.critic_decision.feedback.kind == "MISMATCH"


@pytest.mark.rule("A-44")
def test_no_answer_is_an_empty_result():
    critic = make_agent_dispatcher().critic
    given = critic.input_schema.model_validate({"plan": LOVE, "worker_id": "w", "worker_answer": None})
    assert critic.function(given).feedback.kind == "EMPTY_RESULT"


@pytest.mark.rule("A-44")
def test_feedback_is_of_three_kinds():
    with pytest.raises(ValidationError):
        SentimentDecision.model_validate({"decision": "REJECT", "feedback": {"kind": "MATH_ERROR", "message": "x"}})
    with pytest.raises(ValidationError):
        SentimentTask(text="")


@pytest.mark.rule("A-44", "A-41")
async def test_a_crystal_plays_worker_and_critic():
    def play(context):
        critic = "worker_answer" in context[1].content
        said = {"decision": "ACCEPT"} if critic else {"result": {"sentiment": "POSITIVE"}}
        return {"content": json.dumps(said)}

    crystal = scripted(play)
    async with Runtime.open() as runtime:
        response = await run(LOVE, dispatcher=make_agent_dispatcher(crystal), runtime=runtime)
    assert response.worker_output.result.sentiment == "POSITIVE"
    assert len(crystal.invocations) == 2


async def test_a_text_is_parsed_as_json_unless_the_task_is_a_text():
    controller = Controller(dispatcher=make_agent_dispatcher(), tool_registry=make_tool_registry())
    async with Runtime.open() as runtime:
        episode = await runtime.cast(controller.cantrip(), '{"text": "I love it"}')
        assert episode.result["worker_output"]["result"]["sentiment"] == "POSITIVE"

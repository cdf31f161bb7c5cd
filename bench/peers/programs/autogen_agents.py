"""AutoGen's AssistantAgent with its ReplayChatCompletionClient, which answers from a list."""

from __future__ import annotations

import json
import logging
from typing import Any

from autogen_agentchat.agents import AssistantAgent  # type: ignore[import-not-found]
from autogen_agentchat.messages import ModelClientStreamingChunkEvent  # type: ignore[import-not-found]
from autogen_core import EVENT_LOGGER_NAME, FunctionCall  # type: ignore[import-not-found]
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage  # type: ignore[import-not-found]
from autogen_ext.models.replay import ReplayChatCompletionClient  # type: ignore[import-not-found]

from bench.peers.programs.work import Program, main

logging.getLogger(EVENT_LOGGER_NAME).setLevel(logging.ERROR)  # the client warns of each list of tool calls

MODEL = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    structured_output=False,
    family=ModelFamily.UNKNOWN,
)


async def echo(text: str) -> str:
    """Give back the text."""
    return text


async def ask(intent: str) -> str:
    """Ask another agent."""
    return await run_agent(["ok"], intent)


def call(*calls: tuple[str, dict[str, Any]]) -> CreateResult:
    """Return the model's answer that calls tools."""
    content = [
        FunctionCall(id=f"call_{n}", name=tool, arguments=json.dumps(args)) for n, (tool, args) in enumerate(calls)
    ]
    usage = RequestUsage(prompt_tokens=10, completion_tokens=5)
    return CreateResult(finish_reason="function_calls", content=content, usage=usage, cached=False)


async def run_agent(answers: list[str | CreateResult], task: str, *tools: Any) -> str:
    """Return the last answer of an agent whose model gives these."""
    client = ReplayChatCompletionClient(answers, model_info=MODEL)
    agent = AssistantAgent("agent", client, tools=list(tools), max_tool_iterations=len(answers))
    text: str = (await agent.run(task=task)).messages[-1].content
    return text


class AutoGen(Program):
    """An agent that keeps nothing."""

    async def run(self, turns: int, key: str) -> None:
        """Run the agent."""
        del key
        answers = [call(("echo", {"text": f"hello {turn}"})) for turn in range(turns - 1)]
        assert await run_agent([*answers, "ok"], "go", echo) == "ok"

    async def delegate(self, children: int) -> None:
        """Run an agent whose tool runs another agent."""
        calls = call(*(("ask", {"intent": f"child {child}"}) for child in range(children)))
        assert await run_agent([calls, "ok"], "go", ask) == "ok"

    async def stream(self, chunks: int) -> str:
        """Collect the chunks."""
        client = ReplayChatCompletionClient(["word " * chunks], model_info=MODEL)
        agent = AssistantAgent("agent", client, model_client_stream=True)
        return "".join(
            [
                event.content
                async for event in agent.run_stream(task="go")
                if isinstance(event, ModelClientStreamingChunkEvent)
            ]
        )


if __name__ == "__main__":
    main(AutoGen)

"""pydantic-ai with its FunctionModel; with a store, each run is a DBOS workflow whose queries and tools are steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from pydantic_ai import Agent, UsageLimits  # type: ignore[import-not-found]
from pydantic_ai.messages import (  # type: ignore[import-not-found]
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel  # type: ignore[import-not-found]

from bench.peers.programs.work import Program, main, note_query

NO_LIMIT = UsageLimits(request_limit=None)


async def echo(text: str) -> str:
    """Give back the text."""
    return text


async def ask(intent: str) -> str:
    """Ask another agent."""
    child = Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("ok")])))  # noqa: ARG005  # its form
    output: str = (await child.run(intent)).output
    return output


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool in each turn; the prompt says how many there are."""
    del info
    turn, turns = len(messages) // 2, int(messages[0].parts[0].content)
    note_query(turn)
    if turn < turns - 1:
        return ModelResponse(parts=[ToolCallPart("echo", {"text": f"hello {turn}"})])
    return ModelResponse(parts=[TextPart("ok")])


def delegate(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask all children in one message."""
    del info
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("ok")])
    children = int(messages[0].parts[0].content)
    return ModelResponse(parts=[ToolCallPart("ask", {"intent": f"child {child}"}) for child in range(children)])


async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Stream words."""
    del info
    for _ in range(int(messages[0].parts[0].content)):
        yield "word "


class PydanticAI(Program):
    """An agent that keeps nothing."""

    def __init__(self, store: str, folder: Path) -> None:
        super().__init__(store, folder)
        self._agent = Agent(FunctionModel(answer), tools=[echo])

    async def run(self, turns: int, key: str) -> None:
        """Run the agent."""
        del key
        assert (await self._agent.run(str(turns), usage_limits=NO_LIMIT)).output == "ok"

    async def delegate(self, children: int) -> None:
        """Run an agent whose tool runs another agent."""
        agent = Agent(FunctionModel(delegate), tools=[ask])
        assert (await agent.run(str(children))).output == "ok"

    async def stream(self, chunks: int) -> str:
        """Collect the deltas."""
        async with Agent(FunctionModel(stream_function=speak)).run_stream(str(chunks)) as run:
            return "".join([text async for text in run.stream_text(delta=True, debounce_by=None)])


class Durable(Program):
    """An agent whose runs are workflows of DBOS."""

    def __init__(self, store: str, folder: Path) -> None:
        from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]
        from pydantic_ai.durable_exec.dbos import DBOSDurability  # type: ignore[import-not-found]

        super().__init__(store, folder)
        url = f"sqlite:///{folder}/dbos.sqlite" if store == "sqlite" else store
        DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})
        agent = Agent(FunctionModel(answer), name="agent", tools=[DBOS.step()(echo)], capabilities=[DBOSDurability()])

        @DBOS.workflow()  # type: ignore[untyped-decorator]
        async def work(prompt: str) -> str:
            output: str = (await agent.run(prompt, usage_limits=NO_LIMIT)).output
            return output

        self._dbos, self._work, self._set_id = DBOS, work, SetWorkflowID

    async def __aenter__(self) -> Self:
        """Start DBOS, which resumes what a killed process left."""
        self._dbos.launch()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        self._dbos.destroy()

    async def run(self, turns: int, key: str) -> None:
        """Run the workflow under this id."""
        with self._set_id(key):
            assert await self._work(str(turns)) == "ok"

    async def resume(self, turns: int, key: str) -> None:
        """Wait for the workflow that was resumed."""
        del turns
        assert await (await self._dbos.retrieve_workflow_async(key)).get_result() == "ok"


def choose(store: str, folder: Path) -> Program:
    """Return the program for this store."""
    return (PydanticAI if store == "memory" else Durable)(store, folder)


if __name__ == "__main__":
    main(choose)

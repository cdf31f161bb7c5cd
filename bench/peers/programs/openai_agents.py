"""OpenAI Agents with a model of its interface, without tracing; with SQLite, each run has a session in a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import (  # type: ignore[import-not-found]
    Agent,
    Model,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from bench.peers.programs.work import Program, main, note_query

set_tracing_disabled(True)


def say(text: str) -> ResponseOutputMessage:
    """Return a message of the model."""
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")


def call(number: int, tool: str, **args: str) -> ResponseFunctionToolCall:
    """Return a tool call of the model."""
    return ResponseFunctionToolCall(
        call_id=f"call_{number}", name=tool, arguments=json.dumps(args), type="function_call"
    )


@function_tool  # type: ignore[untyped-decorator]
async def echo(text: str) -> str:
    """Give back the text."""
    return text


class Child(Model):  # type: ignore[misc]  # it has no types here
    """Answers at once."""

    def answer(self, items: Any) -> list[Any]:
        """Return the next items."""
        del items
        return [say("ok")]

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        """Return the whole answer."""
        del system_instructions
        return ModelResponse(output=self.answer(input), usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Return no stream."""
        raise NotImplementedError


class Script(Child):
    """Calls the tool in each turn."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def answer(self, items: Any) -> list[Any]:
        """Return the items of this turn."""
        turn = 0 if isinstance(items, str) else len(items) // 2
        note_query(turn)
        return [call(turn, "echo", text=f"hello {turn}") if turn < self.turns - 1 else say("ok")]


class Parent(Child):
    """Asks all children in one answer."""

    def __init__(self, children: int) -> None:
        self.children = children

    def answer(self, items: Any) -> list[Any]:
        """Return the calls, and then the end."""
        if not isinstance(items, str) and len(items) > 1:
            return [say("ok")]
        return [call(number, "ask", input=f"child {number}") for number in range(self.children)]


class Speaker(Child):
    """Streams words."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Yield the deltas, and the whole answer at the end."""
        for number in range(self.chunks):
            yield ResponseTextDeltaEvent(
                content_index=0, delta="word ", item_id="m", logprobs=[], output_index=0,
                sequence_number=number, type="response.output_text.delta",
            )  # fmt: skip
        response = Response(
            id="r", created_at=0, model="script", object="response", output=[say("word " * self.chunks)],
            parallel_tool_calls=False, tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, sequence_number=self.chunks, type="response.completed")


class OpenAIAgents(Program):
    """An agent; a session keeps its messages."""

    async def run(self, turns: int, key: str) -> None:
        """Run the agent, in a session of its own if there is a file."""
        session = SQLiteSession(key, self.folder / "sessions.db") if self.store == "sqlite" else None
        agent = Agent(name="agent", model=Script(turns), tools=[echo])
        assert (await Runner.run(agent, "go", max_turns=turns + 1, session=session)).final_output == "ok"

    async def delegate(self, children: int) -> None:
        """Run an agent that has another one as a tool."""
        child = Agent(name="child", model=Child()).as_tool(tool_name="ask", tool_description="Ask another agent.")
        assert (
            await Runner.run(Agent(name="parent", model=Parent(children), tools=[child]), "go")
        ).final_output == "ok"

    async def stream(self, chunks: int) -> str:
        """Collect the deltas."""
        run = Runner.run_streamed(Agent(name="agent", model=Speaker(chunks)), "go")
        return "".join(
            [
                event.data.delta
                async for event in run.stream_events()
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
            ]
        )


if __name__ == "__main__":
    main(OpenAIAgents)

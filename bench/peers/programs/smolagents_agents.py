"""smolagents' ToolCallingAgent with a model of its interface; it is synchronous, so agents run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from smolagents import (  # type: ignore[import-not-found]
    ChatMessage,
    ChatMessageStreamDelta,
    LogLevel,
    Model,
    ToolCallingAgent,
    tool,
)
from smolagents.models import (  # type: ignore[import-not-found]
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
)

from bench.peers.programs.work import Program, main


@tool  # type: ignore[untyped-decorator]
def echo(text: str) -> str:
    """Give back the text.

    Args:
        text: the text
    """
    return text


class Script(Model):  # type: ignore[misc]  # it has no types here
    """Calls a tool a number of times, and then the tool for the final answer."""

    def __init__(self, calls: int, tool_name: str = "echo", argument: str = "text") -> None:
        super().__init__()
        self.calls, self.tool_name, self.argument, self.turn = calls, tool_name, argument, 0

    def generate(self, messages: Any, **_: Any) -> ChatMessage:
        """Return the next message."""
        del messages
        self.turn += 1
        if self.turn <= self.calls:
            function = ChatMessageToolCallFunction({self.argument: f"hello {self.turn}"}, self.tool_name)
        else:
            function = ChatMessageToolCallFunction({"answer": "ok"}, "final_answer")
        calls = [ChatMessageToolCall(function, f"call_{self.turn}", "function")]
        return ChatMessage(role="assistant", content="", tool_calls=calls)


class Speaker(Model):  # type: ignore[misc]
    """Streams words, and then the final answer."""

    def __init__(self, chunks: int) -> None:
        super().__init__()
        self.chunks = chunks

    def generate_stream(self, messages: Any, **_: Any) -> Iterator[ChatMessageStreamDelta]:
        """Yield the words."""
        del messages
        for _n in range(self.chunks):
            yield ChatMessageStreamDelta("word ")
        function = ChatMessageToolCallFunction('{"answer": "ok"}', "final_answer")
        yield ChatMessageStreamDelta(None, [ChatMessageToolCallStreamDelta(0, "call", "function", function)])


class Smolagents(Program):
    """An agent that keeps nothing."""

    async def run(self, turns: int, key: str) -> None:
        """Run the agent in a thread."""
        del key
        agent = ToolCallingAgent([echo], Script(turns - 1), max_steps=turns + 1, verbosity_level=LogLevel.OFF)
        assert await asyncio.to_thread(agent.run, "go") == "ok"

    async def delegate(self, children: int) -> None:
        """Run an agent that manages another one, and asks it in one step after the other."""
        child = ToolCallingAgent([], Child(), name="child", description="It helps.", verbosity_level=LogLevel.OFF)
        agent = ToolCallingAgent(
            [],
            Script(children, "child", "task"),
            managed_agents=[child],
            max_steps=children + 2,
            verbosity_level=LogLevel.OFF,
        )
        assert await asyncio.to_thread(agent.run, "go") == "ok"

    async def stream(self, chunks: int) -> str:
        """Collect the deltas."""
        agent = ToolCallingAgent([], Speaker(chunks), stream_outputs=True, verbosity_level=LogLevel.OFF)
        return "".join(
            [part.content or "" for part in agent.run("go", stream=True) if isinstance(part, ChatMessageStreamDelta)]
        )


class Child(Script):
    """Gives its final answer at once, each time."""

    def __init__(self) -> None:
        super().__init__(0)


if __name__ == "__main__":
    main(Smolagents)

"""LangGraph by LangChain's `create_agent`: without a checkpointer, and with those for SQLite and Postgres."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Self

from langchain.agents import create_agent  # type: ignore[import-not-found]
from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found]
from langchain_core.messages import AIMessage, AIMessageChunk  # type: ignore[import-not-found]
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult  # type: ignore[import-not-found]

from bench.peers.programs.work import Program, main, note_query

os.environ["LANGSMITH_TRACING"] = "false"


async def echo(text: str) -> str:
    """Give back the text."""
    return text


async def ask(intent: str) -> str:
    """Ask another agent."""
    text: str = (await create_agent(Child(), []).ainvoke({"messages": intent}))["messages"][-1].content
    return text


class Child(BaseChatModel):  # type: ignore[misc]  # it has no types here
    """Answers at once. The other models derive from it: LangChain's own fake models cannot call tools."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return the model as it is: it knows the tools."""
        del tools
        return self

    def answer(self, messages: Any) -> AIMessage:
        """Return the next message."""
        del messages
        return AIMessage("ok")

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        del stop, run_manager
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return self._generate(messages, stop, run_manager)


class Script(Child):
    """Calls the tool in each turn; the prompt says how many there are."""

    def answer(self, messages: Any) -> AIMessage:
        """Return the message of this turn."""
        turn, turns = len(messages) // 2, int(messages[0].content)
        note_query(turn)
        if turn == turns - 1:
            return AIMessage("ok")
        return AIMessage("", tool_calls=[{"name": "echo", "args": {"text": f"hello {turn}"}, "id": f"call_{turn}"}])


class Parent(Child):
    """Asks all children in one message."""

    def answer(self, messages: Any) -> AIMessage:
        """Return the calls, and then the end."""
        if len(messages) > 1:
            return AIMessage("ok")
        children = range(int(messages[0].content))
        return AIMessage(
            "", tool_calls=[{"name": "ask", "args": {"intent": f"child {n}"}, "id": f"call_{n}"} for n in children]
        )


class Speaker(Child):
    """Streams words."""

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        del stop
        for _n in range(int(messages[0].content)):
            chunk = ChatGenerationChunk(message=AIMessageChunk("word "))
            if run_manager is not None:
                await run_manager.on_llm_new_token("word ", chunk=chunk)
            yield chunk


class LangGraph(Program):
    """An agent, a graph; each run is a thread of the checkpointer."""

    async def __aenter__(self) -> Self:
        """Open the checkpointer."""
        self._stack = AsyncExitStack()
        saver: Any = None
        if self.store.startswith("sqlite"):
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # type: ignore[import-not-found]

            saver = await self._stack.enter_async_context(AsyncSqliteSaver.from_conn_string(f"{self.folder}/graph.db"))
        elif self.store != "memory":
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # type: ignore[import-not-found]

            saver = await self._stack.enter_async_context(AsyncPostgresSaver.from_conn_string(self.store))
            await saver.setup()
        self._agent = create_agent(Script(), [echo], checkpointer=saver)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._stack.aclose()

    async def run(self, turns: int, key: str) -> None:
        """Run the graph in a thread of its own."""
        await self._invoke({"messages": str(turns)}, turns, key)

    async def resume(self, turns: int, key: str) -> None:
        """Continue the thread at its last checkpoint."""
        await self._invoke(None, turns, key)

    async def _invoke(self, messages: Any, turns: int, key: str) -> None:
        config = {"configurable": {"thread_id": key}, "recursion_limit": 2 * turns + 10}
        durability = "sync" if self.store.endswith("sync") else None  # by default a step begins before the last is kept
        state = await self._agent.ainvoke(messages, config, durability=durability)
        assert state["messages"][-1].content == "ok"

    async def delegate(self, children: int) -> None:
        """Run an agent whose tool runs another agent."""
        state = await create_agent(Parent(), [ask]).ainvoke({"messages": str(children)})
        assert state["messages"][-1].content == "ok"

    async def stream(self, chunks: int) -> str:
        """Collect the tokens."""
        pieces = create_agent(Speaker(), []).astream({"messages": str(chunks)}, stream_mode="messages")
        return "".join([chunk.content async for chunk, _ in pieces])


if __name__ == "__main__":
    main(LangGraph)

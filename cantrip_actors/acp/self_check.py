"""`cantrip acp --check`: an editor in the same process, which sends the first requests of every editor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson

from cantrip_actors import Cantrip, LoomError, Runtime, scripted
from cantrip_actors.acp.agent import Agent
from cantrip_actors.acp.jsonrpc import RpcConnection

PATIENCE = 30.0
"""Seconds that the whole check may take."""


async def check_agent(recipe: Cantrip) -> list[str]:
    """Return a line for each step that worked: initialize, new, prompt. The model is a script. Raises LoomError."""
    answer = scripted([{"tool_calls": [{"gate": "done", "args": {"answer": "ready"}}]}] * 3)
    steps: list[str] = []
    async with Runtime.open("memory:") as runtime:
        agent = Agent(runtime, replace(recipe, crystal=answer))
        ask, lines = anyio.create_memory_object_stream[bytes](16)
        outgoing, answers = anyio.create_memory_object_stream[bytes](1024)
        agent.connection = RpcConnection(agent, outgoing.send)

        async def request(number: int, method: str, params: Any) -> Any:
            await ask.send(orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
            async for line in answers:
                message = orjson.loads(line)
                if message.get("id") == number:
                    if "error" in message:
                        raise LoomError(f"{method}: {message['error']['message']}")
                    steps.append(f"{method}: ok")
                    return message["result"]
            raise LoomError(f"{method}: the agent has ended")

        async def nothing() -> None:
            pass

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks, ask, lines, outgoing, answers:
                await tasks.start(agent.run)
                tasks.start_soon(agent.connection.serve, _read_lines(lines), nothing)
                await request(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
                session = await request(2, "session/new", {"cwd": str(Path.cwd()), "mcpServers": []})
                commands = await agent.server_commands(session["sessionId"])
                if commands:
                    steps.append(f"commands of servers: {', '.join(f'/{name}' for name in commands)}")
                prompt = [{"type": "text", "text": "Are you there?"}]
                await request(3, "session/prompt", {"sessionId": session["sessionId"], "prompt": prompt})
                tasks.cancel_scope.cancel()
    return steps


async def _read_lines(receive: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for line in receive:
        yield line

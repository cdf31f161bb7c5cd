"""A server that is a program: messages are lines on its standard input and output.

The SDK has such a transport too. Its lines have no bound, and the cost of a line grows with the square of its length,
so a server could block the event loop with one line; and it passes on more of the environment than a program needs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, TextIO

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process, TaskGroup
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.exact_json import parse_exactly
from cantrip_actors.terms.half_characters import replace_half_characters
from cantrip_actors.terms.tool_server import ToolServerError

LONGEST: Final = 16 * 2**20
"""The maximum bytes of one message of a program."""

RUBBISH: Final = 3
"""The maximum number of logged lines that are not messages; a program may write a million of them."""

GRACE: Final = 2.0
"""Seconds that a program has to end after its input was closed, and again after SIGTERM."""

INHERITED: Final = ("PATH", "HOME", "LANG", "TERM")

_log = get_logger("cantrip_actors.mcp")


class Pipe:
    """The streams of a program's messages, as the SDK's client wants them. `tasks` run while it does."""

    def __init__(self, name: str, process: Process, tasks: TaskGroup) -> None:
        self._name = name
        self._process = process
        self._rubbish = 0
        self._received, self.read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.write, self._to_send = anyio.create_memory_object_stream[SessionMessage](0)
        assert process.stdout is not None, "it was started with pipes"
        assert process.stdin is not None, "it was started with pipes"
        tasks.start_soon(self._receive, process.stdout)
        tasks.start_soon(self._send, process.stdin)

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        errors: TextIO,
        stack: contextlib.AsyncExitStack,
        tasks: TaskGroup,
    ) -> Pipe:
        """Start a program, which `stack` ends. Its environment is `env` and `INHERITED`. Raises ToolServerError."""
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        with anyio.CancelScope(shield=True):  # a cancelled start would leave a program without an owner
            try:
                process = await anyio.open_process(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=inherited | dict(env),
                    cwd=cwd,
                    start_new_session=True,
                )
            except OSError as error:  # uvloop's names no file
                why = f"{error.strerror or error}: {error.filename or command[0]}"
                raise ToolServerError(f"it did not start: {why}") from None
            stack.push_async_callback(_end, process)
        return cls(name, process, tasks)

    async def __aenter__(self) -> tuple[Any, Any]:
        return self.read, self.write

    async def __aexit__(self, *error: object) -> None:
        self.read.close()
        self.write.close()

    async def _receive(self, output: ByteReceiveStream) -> None:
        """Read messages until the program closes its output. Raises ToolServerError for one that is too long."""
        with self._received, contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with contextlib.aclosing(_read_lines(output)) as lines:
                async for line in lines:
                    await self._received.send(self._parse(line))

    def _parse(self, line: bytes) -> SessionMessage | Exception:
        try:
            # the SDK refuses half a character, and then the call would have no answer
            message = jsonrpc_message_adapter.validate_json(replace_half_characters(line), by_name=False)
            return SessionMessage(message)
        except ValueError as problem:
            self._rubbish += 1
            if self._rubbish <= RUBBISH:
                _log.warning("a server wrote a line that is not a message", server=self._name, bytes=len(line))
            return _make_error(line) or problem

    async def _send(self, to: ByteSendStream) -> None:
        """Write messages until there are no more, or the program does not read them."""
        with self._to_send, contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            async for message in self._to_send:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await to.send(f"{text}\n".encode())
            return
        self._received.close()


def _make_error(line: bytes) -> SessionMessage | None:
    """Return the error that ends the request to which a line is an invalid answer; None if it is no answer."""
    try:
        answer = parse_exactly(line)
    except ValueError:
        return None
    if not isinstance(answer, dict) or "method" in answer or type(answer.get("id")) not in (int, str):
        return None
    error = ErrorData(code=INTERNAL_ERROR, message="the server's answer is no valid JSON-RPC message")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=answer["id"], error=error))


async def _read_lines(output: ByteReceiveStream) -> AsyncGenerator[bytes, None]:
    parts: list[bytes] = []
    length = 0
    async for chunk in output:
        *ended, rest = chunk.split(b"\n")
        for end in ended:
            yield b"".join([*parts, end])
            parts.clear()
            length = 0
        parts.append(rest)
        length += len(rest)
        if length > LONGEST:
            raise ToolServerError(f"it wrote a message of more than {LONGEST >> 20} MiB")


async def _end(process: Process) -> None:
    """Close a program's input; if it keeps running, end it and its child processes."""
    with anyio.CancelScope(shield=True):
        assert process.stdin is not None, "it was started with pipes"
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
        with anyio.move_on_after(GRACE):
            await process.wait()
        for what in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, what)
                with anyio.move_on_after(GRACE):
                    await process.wait()
        await process.aclose()

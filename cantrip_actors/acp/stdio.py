"""Standard input and output as a connection: only messages go out, whatever user code prints."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import anyio

from cantrip_actors import Cantrip, CantripError, Runtime
from cantrip_actors.acp.agent import Agent
from cantrip_actors.acp.jsonrpc import RpcConnection
from cantrip_actors.own_files.modes import private
from cantrip_actors.records.codec import dump_json
from cantrip_actors.runtime.nodes.node import cancel_at_signal

LONGEST: Final = 64 << 20
"""The maximum bytes of a line."""
CHUNK: Final = 1 << 16
"""Bytes read at a time: the capacity of a pipe."""
AT_ONCE: Final = select.PIPE_BUF
"""Bytes that a pipe takes without blocking once it is ready."""
GRACE: Final = 1.5
"""Seconds that a running episode has when the editor disconnects."""


def take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return standard input and output for messages; from now on, all prints go to standard error."""
    sys.stdout.flush()
    messages, answers = os.dup(0), os.dup(1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(messages, "rb"), os.fdopen(answers, "wb", buffering=0)


class StdioLines(AsyncIterator[bytes]):
    """The lines of a file. No thread reads it: one that waits for input would outlive the event loop."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file  # keeps the file open: it is read by its descriptor
        self._part = bytearray()
        self._ends = False

    async def __anext__(self) -> bytes:
        searched = 0
        while (end := self._part.find(b"\n", searched)) < 0 and not self._ends and len(self._part) < LONGEST:
            searched = len(self._part)
            with suppress(PermissionError):  # a file on a disk cannot be waited for, and is always ready
                await anyio.wait_readable(self._file.fileno())
            data = os.read(self._file.fileno(), CHUNK)
            self._part += data
            self._ends = not data
        if not self._part:
            raise StopAsyncIteration
        length = len(self._part) if end < 0 else end + 1
        line = bytes(self._part[:length])
        del self._part[:length]
        return line


async def write_all(file: BinaryIO, data: bytes) -> None:
    """Write to a file. No thread does it: one that waits for a reader could not be cancelled. Raises OSError."""
    view = memoryview(data)
    while view:
        with suppress(PermissionError):  # likewise
            await anyio.wait_writable(file.fileno())
        view = view[os.write(file.fileno(), view[:AT_ONCE]) :]


async def run_agent(
    runtime: Runtime,
    recipe: Cantrip,
    messages: BinaryIO,
    answers: BinaryIO,
    *,
    debug: Path | None = None,
    terminal: bool = False,
) -> None:
    """Serve one editor until it closes its end, or until SIGTERM, SIGINT or SIGHUP.

    `debug` is a file that gets each message in either direction, without secrets.
    """
    agent = Agent(runtime, recipe, terminal=terminal)

    async def end() -> None:
        await runtime.drain(GRACE)

    with _open_trace(runtime, debug) as trace:
        agent.connection = RpcConnection(agent, partial(write_all, answers), trace=trace)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_at_signal, tasks.cancel_scope)
            await tasks.start(agent.run)
            await agent.connection.serve(StdioLines(messages), end)
            tasks.cancel_scope.cancel()


@contextmanager
def _open_trace(runtime: Runtime, debug: Path | None) -> Iterator[Callable[[str, Any], None]]:
    if debug is None:
        yield lambda _direction, _message: None
        return
    try:
        file = open(debug, "ab", buffering=0, opener=private)  # noqa: SIM115  # the block below closes it
    except OSError as error:
        raise CantripError(f"{debug}: the messages cannot be written there: {error.strerror}") from error
    with file:

        def trace(direction: str, message: Any) -> None:
            with suppress(OSError):
                file.write(f"{direction} ".encode() + dump_json(runtime.redact(message), mark=False) + b"\n")

        yield trace

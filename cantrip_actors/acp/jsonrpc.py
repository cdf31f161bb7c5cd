"""JSON-RPC 2.0 over lines, both ways: each request runs in its own task, and each line is written whole.

A peer that sends an invalid line gets an error and stays connected. Notifications are never answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import anyio

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.exact_json import parse_exactly
from cantrip_actors.terms.messages import as_text

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NOT_FOUND: Final = -32002
"""The named thing, such as a session, does not exist."""
CANCELLED: Final = -32800
"""The peer has cancelled its request."""

WAITING: Final = 1024
"""Lines that may wait to be written; the sender of a further line waits."""

_log = get_logger("cantrip_actors.acp")

RpcId = str | int | float | None


class RequestError(Exception):
    """A request that is answered with an error. `message` is one short sentence."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


InvalidParams: Final = partial(RequestError, INVALID_PARAMS)


class PeerGone(Exception):
    """The peer has ended the connection and will not answer."""


class RpcResult(NamedTuple):
    """A result, and the work to do after it was sent."""

    result: Any
    then: Callable[[], Awaitable[None]]


class _Request(NamedTuple):
    """A request of the peer that is being answered."""

    method: str
    params: Any
    scope: anyio.CancelScope


class RpcHandler(Protocol):
    """Answers a peer."""

    async def answer(self, method: str, params: Any) -> Any:
        """Return the result of a request, or an `RpcResult`. Raises RequestError."""

    async def notice(self, method: str, params: Any) -> None:
        """Handle a notification."""

    def cancel(self, method: str, params: Any) -> bool:
        """Cancel a request; return whether its own task still answers it. If it does not, its task is cancelled."""


class RpcConnection:
    """One connection. `write` gets whole lines, `trace` every line in either direction (`"<-"`, `"->"`)."""

    def __init__(
        self,
        handler: RpcHandler,
        write: Callable[[bytes], Awaitable[None]],
        *,
        trace: Callable[[str, Any], None] = lambda _direction, _message: None,
    ) -> None:
        self._handler = handler
        self._write = write
        self._trace = trace
        self._send, self._receive = anyio.create_memory_object_stream[bytes](WAITING)
        self._requests: dict[tuple[type, RpcId], _Request] = {}
        """The running requests of the peer."""
        self._asked: dict[int, _Answer] = {}
        """Our requests to the peer."""
        self._number = 0
        self._is_over = False

    async def serve(self, lines: AsyncIterator[bytes], ending: Callable[[], Awaitable[None]]) -> None:
        """Answer the peer until its lines end. Then `ending` is awaited before the last lines are written."""
        async with self._send, anyio.create_task_group() as writer:
            writer.start_soon(self._write_lines)
            async with anyio.create_task_group() as tasks:
                async for line in lines:
                    if line.strip():
                        await self._take(line, tasks)
                self._is_over = True
                for answer in self._asked.values():
                    answer.arrived.set()
                await ending()
                tasks.cancel_scope.cancel()
            self._send.close()

    async def _write_lines(self) -> None:
        async with self._receive:
            async for line in self._receive:
                try:
                    await self._write(line)
                except OSError as error:  # the peer has stopped reading; the end of its lines ends the connection
                    _log.warning("the editor reads no more", error=str(error))
                    return

    async def _take(self, line: bytes, tasks: anyio.abc.TaskGroup) -> None:
        try:
            message = parse_exactly(line)
        except ValueError as error:
            await self._fail(None, RequestError(PARSE_ERROR, f"expected a line of JSON: {error}"))
            return
        self._trace("<-", message)
        if isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message):
            self._take_answer(message)
            return
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            await self._fail(
                None, RequestError(INVALID_REQUEST, "expected a JSON-RPC request, an object with a method")
            )
            return
        method, params, id = message["method"], message.get("params"), message.get("id")
        if "id" not in message:
            if method == "$/cancel_request":
                self._cancel(params)
            else:
                tasks.start_soon(self._handler.notice, method, params)
        elif not isinstance(id, str | int | float | None) or isinstance(id, bool):
            await self._fail(None, RequestError(INVALID_REQUEST, "id: expected a text or a number"))
        else:
            request = self._requests[(type(id), id)] = _Request(method, params, anyio.CancelScope())
            await tasks.start(self._respond, request, id)

    async def _respond(
        self,
        request: _Request,
        id: RpcId,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Answer a request; requests begin in the order of their arrival."""
        task_status.started()
        try:
            with request.scope:
                result = await self._handler.answer(request.method, request.params)
            if request.scope.cancelled_caught:
                raise RequestError(CANCELLED, "cancelled")
        except RequestError as error:
            await self._fail(id, error)
        else:
            done = result if isinstance(result, RpcResult) else RpcResult(result, _do_nothing)
            await self._send_message({"jsonrpc": "2.0", "id": id, "result": done.result})
            await done.then()
        finally:
            self._requests.pop((type(id), id), None)

    def _cancel(self, params: Any) -> None:
        id = params.get("requestId") if isinstance(params, dict) else None
        request = self._requests.get((type(id), id)) if isinstance(id, str | int | float) else None
        if request is not None and not self._handler.cancel(request.method, request.params):
            request.scope.cancel()

    async def _fail(self, id: RpcId, error: RequestError) -> None:
        problem: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            problem["data"] = error.data
        await self._send_message({"jsonrpc": "2.0", "id": id, "error": problem})

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        self._trace("->", message)
        try:
            await self._send.send(as_text(message).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the peer no longer reads
            self._is_over = True

    # Requests to the peer

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send the peer a notification."""
        await self._send_message({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the peer's answer to a request. Raises RequestError for its error, PeerGone.

        A caller that is cancelled cancels the request.
        """
        if self._is_over:
            raise PeerGone
        self._number += 1
        number, answer = self._number, _Answer()
        self._asked[number] = answer
        try:
            await self._send_message({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            await answer.arrived.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(1, shield=True):
                await self.notify("$/cancel_request", {"requestId": number})
            raise
        finally:
            del self._asked[number]
        if answer.message is None:
            raise PeerGone
        error = answer.message.get("error")
        if error is not None:
            problem = error if isinstance(error, dict) else {}
            code = problem.get("code")
            raise RequestError(code if isinstance(code, int) else INTERNAL_ERROR, str(problem.get("message", error)))
        return answer.message.get("result")

    def _take_answer(self, message: dict[str, Any]) -> None:
        id = message.get("id")
        answer = self._asked.get(id) if isinstance(id, int) else None
        if answer is not None and answer.message is None:
            answer.message = message
            answer.arrived.set()


async def _do_nothing() -> None:
    pass


class _Answer:
    """Receives the answer to one of our requests; no message means that the peer has gone."""

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.message: dict[str, Any] | None = None

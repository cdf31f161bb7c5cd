"""A fake provider: `python -m bench.service.provider` serves OpenAI's Chat Completions, and prints its port.

A conversation is two answers: a sentence and a call of `weather`, then a sentence and a call of the tool that ends the
run (`done` of this project, `final_result` of the others). Each event of an answer is an HTTP chunk, written in
a turn of the event loop of its own, without any pause.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["FIRST", "SECOND", "Provider", "list_chunks"]

FIRST = "I shall look up the weather there before I say anything."
SECOND = "The weather there is as one would expect at this time of the year: not warm, but dry."
REPORT = {"city": "Oslo", "celsius": 11.0, "advice": "Take a coat."}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = 24
"""Characters of a piece of a call's arguments."""


def list_chunks(query: dict[str, Any]) -> list[bytes]:
    """Return the HTTP chunks that answer a query."""
    return [*(_frame(json.dumps(event)) for event in _list_events(query)), _frame("[DONE]"), b"0\r\n\r\n"]


def _frame(data: str) -> bytes:
    body = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def _list_events(query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = {tool["function"]["name"] for tool in query["tools"]}
    is_second = any(message["role"] == "tool" for message in query["messages"])
    words = SECOND if is_second else FIRST
    if not is_second:
        name, args = "weather", {"city": REPORT["city"]}
    elif "done" in names:
        name, args = "done", {"answer": REPORT}
    else:
        name, args = "final_result", REPORT
    yield _make_event({"role": "assistant", "content": ""})
    for word in words.split():
        yield _make_event({"content": f"{word} "})
    call = {"index": 0, "id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": ""}}
    yield _make_event({"tool_calls": [call]})
    text = json.dumps(args)
    for start in range(0, len(text), PIECE):
        piece = {"index": 0, "function": {"arguments": text[start : start + PIECE]}}
        yield _make_event({"tool_calls": [piece]})
    yield _make_event({}, finish="tool_calls")
    usage = {"prompt_tokens": 120, "completion_tokens": 40, "total_tokens": 160}
    yield {**_make_event({}), "choices": [], "usage": usage}


def _make_event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-5-mini",
        "choices": [choice],
    }


class Provider:
    """Answers the queries of any number of connections."""

    def __init__(self) -> None:
        self._answers: dict[tuple[bool, bool], list[bytes]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one query after the other until the client goes."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                chunks = self._find_answer(await reader.readexactly(length))
                writer.write(HEAD)
                for chunk in chunks:
                    if writer.is_closing():
                        return
                    writer.write(chunk)
                    await asyncio.sleep(0)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _find_answer(self, body: bytes) -> list[bytes]:
        key = b'"done"' in body, b'"tool_call_id"' in body
        if key not in self._answers:
            self._answers[key] = list_chunks(json.loads(body))
        return self._answers[key]


async def _main() -> None:
    server = await asyncio.start_server(Provider().serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the bench closes the pipe
    server.close()


if __name__ == "__main__":
    asyncio.run(_main())

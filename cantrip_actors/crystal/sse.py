"""Parses bytes into events: server-sent events, JSON lines and JSON bodies, in chunks of any size.

Providers stream server-sent events. Some servers send one JSON body instead, a list of them (Gemini without `alt=sse`)
or a JSON object on each line (Ollama's own interface), and not all of them state it in `content-type`. `Framing`
recognises the format by the first byte that is not blank. Its `feed` returns events in any format: the bytes of one
JSON value each, and the name of the event if it has one.

This file parses JSON only to distinguish a body from a line, and knows no provider. It follows the WHATWG specification
of event streams with one exception: the last event counts even without its blank line, because several servers omit
that line; its JSON shows whether it is complete.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

import orjson

from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly

LIMIT: Final = 64 * 1024 * 1024
"""The maximum bytes of one event: a server that never ends a line must not fill the memory."""

MOST_VALUES: Final = 1_000_000
"""The most values in one JSON text of a provider: each takes up to a hundred bytes of memory when it is parsed."""

_EACH_LINE: Final = 8
"""Bytes of memory that a line of an event takes besides its text: an event of empty lines has a limit, too."""

_BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r\n"


class ServerSentEvent(NamedTuple):
    """One event: its data, and its name ("" if the server gave none)."""

    data: bytes
    name: str = ""


class Sse:
    """A parser of server-sent events, fed with bytes. `id` and `retry` are ignored: no client reconnects."""

    __slots__ = ("_after_cr", "_data", "_data_size", "_name", "_pieces", "_size", "_started")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # the beginning of an incomplete line
        self._size = 0
        self._data_size = 0
        self._after_cr = False
        self._started = False
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises ProviderError for an event that is too large."""
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 10:  # the second half of a line end in two chunks
                chunk = chunk[1:]
        if b"\n" not in chunk and b"\r" not in chunk:
            if chunk:
                self._keep(chunk)
            return []
        if self._pieces:
            self._pieces.append(chunk)
            chunk = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        lines = chunk.splitlines()
        end = chunk[-1]
        if end == 13:
            self._after_cr = True
        elif end != 10:
            self._keep(lines.pop())
        return self._read(lines)

    def close(self) -> list[ServerSentEvent]:
        """Return the last event, if the stream ended within it."""
        events = []
        if self._pieces:
            line, self._pieces = b"".join(self._pieces), []
            events = self._read([line])
        return events + self._read([b""])

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > LIMIT:
            raise ProviderError(f"provider sent a line of more than {LIMIT} bytes", retryable=False)

    def _read(self, lines: list[bytes]) -> list[ServerSentEvent]:
        events = []
        if not self._started and lines:
            self._started = True
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(ServerSentEvent(data, self._name.decode(errors="replace") if self._name else ""))
                    self._data, self._data_size = [], 0
                self._name = b""
            elif line.startswith(b"data:"):
                self._add_data(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[7:] if line[6:7] == b" " else line[6:]
            elif line == b"data":
                self._add_data(b"")
        return events

    def _add_data(self, line: bytes) -> None:
        self._data.append(line)
        self._data_size += len(line) + _EACH_LINE
        if self._data_size > LIMIT:
            raise ProviderError(f"provider sent an event of more than {LIMIT} bytes", retryable=False)


class _Json:
    """JSON without frames: a body, a list of bodies, or one a line. Fed with bytes, like `Sse`.

    A whole body on one line and the first of several lines are the same: one event.
    """

    __slots__ = ("_by_line", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._by_line: bool | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self._size += len(chunk)
        if self._size > LIMIT:
            raise ProviderError(f"provider sent a body of more than {LIMIT} bytes", retryable=False)
        self._pieces.append(chunk)
        if self._by_line is False or b"\n" not in chunk:
            return []
        lines = b"".join(self._pieces).split(b"\n")
        if self._by_line is None:
            self._by_line = _is_json(lines[0])
            if not self._by_line:
                return []
        self._pieces = [lines.pop()]
        self._size = len(self._pieces[0])
        return [event for line in lines if line.strip() for event in _split_bodies(line.strip())]

    def close(self) -> list[ServerSentEvent]:
        rest = b"".join(self._pieces).strip()
        self._pieces = []
        return _split_bodies(rest) if rest else []


def check_values(text: bytes | str) -> None:
    """Raise ProviderError for a JSON text that may have more than `MOST_VALUES` values, before it is parsed.

    Brackets and commas within strings count, too: a text needs a megabyte to have as many.
    """
    if len(text) > MOST_VALUES:
        json = text.encode(errors="replace") if isinstance(text, str) else text
        if json.count(b"{") + json.count(b"[") + json.count(b",") > MOST_VALUES:
            problem = f"provider sent JSON of more than {MOST_VALUES:,} values, which is not read"
            raise ProviderError(problem, retryable=False)


def _split_bodies(text: bytes) -> list[ServerSentEvent]:
    """Yield one event, or one for each element of a list. The decoder refuses other texts."""
    if text.startswith(b"["):
        check_values(text)
        with suppress(ValueError):
            return [ServerSentEvent(dump_exactly(body)) for body in parse_exactly(text)]
    return [ServerSentEvent(text)]


def _is_json(line: bytes) -> bool:
    check_values(line)
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


class Framing:
    """Detects the format of an answer, and parses it."""

    __slots__ = ("_head", "_parser")

    def __init__(self) -> None:
        self._parser: Sse | _Json | None = None
        self._head = b""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes.

        Raises ProviderError if it is neither JSON nor an event stream, such as a proxy's page with status 200.
        """
        if self._parser is not None:
            return self._parser.feed(chunk)
        self._head += chunk
        start = self._head.removeprefix(_BOM).lstrip(_BLANKS)
        if not start or _BOM.startswith(self._head):
            return []
        if start[0] in b"{[":
            self._parser = _Json()
            return self._parser.feed(start)
        if start[0] == 60:  # "<"
            excerpt = start[:80].decode(errors="replace")
            raise ProviderError(f"provider answered with a page instead of a stream: {excerpt!r}")
        self._parser = Sse()
        return self._parser.feed(self._head)

    def close(self) -> list[ServerSentEvent]:
        """Return the events that the end of the stream completes."""
        return [] if self._parser is None else self._parser.close()

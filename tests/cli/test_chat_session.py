"""The conversation of `cantrip chat`, with a keyboard that is a list of lines."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Entity, LoomError, Runtime, gate, scripted
from cantrip_actors.cli import chat_session
from cantrip_actors.cli.chat_session import ChatSession
from cantrip_actors.wards import max_turns


@gate
async def wait() -> str:
    """Wait."""
    await anyio.sleep(60)
    return "waited"


def think(context: Sequence[Any]) -> dict[str, Any]:
    if context[-1].role == "tool":
        return {"tool_calls": [{"gate": "done", "args": {"answer": context[-1].content}}]}
    return {"tool_calls": [{"gate": "wait", "args": {}}]}


class Keyboard:
    """Types a line each second, and then ends the input. Each reader has to hold the terminal."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.terminal: anyio.Lock | None = None

    async def line(self, seconds: float) -> str | None:
        assert self.terminal is not None
        assert self.terminal.locked()
        await anyio.sleep(seconds)
        if seconds == chat_session.PASTE:
            return None
        await anyio.sleep(1)
        return f"{self._lines.pop(0)}\n" if self._lines else ""

    def discard(self) -> None:
        """Nothing was typed before."""


async def hold(monkeypatch: pytest.MonkeyPatch, *lines: str) -> int:
    keyboard = Keyboard(*lines)
    monkeypatch.setattr(chat_session, "Keyboard", lambda: keyboard)
    cantrip = Cantrip(scripted(think), circle=Circle(["done", wait], [max_turns(5)]))
    async with Runtime.open("memory:") as runtime:
        session = ChatSession(runtime, await runtime.ensure("clerk", cantrip), cantrip, "memory:")
        keyboard.terminal = session._terminal
        return await session.hold()


async def refuse(*_: Any, **__: Any) -> None:
    raise LoomError("the loom is away")


async def test_a_command_that_is_refused_ends_neither_the_chat_nor_the_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("steer", "interrupt", "undo"):
        monkeypatch.setattr(Entity, method, refuse)
    assert await hold(monkeypatch, "/steer x", "/undo", "go", "/steer x", "/stop") == 0
    printed = capsys.readouterr()
    assert printed.err == "error: the loom is away\n" * 4
    assert "waited" in printed.out


async def test_the_keyboard_is_read_only_by_the_holder_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await hold(monkeypatch, "go", "/quit") == 0
    assert "waited" in capsys.readouterr().out

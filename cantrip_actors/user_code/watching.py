"""Who watches the calls of user code: `cantrip_actors.testing`, which crashes a process in the middle of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, TypeAlias

CodeKind: TypeAlias = Literal["gate", "query"]

CodeWatch: TypeAlias = Callable[[CodeKind, str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Does a call: its kind, the name of the gate or of the crystal, and the function that does it."""

WATCH: Final[ContextVar[CodeWatch | None]] = ContextVar("cantrip_actors_watch", default=None)
"""Who does the calls of the tasks below."""


def watch(kind: CodeKind, name: str, call: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Return the function that does a call: as it is, or watched."""
    watcher = WATCH.get()
    return call if watcher is None else partial(watcher, kind, name, call)

"""One-off children whose outcome is a value: OTP's `Task`, and what `call_agent` needs.

A task is an actor that runs a function and ends with what it returns. Like any child it has a supervisor, a ref, a
place in the tree; its crash is reported there, and is a value to who waits: `Task.Supervisor.async_nolink`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from supervisors.actor import Actor
from supervisors.policy import Restart
from supervisors.spec import ChildSpec
from supervisors.spec import Shutdown as ShutdownTime


class Task(Actor):
    """Runs `function(*arguments)` and ends; what that returns is the outcome's value."""

    def __init__(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    async def run(self) -> Any:
        """Do it."""
        return await self._function(*self._arguments)


def task(
    id: Hashable,
    function: Callable[..., Awaitable[Any]],
    *arguments: Any,
    restart: Restart = "temporary",
    shutdown: ShutdownTime | None = None,
) -> ChildSpec[Task]:
    """The spec of a task.

    Args:
        id: names it.
        function: called with `arguments` in each incarnation, and awaited.
        arguments: for it.
        restart: `temporary`: run once; `transient`: until it succeeds.
        shutdown: see `ChildSpec`.
    """
    return ChildSpec(id, lambda: Task(function, *arguments), restart=restart, shutdown=shutdown)

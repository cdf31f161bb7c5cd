"""One-off children whose outcome is a value: Elixir's `Task`, and what `call_agent` needs.

A task is an actor that runs a function and ends with its result. Like any child it has a supervisor, a ref and a path
in the tree; its crash is reported there, and is a value for the task that waits, as with
`Task.Supervisor.async_nolink`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from supervisors.actor import Actor
from supervisors.policy import Restart
from supervisors.spec import ChildSpec
from supervisors.spec import Shutdown as ShutdownTime


class Task(Actor):
    """An actor that runs `function(*arguments)` and ends; the result is the value of its outcome."""

    def __init__(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    async def run(self) -> Any:
        """Run the function."""
        return await self._function(*self._arguments)


def task(
    id: Hashable,
    function: Callable[..., Awaitable[Any]],
    *arguments: Any,
    restart: Restart = "temporary",
    shutdown: ShutdownTime | None = None,
) -> ChildSpec[Task]:
    """Return the spec of a task.

    Args:
        id: its id.
        function: called with `arguments` in each incarnation, and awaited.
        arguments: the arguments of `function`.
        restart: `temporary`: run once; `transient`: until it succeeds.
        shutdown: see `ChildSpec`.
    """
    return ChildSpec(id, lambda: Task(function, *arguments), restart=restart, shutdown=shutdown)

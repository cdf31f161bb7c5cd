"""One-off children whose outcome is a value: Elixir's `Task`, and what `call_agent` needs.

A task is an actor that runs a function and ends with its result. Like any child it has a supervisor, a ref and a path
in the tree; its crash is reported there, and is a value for the task that waits, as with
`Task.Supervisor.async_nolink`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from supervisors.actor import Actor
from supervisors.errors import SpecError
from supervisors.policy import Restart
from supervisors.spec import ChildSpec
from supervisors.spec import Shutdown as ShutdownTime


class Task(Actor):
    """An actor that runs `function(*arguments)` and ends; the result is the value of its outcome."""

    def __init__(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    async def run(self) -> Any:
        """Run the function. Raises TypeError if it is not an async one."""
        made: object = self._function(*self._arguments)
        if not isinstance(made, Awaitable):
            raise TypeError(
                f"task {self.ref.id}: expected an async function, which returns an awaitable, got {self._function!r}, "
                f"which returned a {type(made).__name__}"
            )
        return await made


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

    Raises:
        SpecError: a field is wrong; `what` names it.
    """
    if not callable(function):
        raise SpecError("function", f"is an async function, got {function!r}")
    return ChildSpec(id, lambda: Task(function, *arguments), restart=restart, shutdown=shutdown)

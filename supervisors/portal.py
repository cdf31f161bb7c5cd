"""The blocking interface of a system, for threads other than the event loop's.

Nothing else of this package may be used from another thread. The calling thread waits for the loop; the loop never
waits for a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio.from_thread
import anyio.lowlevel

from supervisors.ref import ActorRef

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Portal:
    """`system.portal`. Made in the loop; used in any other thread while the system is open."""

    def __init__(self) -> None:
        self._token = anyio.lowlevel.current_token()

    def call(self, ref: ActorRef, message: Any, timeout: float | None = None) -> Any:
        """Make a blocking `ref.call`; it returns and raises the same."""
        return self.run(ref.call, message, timeout)

    def cast(self, ref: ActorRef, message: Any) -> None:
        """Make a `ref.cast`. Raises `MailboxFull`."""
        anyio.from_thread.run_sync(ref.cast, message, token=self._token)

    def run(self, function: Callable[[Unpack[Arguments]], Coroutine[Any, Any, T]], *arguments: *Arguments) -> T:
        """Await `function(*arguments)` in the loop, to start or stop a child or to wait for an outcome.

        Raises:
            RuntimeError: in the loop's own thread, which would block for ever, and when the loop has ended.
        """
        return anyio.from_thread.run(function, *arguments, token=self._token)

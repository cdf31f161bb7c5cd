"""How a supervisor is managed from outside: `SupervisorRef`, and the request that it puts into the mailbox.

The rules are OTP's management calls (S-06 ... S-10, S-40 ... S-43, S-51). What a supervisor does about a request is
`base_supervisor.py`, `supervisor.py` and `dynamic.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import anyio

from supervisors.actor import Actor
from supervisors.children import ChildCounts, ChildInfo
from supervisors.errors import ChildNotFound, NotRunning, SpecError, StartFailed
from supervisors.reasons import SHUTDOWN, ExitReason, Shutdown
from supervisors.ref import ActorRef, Outcome
from supervisors.spec import ChildSpec

if TYPE_CHECKING:
    from supervisors.dynamic import DynamicSupervisor
    from supervisors.supervisor import Supervisor


class Request(NamedTuple):
    """In a supervisor's mailbox: call this method of it."""

    method: str
    arguments: tuple[Any, ...] = ()


_CANCELLED = Shutdown("cancelled")


class SupervisorRef(ActorRef):
    """A reference to a supervisor, with its management calls.

    They raise `ManagementError`s and what `call` raises.
    """

    __slots__ = ()

    @overload
    async def start_child(self, spec: ChildSpec[Supervisor] | ChildSpec[DynamicSupervisor], /) -> SupervisorRef: ...
    @overload
    async def start_child(self, spec: ChildSpec[Actor], /) -> ActorRef: ...
    @overload
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any: ...
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Start a child and wait until it is up. Cancelled while it waits, it ends a dynamic supervisor's child
        again.

        Args:
            arguments: a `ChildSpec`; for a dynamic supervisor with a template, the arguments of the template's
            `start`.
            keywords: likewise.

        Returns:
            its ref: an `ActorRef`, or a `SupervisorRef` for a supervisor. Not `alive` if it said `Ignore` (S-06).

        Raises:
            StartFailed: its start failed; nothing is left of it (S-09).
            AlreadyStarted: a child with this id runs (S-10).
            AlreadyPresent: a child with this id is known (S-10).
            SpecError: the spec does not fit (S-12, S-45).
            TooManyChildren: the dynamic supervisor has as many as it may.
            ShuttingDown: the supervisor is ending.
        """
        return (await self._actor().start_child(arguments, keywords))[0]

    async def start_child_info(self, /, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        """Like `start_child`; returns also what `init` returned, which is kept nowhere (S-08)."""
        return await self._actor().start_child(arguments, keywords)  # type: ignore[no-any-return]

    async def terminate_child(self, target: object, reason: ExitReason = SHUTDOWN) -> None:
        """Stop a child and wait until it is gone. Its spec stays, unless it is temporary (S-40).

        Args:
            target: its id or its ref; a dynamic supervisor takes refs only.
            reason: what its `terminate` gets; a supervisor hands it on to its children.

        Raises:
            ChildNotFound: no such child here.
        """
        await self._actor().terminate_child(target, reason)

    async def restart_child(self, target: object) -> Any:
        """Start a child that was stopped, with the spec it had (S-41).

        Returns:
            its ref.

        Raises:
            StartFailed: its start failed; it stays stopped.
            ChildRunning: it runs.
            ChildRestarting: it is being restarted.
            ChildNotFound: no such child here.
        """
        return (await self._ask("_restart_child", target))[0]

    async def restart_child_info(self, target: object) -> tuple[Any, Any]:
        """Like `restart_child`; returns also what `init` returned (S-08)."""
        return await self._ask("_restart_child", target)  # type: ignore[no-any-return]

    async def delete_child(self, target: object) -> None:
        """Forget the spec of a child that was stopped (S-42).

        Raises:
            ChildRunning: it runs.
            ChildRestarting: it is being restarted.
            ChildNotFound: no such child here.
        """
        await self._ask("_delete_child", target)

    async def which_children(self) -> list[ChildInfo]:
        """All children it knows, in start order (S-43). (OTP gives static ones newest first.)"""
        return await self._ask("which_children")  # type: ignore[no-any-return]

    async def count_children(self) -> ChildCounts:
        """How many there are; those being restarted count, but not as active (S-43)."""
        return await self._ask("count_children")  # type: ignore[no-any-return]

    async def reconfigure(self, config: Actor) -> None:
        """Change the children and the flags of the running supervisor, without stopping anybody (S-51).

        Children with a known id go on and take the new spec, which counts from their next start; new ones are added
        and not started (`restart_child` does that); those that are missing stay. A configuration that is wrong raises
        where it is written, and changes nothing.

        Args:
            config: a new, not started `Supervisor` (or `DynamicSupervisor`, for one of these) made as it should be
            now.

        Raises:
            SpecError: `config` is of another kind.
        """
        await self._ask("_reconfigure", config)

    async def run_child(self, spec: ChildSpec[Any], *, cancelled: ExitReason = _CANCELLED) -> Outcome:
        """Start a child, wait for its outcome, and end it if this is cancelled meanwhile: a child that is a call.

        Args:
            spec: typically of a temporary child; see `supervisors.tasks`.
            cancelled: the reason it gets if this is cancelled.

        Returns:
            how it ended, also if it did not even start: never raises for what the child does.
        """
        try:
            ref: ActorRef = await self.start_child(spec)
        except StartFailed as failure:
            return Outcome(failure.reason)
        try:
            return await ref.outcome()
        finally:
            if ref._outcome is None:  # noqa: SLF001 - a ref, too
                with anyio.CancelScope(shield=True):
                    await self.terminate_child(ref, cancelled)

    def child(self, id: Hashable) -> Any:
        """The ref of a static child, without asking: as the books are right now.

        Raises:
            ChildNotFound: it knows no such child, or was never started.
        """
        found = self._actor().ref_of(id)
        if found is None:
            raise ChildNotFound(id)
        return found

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Have the supervisor do it: behind the requests that wait, or here, which saves two switches of tasks."""
        if self._has_open_books():
            await self._system.backend.checkpoint()  # type: ignore[union-attr]
            if self._has_open_books():
                answer = getattr(self._actor(), method)(*arguments)
                return await answer if isinstance(answer, CoroutineType) else answer
        return await self.call(Request(method, arguments))

    def _has_open_books(self) -> bool:
        actor: Any = None if self._incarnation is None else self._incarnation.actor
        return actor is not None and actor.has_open_books

    def _actor(self) -> Any:
        if self._incarnation is None:
            raise NotRunning(self, self._reason)
        return self._incarnation.actor


def only_spec(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
    """The one argument of `start_child` where there is no template.

    Raises:
        SpecError: `template`, if there are others.
    """
    if len(arguments) != 1 or keywords:
        raise SpecError("template", "without one, start_child takes a ChildSpec and nothing else")
    return arguments[0]  # type: ignore[no-any-return]

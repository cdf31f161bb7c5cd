"""Management of supervisors from outside: `SupervisorRef`, and the request that it puts into the mailbox.

The rules are those of OTP's management calls (S-06 ... S-10, S-40 ... S-43, S-51). `base_supervisor.py`,
`supervisor.py` and `dynamic.py` carry the requests out.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import anyio

from supervisors.actor import Actor
from supervisors.children import ChildCounts, ChildInfo
from supervisors.errors import ChildNotFound, NotRunning, SpecError, StartFailed
from supervisors.reasons import SHUTDOWN, ExitReason, Shutdown, check_reason
from supervisors.ref import ActorRef, Outcome
from supervisors.spec import ChildSpec

if TYPE_CHECKING:
    from supervisors.dynamic import DynamicSupervisor
    from supervisors.supervisor import Supervisor


class Request(NamedTuple):
    """A message to a supervisor: call this method of it."""

    method: str
    arguments: tuple[Any, ...] = ()


_CANCELLED = Shutdown("cancelled")


class SupervisorRef(ActorRef):
    """A reference to a supervisor, with its management calls.

    They raise `ManagementError`s and the errors of `call`.
    """

    __slots__ = ()

    @overload
    async def start_child(self, spec: ChildSpec[Supervisor] | ChildSpec[DynamicSupervisor], /) -> SupervisorRef: ...
    @overload
    async def start_child(self, spec: ChildSpec[Actor], /) -> ActorRef: ...
    @overload
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any: ...
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Start a child and wait until it is up. If this is cancelled, a dynamic supervisor ends the child again.

        Args:
            arguments: a `ChildSpec`; for a dynamic supervisor with a template, the arguments of the template's `start`.
            keywords: likewise.

        Returns:
            its ref: an `ActorRef`, or a `SupervisorRef` for a supervisor. Not `alive` if the child raised `Ignore`
            (S-06).

        Raises:
            StartFailed: its start failed, and the child was removed again (S-09).
            AlreadyStarted: a child with this id runs (S-10).
            AlreadyPresent: a child with this id is known (S-10).
            SpecError: the spec does not fit (S-12, S-45).
            TooManyChildren: the dynamic supervisor has `max_children`.
            ShuttingDown: the supervisor is ending.
        """
        return (await self._get_actor().start_child(arguments, keywords))[0]

    async def start_child_info(self, /, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        """Like `start_child`, but also return what `init` returned, which is not stored (S-08)."""
        return await self._get_actor().start_child(arguments, keywords)  # type: ignore[no-any-return]

    async def terminate_child(self, target: object, reason: ExitReason = SHUTDOWN) -> None:
        """Stop a child and wait until it has ended. Its spec is kept, unless it is temporary (S-40).

        Args:
            target: its id or its ref; a dynamic supervisor accepts only refs.
            reason: the reason that its `terminate` receives; a supervisor passes it to its children.

        Raises:
            ChildNotFound: no such child here.
            TypeError: `reason` is not an exit reason.
        """
        check_reason(reason)
        await self._get_actor().terminate_child(target, reason)

    async def restart_child(self, target: object) -> Any:
        """Start a stopped child, with its spec (S-41).

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
        """Like `restart_child`, but also return what `init` returned (S-08)."""
        return await self._ask("_restart_child", target)  # type: ignore[no-any-return]

    async def delete_child(self, target: object) -> None:
        """Delete the spec of a stopped child (S-42).

        Raises:
            ChildRunning: it runs.
            ChildRestarting: it is being restarted.
            ChildNotFound: no such child here.
        """
        await self._ask("_delete_child", target)

    async def which_children(self) -> list[ChildInfo]:
        """Return all known children, in start order (S-43). OTP lists static ones newest first."""
        return await self._ask("which_children")  # type: ignore[no-any-return]

    async def count_children(self) -> ChildCounts:
        """Return the numbers of children; those being restarted count, but not as active (S-43)."""
        return await self._ask("count_children")  # type: ignore[no-any-return]

    async def reconfigure(self, config: Actor) -> None:
        """Change the children and the flags of the running supervisor, without stopping any child (S-51).

        Children with a known id continue, and their new spec applies from their next start; new ones are added but not
        started (`restart_child` does that); missing ones stay. A wrong configuration raises where it is created, and
        changes nothing.

        Args:
            config: a new, unstarted `Supervisor` (for a dynamic one, a `DynamicSupervisor`) with the wanted
                configuration.

        Raises:
            SpecError: `config` is of another kind.
        """
        await self._ask("_reconfigure", config)

    async def run_child(self, spec: ChildSpec[Any], *, cancelled: ExitReason = _CANCELLED) -> Outcome:
        """Start a child and wait for its outcome, as if it were a call; end the child if this is cancelled meanwhile.

        Args:
            spec: its spec, typically of a temporary child; see `supervisors.tasks`.
            cancelled: the reason that it receives if this is cancelled.

        Returns:
            how it ended, or failed to start: failures of the child are never raised.

        Raises:
            TypeError: `cancelled` is not an exit reason.
        """
        check_reason(cancelled)
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
        """Return the ref of a static child as currently recorded, without sending a message.

        Raises:
            ChildNotFound: there is no such child, or the supervisor was never started.
        """
        found = self._get_actor().ref_of(id)
        if found is None:
            raise ChildNotFound(id)
        return found

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the supervisor: after its waiting requests, or directly, which saves two task switches."""
        if self._can_query_directly():
            await self._system.backend.checkpoint()  # type: ignore[union-attr]
            if self._can_query_directly():
                answer = getattr(self._get_actor(), method)(*arguments)
                return await answer if isinstance(answer, CoroutineType) else answer
        return await self.call(Request(method, arguments))

    def _can_query_directly(self) -> bool:
        actor: Any = None if self._incarnation is None else self._incarnation.actor
        return actor is not None and actor.can_query_directly

    def _get_actor(self) -> Any:
        if self._incarnation is None:
            raise NotRunning(self, self._reason)
        return self._incarnation.actor


def get_only_spec(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
    """Return the one argument of `start_child` without a template.

    Raises:
        SpecError: `template`, if there are other arguments.
    """
    if len(arguments) != 1 or keywords:
        raise SpecError("template", "without one, start_child takes a ChildSpec and nothing else")
    return arguments[0]  # type: ignore[no-any-return]

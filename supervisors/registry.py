"""Names and groups of actors in a system.

A name, like membership in a group, belongs to an identity: it survives restarts, with the messages sent to it, and is
freed when the identity ends. There is no discovery across processes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

from supervisors.errors import MailboxFull, NameTaken, NotRunning
from supervisors.ref import ActorRef, Down

_Watch: TypeAlias = Callable[[Down], None]


class Registry:
    """The names of one system: `system.registry`."""

    def __init__(self) -> None:
        # Beside each ref: the callback that watches its end, by which it is no longer watched.
        self._names: dict[Hashable, tuple[ActorRef, _Watch]] = {}
        self._groups: dict[Hashable, dict[ActorRef, _Watch]] = {}  # in the order of joining

    def register(self, name: Hashable, ref: ActorRef) -> None:
        """Give `ref` a name, until it ends and will not be restarted.

        Raises:
            NameTaken: another actor has the name.
            NotRunning: `ref` has ended and will not be restarted.
        """
        if ref._outcome is not None:  # noqa: SLF001 - part of the package
            raise NotRunning(ref, ref.last_exit)
        self.reserve(name, ref)

    def reserve(self, name: Hashable, ref: ActorRef) -> None:
        """Like `register`, for the supervisor that is about to start the actor.

        Raises:
            NameTaken: another actor has the name.
        """
        holder = self.whereis(name)
        if holder is ref:
            return
        if holder is not None:
            raise NameTaken(name, holder)

        def free(_: Down) -> None:
            self.unregister(name)

        self._names[name] = ref, free
        ref._watch(free, free, final=True)  # noqa: SLF001

    def join(self, group: Hashable, ref: ActorRef) -> None:
        """Add `ref` to a group, until it ends or leaves. Does nothing if it is a member, or has ended for good."""
        if ref in self._groups.get(group, ()) or ref._outcome is not None:  # noqa: SLF001
            return

        def leave(_: Down) -> None:
            self.leave(group, ref)

        self._groups.setdefault(group, {})[ref] = leave
        ref._watch(leave, leave, final=True)  # noqa: SLF001

    def leave(self, group: Hashable, ref: ActorRef) -> None:
        """Remove `ref` from a group. Does nothing if it is not a member."""
        members = self._groups.get(group, {})
        if ref in members:
            ref._unwatch(members.pop(ref))  # noqa: SLF001
            if not members:
                del self._groups[group]

    def members(self, group: Hashable) -> list[ActorRef]:
        """Return the members of a group, in the order of joining."""
        return list(self._groups.get(group, ()))

    def broadcast(self, group: Hashable, message: Any) -> int:
        """Cast `message` to all members of a group, skipping those whose mailbox is full.

        Returns:
            how many members received it.
        """
        count = 0
        for ref in self.members(group):
            try:
                ref.cast(message)
            except MailboxFull:
                ref._report_dead_letter(message)  # noqa: SLF001
            else:
                count += 1
        return count

    def unregister(self, name: Hashable) -> None:
        """Free a name. Does nothing if no actor has it."""
        if name in self._names:
            ref, free = self._names.pop(name)
            ref._unwatch(free)  # noqa: SLF001

    def whereis(self, name: Hashable) -> ActorRef | None:
        """Return the actor with this name, or `None`."""
        return self._names[name][0] if name in self._names else None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

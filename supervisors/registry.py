"""Names and groups of actors in a system.

A name, like membership in a group, belongs to an identity: it survives restarts, with the messages sent to it, and is
freed when the identity ends. There is no discovery across processes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from supervisors.errors import MailboxFull, NameTaken
from supervisors.ref import ActorRef, Down


class Registry:
    """The names of one system: `system.registry`."""

    def __init__(self) -> None:
        self._names: dict[Hashable, ActorRef] = {}
        self._groups: dict[Hashable, dict[ActorRef, None]] = {}  # in the order of joining

    def register(self, name: Hashable, ref: ActorRef) -> None:
        """Give `ref` a name, until it ends and will not be restarted.

        Raises:
            NameTaken: another actor has the name.
        """
        holder = self._names.get(name)
        if holder is ref:
            return
        if holder is not None:
            raise NameTaken(name, holder)
        self._names[name] = ref

        def free(_: Down) -> None:
            if self._names.get(name) is ref:
                del self._names[name]

        ref._watch(self, free, final=True)  # noqa: SLF001 - part of the package

    def join(self, group: Hashable, ref: ActorRef) -> None:
        """Add `ref` to a group, until it ends or leaves. Does nothing if it is a member."""
        members = self._groups.setdefault(group, {})
        if ref not in members:
            members[ref] = None
            ref._watch(self, lambda _: self.leave(group, ref), final=True)  # noqa: SLF001

    def leave(self, group: Hashable, ref: ActorRef) -> None:
        """Remove `ref` from a group. Does nothing if it is not a member."""
        members = self._groups.get(group)
        if members is not None:
            members.pop(ref, None)
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
        told = 0
        for ref in self.members(group):
            try:
                ref.cast(message)
            except MailboxFull:
                ref._report_dead_letter(message)  # noqa: SLF001
            else:
                told += 1
        return told

    def unregister(self, name: Hashable) -> None:
        """Free a name. Does nothing if no actor has it."""
        self._names.pop(name, None)

    def whereis(self, name: Hashable) -> ActorRef | None:
        """Return the actor with this name, or `None`."""
        return self._names.get(name)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

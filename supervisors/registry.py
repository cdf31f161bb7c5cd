"""Names: who is called what in a system.

A name belongs to an identity and is free again when that has ended for good; a restart keeps it, and what was sent to
it. What this is not: discovery across processes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from supervisors.actor import ActorRef, Down
from supervisors.errors import NameTaken


class Registry:
    """The names of one system: `system.registry`."""

    def __init__(self) -> None:
        self._names: dict[Hashable, ActorRef] = {}

    def register(self, name: Hashable, ref: ActorRef) -> None:
        """Give `ref` a name, until it ends for good.

        Raises:
            NameTaken: by another one.
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

    def unregister(self, name: Hashable) -> None:
        """Take a name away. Nothing happens if nobody has it."""
        self._names.pop(name, None)

    def whereis(self, name: Hashable) -> ActorRef | None:
        """Who has the name; `None` if nobody does."""
        return self._names.get(name)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

"""A resource: state outside the loom that the gates of a circle share, such as the tabs of a browser.

A gate has it as a dependency (CIRCLE-10). The circle actor of each entity binds it, gives the gate the bound form in
its place, and closes that when the entity is unloaded or ends. Nothing is opened before a call: `bind` must not wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Resource(ABC):
    """A resource as its user describes it: a value that entities share, without state."""

    form: str
    """The name and the version of the format that `dump` returns; a snapshot in another format is not restored."""

    @abstractmethod
    def bind(self, snapshot: bytes | None) -> BoundResource:
        """Return the resource for one entity, with the state that a snapshot has."""


class BoundResource(ABC):
    """A resource of one entity, with its state."""

    @abstractmethod
    async def describe(self, dependencies: Mapping[str, Any]) -> str:
        """Return a description of its present state, for a gate with these dependencies whose outcome is unknown after
        a crash.
        """

    @abstractmethod
    def dump(self) -> bytes | None:
        """Return its state after the last call as bytes, for the loom; None if nothing has changed since the last."""

    @abstractmethod
    async def close(self) -> None:
        """Release all that it holds. It may be used again afterwards, with the state of the last call."""

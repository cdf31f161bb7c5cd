"""A resource: state outside the loom that the gates of a circle share, such as the tabs of a browser.

A gate has it as a dependency (CIRCLE-10). The circle actor of each entity binds it, gives the gate the bound form in
its place, and closes that when the entity is unloaded or ends. Nothing is opened before a call: `bind` must not wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Resource(ABC):
    """A resource as its user describes it: a value that entities share, without state."""

    @abstractmethod
    def bind(self) -> BoundResource:
        """Return the resource for one entity."""


class BoundResource(ABC):
    """A resource of one entity, with its state."""

    @abstractmethod
    async def close(self) -> None:
        """Release all that it holds. It may be used again afterwards, and is then empty."""

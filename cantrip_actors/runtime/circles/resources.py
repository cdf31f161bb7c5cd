"""The resources of one entity: what its gates hold open between calls, such as the tabs of a browser."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from cantrip_actors.machine.actions import Run
from cantrip_actors.terms.resource import BoundResource, Resource


class Resources:
    """Binds the resources among the dependencies of an entity's gates, each at its first use."""

    def __init__(self) -> None:
        self._bound: dict[Resource, BoundResource] = {}

    def lend(self, run: Run) -> Run:
        """Return the call with the entity's own resources among the dependencies of its gate."""
        gate = run.gate
        own = {name: self._bind(value) for name, value in gate.dependencies.items() if isinstance(value, Resource)}
        if not own:
            return run
        return msgspec.structs.replace(run, gate=replace(gate, dependencies={**gate.dependencies, **own}))

    def _bind(self, resource: Resource) -> BoundResource:
        bound = self._bound.get(resource)
        if bound is None:
            bound = self._bound[resource] = resource.bind()
        return bound

    async def close(self) -> None:
        """Close all of them."""
        while self._bound:
            _, bound = self._bound.popitem()
            await bound.close()
